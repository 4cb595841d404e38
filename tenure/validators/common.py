"""Fields and requests of one shape that several services have."""

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
from tenure.domain.tool_arguments import strict_json
from tenure.v1 import task_pb2, token_pb2
from tenure.wire.common import seconds

# What is wrong with a request, collected while it is checked.


class Violations:
    """Collects what is wrong, all of it, with the path of each field."""

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
        """A choice we do not know must not be taken for the default. Unspecified is one of the values."""
        self.require(number in values.values(), field, f"is none of {', '.join(values.keys())}")

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


# The numbers and shapes of the contract's constraints; senders keep within them too.

MAX_GOAL_BYTES: Final = 256 * 1024
MAX_SYSTEM_BYTES: Final = 256 * 1024
MAX_OUTPUT_TOKENS: Final = 64_000
MIN_WINDOW_TOKENS: Final = 1024
MAX_WINDOW_TOKENS: Final = 10_000_000
MIN_OUTPUT_BYTES: Final = 1024
MAX_LABELS: Final = 32
MAX_APPROVE_TOOLS: Final = 128
MAX_ALLOWED_TOOLS: Final = 256
MAX_ALLOWED_TOOLS_BYTES: Final = 16 * 1024  # together: the names are in the claim's record in etcd and in each token
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
MOST_NAMED_CALLS: Final = 64
MOST_CALLS_IN_DOUBT: Final = 1024  # as many calls of a task may be open
MOST_IN_DOUBT_A_PAGE: Final = 500
MOST_CALL_ATTEMPTS: Final = 10**9
MAX_ID_CHARACTERS: Final = 64

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,54}\Z")
NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")
WORKER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")
WORKER_ID_RULE: Final = "1 to 128 of a-z, A-Z, 0-9 and ._-, beginning with a letter or digit"
ADDRESS: Final = re.compile(r"[a-zA-Z0-9.:_%\[\]-]{0,300}\Z")
CALL_ID: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}\Z")

_LAST_SECOND = 32_503_680_000
"""The year 3000."""


def is_json(text: str) -> bool:
    """One JSON value, as strict as the one who reads it: no NaN, and no nesting without end."""
    try:
        strict_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def check_duration(field: str, value: Duration, most_seconds: float, v: Violations) -> None:
    v.between(field, seconds(value), 0, most_seconds)


def check_moment(field: str, moment: Timestamp, v: Violations) -> None:
    """A Timestamp that can be read: protobuf holds times that no calendar has, and Python refuses them."""
    is_usual = 0 <= moment.seconds < _LAST_SECOND and 0 <= moment.nanos < 1_000_000_000
    v.require(is_usual, field, "must be a time from 1970 to 3000")


def check_lower_tiers(field: str, lower: task_pb2.LowerTiers, v: Violations) -> None:
    v.between(f"{field}.below_high", lower.below_high, 0, MAX_SLOTS)
    v.between(f"{field}.below_normal", lower.below_normal, 0, MAX_SLOTS)


def check_claim_epoch(field: str, epoch: int, v: Violations) -> None:
    """An epoch that a claim can have. Whether its generation is the ledger's own is for the ledger to say."""
    v.require(is_claim_epoch(epoch), field, "must have a generation and a revision of 1 or more")


def check_text(field: str, text: str, least: int, most: int, v: Violations) -> None:
    """A text that a row keeps. Refused here and not by the database: by then the claim is made."""
    v.length(field, text, least, most)
    v.require("\0" not in text, field, "must not have a NUL")


def check_no_id(field: str, name: str, v: Violations) -> None:
    """Where a name or an id may be given, no name may be read as an id, in whichever way UUIDs can be written."""
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


def check_task_id(request: Any, v: Violations) -> None:
    v.uuid("task_id", request.task_id)


def check_guarded(request: Any, v: Violations) -> None:
    check_token(request.token, v)


def check_watch(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.require(request.after_sequence >= 0, "after_sequence", "must not be negative")


def check_entries(request: Any, v: Violations) -> None:
    check_watch(request, v)
    v.between("page_size", request.page_size, 0, 1000)


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


def check_filter(wanted: task_pb2.TaskFilter, v: Violations) -> None:
    check_labels(wanted.labels, v, "filter.labels")
    if wanted.root_task_id:
        v.uuid("filter.root_task_id", wanted.root_task_id)
    if wanted.forked_from_task_id:
        v.uuid("filter.forked_from_task_id", wanted.forked_from_task_id)


def check_frame(items: str) -> Check:
    def check(request: Any, v: Violations) -> None:
        advice = "in a frame; send the rest in another frame"
        v.require(len(getattr(request, items)) <= MAX_FRAME_ITEMS, items, f"at most {MAX_FRAME_ITEMS} {advice}")
        v.require(request.ByteSize() <= MAX_FRAME_BYTES, items, f"at most {MAX_FRAME_BYTES} bytes {advice}")

    return check
