"""Defines the limits and patterns of the contract, and the checks that several services share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.errors import FieldViolation
from tenure.domain.fencing import is_claim_epoch
from tenure.domain.outputs import MAX_URI_BYTES
from tenure.domain.tool_arguments import storable_json
from tenure.v1 import ledger_pb2, task_pb2, token_pb2
from tenure.wire.common import seconds

# The violations of a request, collected while the checks run.


class Violations:
    """Collects all violations of a request, each with the path of its field."""

    def __init__(self) -> None:
        self.violations: list[FieldViolation] = []

    def require(self, holds: bool, field: str, description: str) -> None:
        if not holds:
            self.violations.append(FieldViolation(field, description))

    def uuid(self, field: str, value: str) -> None:
        self.require(_is_uuid(value), field, "must be a UUID")

    def length(self, field: str, value: str, least: int, most: int) -> None:
        self.require(least <= len(value) <= most, field, f"must have {least} to {most} characters")

    def known(self, field: str, values: Any, number: int) -> None:
        """Requires an enum value that this version knows: an unknown value must not be read as the default.

        Unspecified is a known value.
        """
        self.require(number in values.values(), field, f"must be one of {', '.join(values.keys())}")

    def between(self, field: str, value: float, least: float, most: float) -> None:
        self.require(least <= value <= most, field, f"must be {least:g} to {most:g}")


Check = Callable[[Any, Violations], None]


def _is_uuid(value: str) -> bool:
    if len(value) != 36:
        return False
    try:
        UUID(value)
    except ValueError:
        return False
    return True


# The limits and patterns of the contract. Senders keep to them too.

MAX_GOAL_BYTES: Final = 256 * 1024
MAX_SYSTEM_BYTES: Final = 256 * 1024
MAX_OUTPUT_TOKENS: Final = 64_000
MIN_WINDOW_TOKENS: Final = 1024
MAX_WINDOW_TOKENS: Final = 10_000_000
MIN_OUTPUT_BYTES: Final = 1024
MAX_LABELS: Final = 32
MAX_APPROVE_TOOLS: Final = 128
MAX_ALLOWED_TOOLS: Final = 256
MAX_ALLOWED_TOOLS_BYTES: Final = 16 * 1024  # of all names: the claim record in etcd and each token contain them
MAX_RESULT_CORRECTIONS: Final = 20
MAX_TRANSITION_MESSAGE: Final = 4000  # characters
MAX_ENTRIES: Final = 256
MAX_COMMIT_BYTES: Final = 1024 * 1024
MAX_ARGUMENT_BYTES: Final = 1024 * 1024
MAX_FRAME_ITEMS: Final = 128
MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
MAX_CONTROL_JSON_BYTES: Final = 256 * 1024
MAX_WAIT_SECONDS: Final = 600
MAX_HOLDINGS: Final = 10_000
MAX_SLOTS: Final = 10_000
MAX_CHOICES: Final = 64
MAX_LOOPS: Final = 2 * MAX_CHOICES
"""The loops of a worker: each function by its name, and by the revision that the worker has the code of."""
MAX_NAMED_CALLS: Final = 64
MAX_CALLS_IN_DOUBT: Final = 1024  # equal to the limit of open calls of a task
MAX_IN_DOUBT_A_PAGE: Final = 500
MAX_CALL_ATTEMPTS: Final = 10**9
MAX_ID_CHARACTERS: Final = 64
MAX_SOURCE_CHARACTERS: Final = 200

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,54}\Z")
NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")
LOOP: Final = re.compile(NAME.pattern.removesuffix(r"\Z") + r"(@[0-9a-f]{16})?\Z")
WORKER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")
WORKER_ID_RULE: Final = "1 to 128 of a-z, A-Z, 0-9 and ._-, beginning with a letter or digit"
CALL_ID: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}\Z")

_LAST_SECOND = 32_503_680_000
"""The year 3000."""


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, as strict as its readers: without NaN and with bounded nesting."""
    try:
        storable_json(text)
    except ValueError:
        return False
    return True


def check_duration(field: str, value: Duration, most_seconds: float, v: Violations) -> None:
    v.between(field, seconds(value), 0, most_seconds)


def check_moment(field: str, moment: Timestamp, v: Violations) -> None:
    """Requires a time from 1970 to 3000: protobuf can hold times that Python's datetime cannot represent."""
    in_range = 0 <= moment.seconds < _LAST_SECOND and 0 <= moment.nanos < 1_000_000_000
    v.require(in_range, field, "must be a time from 1970 to 3000")


def check_lower_tiers(field: str, lower: task_pb2.LowerTiers, v: Violations) -> None:
    v.between(f"{field}.below_high", lower.below_high, 0, MAX_SLOTS)
    v.between(f"{field}.below_normal", lower.below_normal, 0, MAX_SLOTS)


def check_claim_epoch(field: str, epoch: int, v: Violations) -> None:
    """Requires an epoch that a claim can have. The ledger itself checks that the generation is its own."""
    v.require(is_claim_epoch(epoch), field, "must have a generation and a revision of 1 or more")


def check_text(field: str, text: str, least: int, most: int, v: Violations) -> None:
    """Requires a text that the database can store. A refusal by the database would come after the claim was made."""
    v.length(field, text, least, most)
    v.require("\0" not in text, field, "must not contain NUL")


def check_no_id(field: str, name: str, v: Violations) -> None:
    """Requires a name that is not a UUID in any notation, for requests that accept a name or an id."""
    with suppress(ValueError):
        UUID(name)
        v.require(holds=False, field=field, description="must not be a UUID")


def check_token(token: token_pb2.FencingToken, v: Violations, field: str = "token") -> None:
    v.require(bool(token.claims and token.key_id and token.signature), field, "must be a signed fencing token")


def check_labels(labels: Any, v: Violations, field: str) -> None:
    v.require(len(labels) <= MAX_LABELS, field, f"at most {MAX_LABELS}")
    for key, value in labels.items():
        v.length(f"{field}[{key!r}]", key, 1, 63)
        v.length(f"{field}[{key!r}]", value, 0, 200)
        v.require("\0" not in key and "\0" not in value, f"{field}[{key!r}]", "must not contain NUL")


def check_task_id(request: Any, v: Violations) -> None:
    v.uuid("task_id", request.task_id)


def check_guarded(request: Any, v: Violations) -> None:
    check_token(request.token, v)


def check_watch(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.require(request.after_sequence >= 0, "after_sequence", "must not be negative")


_ENTRY_KINDS: Final = frozenset(field.name for field in ledger_pb2.EntryBody.DESCRIPTOR.fields)


def check_entries(request: Any, v: Violations) -> None:
    check_watch(request, v)
    v.between("page_size", request.page_size, 0, 1000)
    v.require(len(request.kinds) <= len(_ENTRY_KINDS), "kinds", "must not have more kinds than there are")
    for kind in request.kinds:
        v.require(kind in _ENTRY_KINDS, "kinds", f"{kind[:40]!r} is no field of EntryBody")


def check_bills(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.require(request.after_step >= 0, "after_step", "must not be negative")
    v.require(request.after_attempt_number >= 0, "after_attempt_number", "must not be negative")
    v.between("page_size", request.page_size, 0, 1000)


def check_calls(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.length("after_call_id", request.after_call_id, 0, 32)
    v.between("page_size", request.page_size, 0, 1000)


def check_list(request: Any, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 500)
    v.length("page_token", request.page_token, 0, 512)
    v.known("order", task_pb2.TaskOrder, request.order)
    check_filter(request.filter, v)


def check_changes(request: Any, v: Violations) -> None:
    v.length("after_cursor", request.after_cursor, 0, 200)
    check_filter(request.filter, v)


def check_filter(task_filter: task_pb2.TaskFilter, v: Violations) -> None:
    check_labels(task_filter.labels, v, "filter.labels")
    if task_filter.root_task_id:
        v.uuid("filter.root_task_id", task_filter.root_task_id)
    if task_filter.forked_from_task_id:
        v.uuid("filter.forked_from_task_id", task_filter.forked_from_task_id)
    check_source_fields(task_filter.source, v, "filter.source")
    if task_filter.HasField("output"):
        _output_filter(task_filter.output, v)


def _output_filter(wanted: task_pb2.OutputFilter, v: Violations) -> None:
    v.require(bool(wanted.kind or wanted.uri_prefix), "filter.output", "must have a kind or a uri_prefix")
    v.require(
        not wanted.kind or bool(NAME.match(wanted.kind)), "filter.output.kind", "must be a name of an output's kind"
    )
    v.length("filter.output.uri_prefix", wanted.uri_prefix, 0, MAX_URI_BYTES)
    v.require("\0" not in wanted.uri_prefix, "filter.output.uri_prefix", "must not contain NUL")


def check_source_fields(source: Any, v: Violations, field: str) -> None:
    """Checks a Source, or a SourceFilter, which has the same fields."""
    v.known(f"{field}.kind", task_pb2.SourceKind, source.kind)
    v.length(f"{field}.source_id", source.source_id, 0, MAX_SOURCE_CHARACTERS)
    v.length(f"{field}.source_run_id", source.source_run_id, 0, MAX_SOURCE_CHARACTERS)
    for name in ("source_id", "source_run_id"):
        v.require("\0" not in getattr(source, name), f"{field}.{name}", "must not contain NUL")
    v.require(bool(source.source_id) or not source.source_run_id, f"{field}.source_run_id", "needs a source_id")


def check_frame(items: str) -> Check:
    def check(request: Any, v: Violations) -> None:
        advice = "in a frame; send the rest in another frame"
        v.require(len(getattr(request, items)) <= MAX_FRAME_ITEMS, items, f"at most {MAX_FRAME_ITEMS} {advice}")
        v.require(request.ByteSize() <= MAX_FRAME_BYTES, items, f"at most {MAX_FRAME_BYTES} bytes {advice}")

    return check
