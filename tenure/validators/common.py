"""Checks across fields that several services share, and the bounds that senders keep to.

The bounds of single fields are options in protos/; `rules.py` checks them before these functions run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.fencing import is_claim_epoch
from tenure.domain.search import MAX_SEARCHED_WORDS, words_of
from tenure.domain.task_ids import MIN_PREFIX_DIGITS, id_range
from tenure.domain.tool_arguments import storable_json
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import ledger_pb2, task_pb2, token_pb2, tool_service_pb2
from tenure.validators.rules import Violations, bounds, message_bytes
from tenure.wire.common import seconds

Check = Callable[[Any, Violations], None]

MAX_GOAL_BYTES: Final[int] = bounds(task_pb2.TaskSpec, "goal").max_bytes
MIN_WINDOW_TOKENS: Final = 1024
MAX_WINDOW_TOKENS: Final = 10_000_000
MIN_OUTPUT_BYTES: Final = 1024
MAX_ALLOWED_TOOLS_BYTES: Final = 16 * 1024  # of all names: the claim record in etcd and each token contain them
MAX_TRANSITION_MESSAGE: Final[int] = bounds(checkpoint.Transition, "message").max_length
MAX_COMMIT_BYTES: Final = message_bytes(checkpoint.CommitRequest)
MAX_ARGUMENT_BYTES: Final[int] = bounds(tool_service_pb2.ExecuteRequest, "arguments_json").max_bytes
MAX_FRAME_ITEMS: Final[int] = bounds(checkpoint.CommitStreamRequest, "commits").max_items
MAX_FRAME_BYTES: Final = message_bytes(checkpoint.CommitStreamRequest)
MAX_CONTROL_JSON_BYTES: Final[int] = bounds(task_pb2.ControlWork, "input_json").max_bytes
MAX_WAIT_SECONDS: Final = 600
MAX_CHOICES: Final[int] = bounds(coordinator.Hello, "queues").max_items
MAX_ID_CHARACTERS: Final[int] = bounds(coordinator.Hello, "session_id").max_length

_LAST_SECOND = 32_503_680_000
"""The year 3000."""


def check_not_blank(field: str, text: str, v: Violations) -> None:
    """Checks a goal or a message for an agent: model providers refuse a blank text."""
    v.require(bool(text.strip()), field, "must not be blank")


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
    """Requires a time from 1970 to 3000."""
    v.require(0 <= moment.seconds < _LAST_SECOND, field, "must be a time from 1970 to 3000")


def check_claim_epoch(field: str, epoch: int, v: Violations) -> None:
    """Requires an epoch that a claim can have. The ledger itself checks that the generation is its own."""
    v.require(is_claim_epoch(epoch), field, "must have a generation and a revision of 1 or more")


def check_no_id(field: str, name: str, v: Violations) -> None:
    """Requires a name that is not a UUID in any notation, for requests that accept a name or an id."""
    with suppress(ValueError):
        UUID(name)
        v.require(holds=False, field=field, description="must not be a UUID")


def check_token(token: token_pb2.FencingToken, v: Violations, field: str = "token") -> None:
    v.require(bool(token.claims and token.key_id and token.signature), field, "must be a signed fencing token")


def check_guarded(request: Any, v: Violations) -> None:
    check_token(request.token, v)


_ENTRY_KINDS: Final = frozenset(field.name for field in ledger_pb2.EntryBody.DESCRIPTOR.fields)


def check_entries(request: Any, v: Violations) -> None:
    for kind in request.kinds:
        v.require(kind in _ENTRY_KINDS, "kinds", f"{kind!r} is not a field of EntryBody")


def check_list(request: Any, v: Violations) -> None:
    check_filter(request.filter, v)


def check_filter(task_filter: task_pb2.TaskFilter, v: Violations) -> None:
    check_source_fields(task_filter.source, v, "filter.source")
    if task_filter.HasField("output"):
        wanted = task_filter.output
        v.require(bool(wanted.kind or wanted.uri_prefix), "filter.output", "must have a kind or a uri_prefix")
    v.require(bool(task_filter.agent) or not task_filter.agent_revision, "filter.agent_revision", "needs an agent")
    for field in ("created_since", "created_before", "ended_since", "ended_before"):
        if task_filter.HasField(field):
            check_moment(f"filter.{field}", getattr(task_filter, field), v)
    for field in ("min_duration", "max_duration"):
        v.require(seconds(getattr(task_filter, field)) >= 0, f"filter.{field}", "must not be below 0")
    if task_filter.task_id_prefix and id_range(task_filter.task_id_prefix) is None:
        v.require(
            holds=False,
            field="filter.task_id_prefix",
            description=f"must have {MIN_PREFIX_DIGITS} to 32 hexadecimal digits",
        )
    words = words_of(task_filter.text)
    v.require(bool(words) or not task_filter.text, "filter.text", "must have a letter or a digit")
    v.require(len(words) <= MAX_SEARCHED_WORDS, "filter.text", f"must have at most {MAX_SEARCHED_WORDS} words")


def check_source_fields(source: Any, v: Violations, field: str) -> None:
    """Checks a Source, or a SourceFilter, which has the same fields."""
    v.require(bool(source.source_id) or not source.source_run_id, f"{field}.source_run_id", "needs a source_id")


def check_frame(items: str) -> Check:
    problem = f"at most {MAX_FRAME_BYTES} bytes in a frame; send the rest in another frame"

    def check(_request: Any, v: Violations) -> None:
        v.require(v.size <= MAX_FRAME_BYTES, items, problem)

    return check
