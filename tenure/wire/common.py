"""Converts durations, timestamps and enums, errors inside stream frames, and messages to JSON.

An enum value that only a newer peer knows becomes the default, if the contract has one, and raises ValueError if not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.effect_keys import EffectScope, OnRepeat
from tenure.domain.errors import TenureError
from tenure.domain.model_parameters import Effort
from tenure.domain.outputs import OutputState
from tenure.domain.repeated_effects import EffectFact
from tenure.domain.retry import Jitter
from tenure.domain.states import TaskState
from tenure.domain.task import (
    BudgetPolicy,
    FailurePolicy,
    InDoubtPolicy,
    LeaseLostPolicy,
    MoneyCap,
    NoProgressPolicy,
    Priority,
    SourceKind,
)
from tenure.domain.timeouts import TimeoutAction
from tenure.domain.tools import CallState, EffectClass, OutcomeStatus, ToolSourceKind
from tenure.domain.waits import WaitAnswerKind, WaitDeadlinePolicy, WaitKind
from tenure.runtime.rpc import status as rpc_status
from tenure.v1 import ledger_pb2, task_pb2, token_pb2, tool_pb2

# Durations and timestamps.

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def duration(seconds: float) -> Duration:
    """Returns seconds, to the microsecond, as a Duration. `FromTimedelta` does the same in three times the time."""
    whole, microseconds = divmod(round(abs(seconds) * 1_000_000), 1_000_000)
    sign = 1 if seconds >= 0 else -1
    return Duration(seconds=sign * whole, nanos=sign * 1000 * microseconds)


def seconds(message: Duration) -> float:
    """Returns a Duration in seconds."""
    return message.seconds + message.nanos / 1e9


def timestamp(moment: datetime) -> Timestamp:
    """Returns a moment with a time zone as a Timestamp. `FromDatetime` does the same in three times the time."""
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000)


def optional_timestamp(moment: datetime | None) -> Timestamp | None:
    """Returns a moment as a Timestamp, and None for None."""
    return None if moment is None else timestamp(moment)


def unix_seconds(message: Timestamp) -> float:
    """Returns a Timestamp in seconds since 1970."""
    return message.seconds + message.nanos / 1e9


def moment(message: Timestamp) -> datetime:
    """Returns a Timestamp as a moment in UTC."""
    return message.ToDatetime(tzinfo=UTC)


D = TypeVar("D", bound=Enum)
P = TypeVar("P", bound=int)


class _Numbers(dict[int, D]):
    """The domain values of an enum by their numbers."""

    default: D | None

    def __missing__(self, number: int) -> D:
        if self.default is None:
            raise ValueError(f"value {number} is unspecified or unknown")
        return self.default


class EnumMap(Generic[D, P]):
    """Maps one enum between the wire and the domain: PREFIX_NAME on the wire is NAME in the domain.

    A test checks that both sides have the same names. `default`: the domain value of unspecified and unknown numbers.
    `to_domain` raises ValueError for an unspecified or unknown number without a default.
    """

    of: Final[dict[type[Enum], EnumMap[Any, Any]]] = {}

    def __init__(self, domain: type[D], values: dict[str, P], prefix: str, default: D | None) -> None:
        wire = {member: values[f"{prefix}_{member.name}"] for member in domain}
        self._numbers = _Numbers({int(number): member for member, number in wire.items()})
        self._numbers.default = default
        self.to_wire: Callable[[D], P] = wire.__getitem__
        self.to_domain: Callable[[int], D] = self._numbers.__getitem__
        EnumMap.of[domain] = self

    def find(self, number: int) -> D | None:
        """Returns the domain value; for an unspecified or unknown number, the default or None."""
        return self._numbers.get(number, self._numbers.default)


STATES = EnumMap(TaskState, dict(task_pb2.TaskState.items()), "TASK_STATE", None)
PRIORITIES = EnumMap(Priority, dict(task_pb2.Priority.items()), "PRIORITY", Priority.NORMAL)
SOURCES = EnumMap(SourceKind, dict(task_pb2.SourceKind.items()), "SOURCE_KIND", SourceKind.MANUAL)
LEASE_LOST = EnumMap(
    LeaseLostPolicy, dict(task_pb2.LeaseLostPolicy.items()), "LEASE_LOST_POLICY", LeaseLostPolicy.RESUME
)
IN_DOUBT = EnumMap(
    InDoubtPolicy, dict(task_pb2.InDoubtPolicy.items()), "IN_DOUBT_POLICY", InDoubtPolicy.WAIT_FOR_PERSON
)
ON_BUDGET = EnumMap(BudgetPolicy, dict(task_pb2.BudgetPolicy.items()), "BUDGET_POLICY", BudgetPolicy.END)
EFFORTS = EnumMap(Effort, dict(task_pb2.Effort.items()), "EFFORT", None)
NO_PROGRESS = EnumMap(
    NoProgressPolicy, dict(task_pb2.NoProgressPolicy.items()), "NO_PROGRESS_POLICY", NoProgressPolicy.END
)
ON_FAILURE = EnumMap(FailurePolicy, dict(task_pb2.FailurePolicy.items()), "FAILURE_POLICY", FailurePolicy.KEEP)
MONEY_CAPS = EnumMap(MoneyCap, dict(task_pb2.MoneyCap.items()), "MONEY_CAP", None)
OUTPUT_STATES = EnumMap(OutputState, dict(tool_pb2.OutputState.items()), "OUTPUT_STATE", OutputState.STATED)
EFFECT_CLASSES = EnumMap(EffectClass, dict(tool_pb2.EffectClass.items()), "EFFECT_CLASS", EffectClass.UNSAFE)
EFFECT_SCOPES = EnumMap(EffectScope, dict(tool_pb2.EffectScope.items()), "EFFECT_SCOPE", EffectScope.TASK)
EFFECT_FACTS = EnumMap(EffectFact, dict(tool_pb2.EffectFact.items()), "EFFECT_FACT", None)
ON_REPEAT = EnumMap(OnRepeat, dict(tool_pb2.OnRepeat.items()), "ON_REPEAT", OnRepeat.RETURN)
TOOL_SOURCES = EnumMap(ToolSourceKind, dict(tool_pb2.ToolSourceKind.items()), "TOOL_SOURCE_KIND", None)
OUTCOME_STATUSES = EnumMap(OutcomeStatus, dict(tool_pb2.OutcomeStatus.items()), "OUTCOME_STATUS", OutcomeStatus.FAILED)
WAIT_KINDS = EnumMap(WaitKind, dict(task_pb2.WaitKind.items()), "WAIT_KIND", None)
WAIT_DEADLINES = EnumMap(
    WaitDeadlinePolicy,
    dict(task_pb2.WaitDeadlinePolicy.items()),
    "WAIT_DEADLINE_POLICY",
    WaitDeadlinePolicy.TIME_OUT,
)
WAIT_ANSWERS = EnumMap(WaitAnswerKind, dict(ledger_pb2.WaitAnswerKind.items()), "WAIT_ANSWER_KIND", None)
JITTERS = EnumMap(Jitter, dict(task_pb2.Jitter.items()), "JITTER", Jitter.FULL)
TIMEOUT_ACTIONS = EnumMap(TimeoutAction, dict(task_pb2.TimeoutAction.items()), "TIMEOUT_ACTION", None)
CALL_STATES = EnumMap(CallState, dict(tool_pb2.CallState.items()), "CALL_STATE", None)


def state_name(number: int) -> str:
    """Returns the name of a state, for people: "" for unspecified, STATE_<n> for a state of a newer peer."""
    if number == task_pb2.TASK_STATE_UNSPECIFIED:
        return ""
    try:
        return STATES.to_domain(number).value
    except ValueError:
        return f"STATE_{number}"


# Domain errors inside stream frames: a gRPC status would end the stream for the other tasks in it.


def refusal_to_wire(error: TenureError) -> token_pb2.Refusal:
    plain = rpc_status.to_plain(error)
    return token_pb2.Refusal(code=plain.code, reason=plain.reason, message=plain.message, metadata=plain.metadata)


def refusal_to_domain(refusal: token_pb2.Refusal) -> TenureError | rpc_status.PeerFailed:
    """Returns the error to raise. PeerFailed means a bug of the peer."""
    return rpc_status.from_plain(refusal.code, refusal.reason, refusal.message, dict(refusal.metadata))


# Messages as JSON, for the output of the command line and for webhooks.


def to_dict(message: Message) -> dict[str, Any]:
    """Returns a message as JSON with the field names of the contract, including zeros and empty strings."""
    return MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        unquote_int64_if_possible=True,
    )


def held_back_seconds(task: task_pb2.Task, now: float) -> float | None:
    """Returns how long a task's start_time still keeps it from workers, or None when it does not. `now`: Unix time.

    start_time applies only before the first claim of the first attempt: a later return to the queue is not a start.
    """
    left = task.spec.start_time.seconds + task.spec.start_time.nanos / 1e9 - now
    not_begun = task.state == task_pb2.TASK_STATE_QUEUED and task.attempt == 1 and not task.claim_count
    return left if not_begun and left > 0 else None
