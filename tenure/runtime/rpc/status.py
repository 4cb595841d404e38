"""Converts domain errors to gRPC statuses and back, with one table for both directions.

On the wire an error is its gRPC code and message with `google.rpc.ErrorInfo{reason, domain: "tenure", metadata}` and,
where they apply, BadRequest, RetryInfo and QuotaFailure. Refusals inside the frames of a stream use `PlainStatus`:
code, reason, message and metadata without gRPC.

A status without Tenure's ErrorInfo comes from gRPC itself or from a foreign server. If its code says that the call
broke on its way (UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED), the status becomes `Unavailable` with `outcome: unknown`
in its metadata: the peer may have carried out the request. Codes that mean a bug of the peer become `PeerFailed`, which
is not a domain error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tenure.domain import errors

DOMAIN: Final = "tenure"
DRAINING: Final = "DRAINING"
"""A reason of Unavailable: the server stops, and another one or its successor takes the call."""
STATEMENT_TIMEOUT: Final = "STATEMENT_TIMEOUT"
"""A reason of Unavailable: Postgres cancelled a statement, and nothing was written."""
LOCK_TIMEOUT: Final = "LOCK_TIMEOUT"
"""A reason of Unavailable: another transaction held a row lock for too long, and nothing was written."""
OUTCOME_UNKNOWN: Final = {"outcome": "unknown"}

# Two classes may share a code. The reason, or the kind in the metadata, distinguishes them.
CODES: Final[dict[type[errors.TenureError], grpc.StatusCode]] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.WrongState: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BudgetExhausted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.StaleEpoch: grpc.StatusCode.ABORTED,
    errors.SequenceConflict: grpc.StatusCode.ABORTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LeaseHeld: grpc.StatusCode.FAILED_PRECONDITION,
}
_BY_REASON: Final = {kind.default_reason: kind for kind in CODES}
_BY_NUMBER: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}
_BROKE_ON_ITS_WAY: Final = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
)

_SIZE_ERRORS_OF_GRPC: Final = ("larger than max", "metadata size exceeds")
"""Parts of gRPC's own messages, on either side. Also an answer can be too large: the call may have had its effect."""

_DETAILS: Final = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest)

# gRPC may refuse a trailer above 8 KiB, and then the client gets no reason at all. The trailer carries the message
# twice, once with three bytes for every byte beyond ASCII.
MAX_MESSAGE_BYTES: Final = 1000
MAX_METADATA_BYTES: Final = 1000
MAX_VIOLATION_BYTES: Final = 2000
_CUT: Final = "…"

# Metadata keys that only this module uses. Domain errors never have them.
_KIND: Final = "tenure-kind"
_RETRY_AFTER: Final = "tenure-retry-after-seconds"
_VIOLATIONS: Final = "tenure-violations"


class PlainStatus(NamedTuple):
    """A refusal as a typed result inside a frame: the number of the gRPC code, reason, message and metadata."""

    code: int
    reason: str
    message: str
    metadata: dict[str, str]


class PeerFailed(Exception):  # noqa: N818  a bug of the peer is not a domain error, and its name shows that
    """The peer has a bug or another version: INTERNAL, UNKNOWN, DATA_LOSS or UNIMPLEMENTED."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def code_of(error: errors.TenureError) -> grpc.StatusCode:
    """Returns the gRPC code of a domain error. Only leaf classes have one: raising another class is a bug."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def to_plain(error: errors.TenureError) -> PlainStatus:
    """Returns the form of an error inside a frame. `from_plain` returns an equal error, unless it was shortened."""
    metadata = _with_kind(error)
    if isinstance(error, errors.TryLater) and error.retry_after_seconds is not None:
        metadata[_RETRY_AFTER] = repr(error.retry_after_seconds)
    if isinstance(error, errors.InvalidRequest) and error.violations:
        metadata[_VIOLATIONS] = json.dumps(_fitting_violations(error.violations))
    return PlainStatus(code_of(error).value[0], error.reason, shortened(error.message, MAX_MESSAGE_BYTES), metadata)


def from_plain(code: int, reason: str, message: str, metadata: Mapping[str, str]) -> errors.TenureError | PeerFailed:
    """Returns the error for a refusal inside a frame."""
    remaining = dict(metadata)
    retry_after = remaining.pop(_RETRY_AFTER, None)
    violations = json.loads(remaining.pop(_VIOLATIONS, "[]"))
    return _build(
        _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN),
        reason,
        message,
        remaining,
        retry_after_seconds=None if retry_after is None else float(retry_after),
        violations=tuple((field, description) for field, description in violations),
    )


def to_status(error: errors.TenureError) -> grpc.Status:
    """Returns the gRPC status, with details, that ends an RPC with this error."""
    status = status_pb2.Status(code=code_of(error).value[0], message=shortened(error.message, MAX_MESSAGE_BYTES))
    for detail in _details(error):
        status.details.add().Pack(detail)
    return rpc_status.to_status(status)  # type: ignore[no-any-return]  # grpc_status has no types


def from_rpc_error(error: grpc.aio.AioRpcError) -> errors.TenureError | PeerFailed:
    """Returns the error with which a peer ended a call, or the error for a broken call."""
    details = _unpack(error)
    info = details.get(error_details_pb2.ErrorInfo)
    retry = details.get(error_details_pb2.RetryInfo)
    if info is None or info.domain != DOMAIN:
        bare = _from_bare_code(error.code(), error.details() or "")
        if isinstance(bare, errors.TryLater) and retry is not None:
            bare.retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
        return bare
    bad_request = details.get(error_details_pb2.BadRequest)
    return _build(
        error.code(),
        info.reason,
        error.details() or "",
        dict(info.metadata),
        retry_after_seconds=None if retry is None else retry.retry_delay.ToNanoseconds() / 1e9,
        violations=tuple((v.field, v.description) for v in bad_request.field_violations) if bad_request else (),
    )


def _with_kind(error: errors.TenureError) -> dict[str, str]:
    """Returns the metadata and, for a reason that is not the class's default, the kind.

    Two leaf classes may share a code, so the kind says to which class such a reason belongs.
    """
    kind = next(kind for kind in type(error).__mro__ if kind in CODES)
    metadata = _fitting_metadata(error.metadata)
    return metadata if error.reason == kind.default_reason else {**metadata, _KIND: kind.default_reason}


def shortened(text: str, most_bytes: int) -> str:
    """Returns the text, or its beginning with "…" if the text has more than `most_bytes` bytes in UTF-8.

    Replaces characters that UTF-8 cannot encode.
    """
    encoded = text.encode(errors="replace")
    if len(encoded) <= most_bytes:
        return encoded.decode()
    return encoded[: most_bytes - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _fitting_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata, with each value shortened to its share if the whole is too large."""
    if sum(len(f"{key}{value}".encode(errors="replace")) for key, value in metadata.items()) <= MAX_METADATA_BYTES:
        return dict(metadata)
    share = MAX_METADATA_BYTES // len(metadata)
    return {key: shortened(value, share) for key, value in metadata.items()}


def _fitting_violations(violations: tuple[errors.FieldViolation, ...]) -> list[errors.FieldViolation]:
    """Returns as many violations as fit, and one more that counts the omitted ones."""
    fitting: list[errors.FieldViolation] = []
    left_bytes = MAX_VIOLATION_BYTES
    for number, violation in enumerate(violations):
        short = errors.FieldViolation(shortened(violation.field, 200), shortened(violation.description, 500))
        left_bytes -= len(short.field.encode()) + len(short.description.encode())
        if left_bytes < 0:
            return [*fitting, errors.FieldViolation("", f"{len(violations) - number} more violations")]
        fitting.append(short)
    return fitting


def _details(error: errors.TenureError) -> list[Message]:
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_with_kind(error))
    ]
    if isinstance(error, errors.InvalidRequest) and error.violations:
        bad_request = error_details_pb2.BadRequest()
        for violation in _fitting_violations(error.violations):
            bad_request.field_violations.add(field=violation.field, description=violation.description)
        details.append(bad_request)
    if isinstance(error, errors.TryLater) and error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        details.append(retry)
    if isinstance(error, errors.LimitReached):
        quota = error_details_pb2.QuotaFailure()
        subject = shortened(error.metadata.get("subject", ""), 200)
        quota.violations.add(subject=subject, description=shortened(error.message, MAX_MESSAGE_BYTES))
        details.append(quota)
    return details


def _unpack(error: grpc.aio.AioRpcError) -> dict[type, Any]:
    """Returns the details of an error by type, or {} if the trailer does not parse.

    An unreadable trailer of a foreign server must not hide the status.
    """
    blob = next((value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"), None)
    details: dict[type, Any] = {}
    if not isinstance(blob, bytes):
        return details
    try:
        for packed in status_pb2.Status.FromString(blob).details:
            kind = next((kind for kind in _DETAILS if packed.Is(kind.DESCRIPTOR)), None)
            if kind is not None:
                details[kind] = kind.FromString(packed.value)
    except DecodeError:
        return {}
    return details


def _build(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    metadata: dict[str, str],
    *,
    retry_after_seconds: float | None,
    violations: tuple[tuple[str, str], ...],
) -> errors.TenureError | PeerFailed:
    kind = _BY_REASON.get(metadata.pop(_KIND, reason))
    if kind is None or CODES[kind] is not code:  # an error class of a newer peer: its code still says what to do
        kind = next((known for known, its_code in CODES.items() if its_code is code), None)
    if kind is None:
        return _from_bare_code(code, message)
    if issubclass(kind, errors.InvalidRequest):
        return kind(message, violations=violations, reason=reason, metadata=metadata)
    if issubclass(kind, errors.TryLater):
        return kind(message, retry_after_seconds=retry_after_seconds, reason=reason, metadata=metadata)
    return kind(message, reason=reason, metadata=metadata)


def _from_bare_code(code: grpc.StatusCode, message: str) -> errors.TenureError | PeerFailed:
    if code in _BROKE_ON_ITS_WAY:
        return errors.Unavailable(message or code.name, reason=code.name, metadata=OUTCOME_UNKNOWN)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(text in message for text in _SIZE_ERRORS_OF_GRPC):
        return errors.InvalidRequest(message, reason="MESSAGE_TOO_LARGE")  # no retry can succeed
    kind = next((known for known, its_code in CODES.items() if its_code is code), None)
    return PeerFailed(code, message) if kind is None else kind(message or code.name, reason=kind.default_reason)
