"""What was seen of an installation: the sources that the checks compare with each other.

Every source may be None: it was not collected, and the checks that need it are reported as not run. An empty tuple is
something else: collected, and nothing was there. Records are of many tasks, in any order, unless said otherwise.

`*_at` are Unix seconds by the clock of the store that wrote them (both stores' tables are stamped by their database);
`*_monotonic` are seconds of the one monotonic clock that all clients of a run share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.entries import Body
from tenure.domain.fencing import Fence, compose_epoch
from tenure.domain.states import TaskState
from tenure.domain.tools import CallState, EffectClass, Outcome

__all__ = [
    "Bill",
    "BilledModelCall",
    "BudgetSnapshot",
    "CallRecord",
    "Delivered",
    "GenerationChange",
    "Grant",
    "Guard",
    "History",
    "LedgerEntry",
    "Method",
    "ObservedEffect",
    "Operation",
    "OperationResult",
    "RefusalRecord",
    "Subscription",
    "TaskSnapshot",
    "ToolFenceRecord",
]


# What clients asked, what they were answered, and what watchers were told: the logs that a run's clients keep.


class Method(StrEnum):
    """What a client asked for."""

    SUBMIT = "submit"
    GET = "get"
    CANCEL = "cancel"
    COMMIT = "commit"
    RESOLVE = "resolve"


class OperationResult(StrEnum):
    """How a client's call ended. FAILED says that nothing was done; anything less clear is UNKNOWN."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of a client. The log of operations holds all calls of all clients that wrote.

    `request_hash`: equal for equal payloads. `task_id` "": not known. `reason`: of a refusal, UPPER_SNAKE.
    `sequence`, `state`, `result`, `seen_tenant`: of the task in the answer. COMMIT (own loops only): `fence`,
    `request_id` is the commit_id, `body_hashes` are those of its entries in order, `sequence` is that of the answer.
    `call_id`, `call_attempt`: what a word was about (RESOLVE).
    """

    client: str
    method: Method
    answer: OperationResult
    request_id: str = ""
    request_hash: bytes = b""
    tenant: str = "default"
    task_id: str = ""
    reason: str = ""
    sequence: int | None = None
    state: TaskState | None = None
    result: str | None = None
    seen_tenant: str = ""
    fence: Fence | None = None
    body_hashes: tuple[bytes, ...] = ()
    call_id: str = ""
    call_attempt: int = 0
    invoked_monotonic: float = 0.0
    returned_monotonic: float | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """One entry as a watcher got it. `resync`: the server said that what is before this sequence was left out."""

    sequence: int
    body_hash: bytes = b""
    received_monotonic: float = 0.0
    resync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One WatchTask stream: where it began, what it delivered in order, and whether the server ended it by itself."""

    client: str
    task_id: str
    after_sequence: int = 0
    opened_monotonic: float = 0.0
    delivered: tuple[Delivered, ...] = ()
    ended: bool = False
    tenant: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """A task's snapshot. The entries collected with it are those up to its `sequence`: read the row, then the entries.

    `granted`: its newest registered grant, where that is known.
    """

    task_id: str
    tenant: str
    state: TaskState
    sequence: int
    step: int = 0
    attempt: int = 1
    epoch: int = 0
    owner: str = ""
    claim_count: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    result: str = ""
    root_task_id: str = ""
    granted: Fence | None = None
    used_nano_usd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """An entry. `body` None: of a kind that this version does not know.

    `body_hash` is `from_wire.body_hash`: equal for what is equal on the wire.
    """

    task_id: str
    sequence: int
    body: Body | None
    step: int = 0
    epoch: int = 0
    claim_id: str = ""
    attempt: int = 1
    actor: str = ""
    recorded_at: float = 0.0
    body_hash: bytes = b""

    @property
    def fence(self) -> Fence:
        """The claim it was written under; epoch 0: none was needed."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One life of a claim's key in etcd. `life` counts etcd's own lives: revisions are comparable inside one only.

    `generation` is what the claim's value says. `last_revision`: of the last put of the key; a claim is put once.
    `deleted_revision` None: it was there at the end.
    """

    task_id: str
    claim_id: str
    generation: int
    created_revision: int
    last_revision: int = 0
    deleted_revision: int | None = None
    session_id: str = ""
    holder: str = ""
    life: int = 0

    @property
    def epoch(self) -> int:
        """The number its token has."""
        return compose_epoch(self.generation, self.created_revision)

    @property
    def fence(self) -> Fence:
        """What guards compare."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """A put of /tenure/generation."""

    revision: int
    generation: int
    life: int = 0


class Guard(StrEnum):
    """Who refuses stale callers."""

    LEDGER = "ledger"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRecord:
    """A stale call that a guard refused. Guards keep the newest 500 of a task."""

    guard: Guard
    task_id: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str = ""
    refused_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFenceRecord:
    """The tool service's fence of a task: its newest raise or closing."""

    task_id: str
    epoch: int
    claim_id: str
    closed: bool = False
    changed_at: float = 0.0

    @property
    def fence(self) -> Fence:
        """What it compares."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """The tool service's record of a call. `epoch`, `claim_id`: what last authorised it; `runner_id` "": nothing ran.

    `outcome.content` may be left out of large collections: `outcome_hash` is `from_wire.outcome_hash` of the whole.
    """

    task_id: str
    call_id: str
    tool: str
    effect_class: EffectClass
    state: CallState
    epoch: int
    claim_id: str = ""
    call_attempt: int = 1
    runner_id: str = ""
    arguments_hash: bytes = b""
    outcome: Outcome | None = None
    outcome_hash: bytes = b""
    accepted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEffect:
    """Something that happened outside, as the outside tells it: a line of append_record's file.

    Its key is `<task_id>/<call_id>`; `place` is "<file>:<line number>". `epoch` is what came along.
    """

    task_id: str
    call_id: str
    epoch: int
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledModelCall:
    """A request as the provider saw and billed it. `answered`: the client could read the answer to its end.

    `task_id`, `step`, `attempt_number` are what the worker called it; "" and 0: it did not say.
    """

    task_id: str
    step: int
    attempt_number: int
    request_id: str
    usage: TokenUsage = field(default_factory=TokenUsage)
    answered: bool = True
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSnapshot:
    """The budget of a root task."""

    root_task_id: str
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A row of the ledger's bill: one settled model attempt. `lost`: estimated, because its worker was gone.

    `estimate`: what a lost call was settled with, when its worker said later that it used `usage`.
    """

    task_id: str
    step: int
    attempt_number: int
    usage: TokenUsage
    root_task_id: str = ""
    epoch: int = 0
    model: str = ""
    provider_request_id: str = ""
    lost: bool = False
    settled_at: float = 0.0
    nano_usd: int = 0
    unpriced: bool = True
    estimate: TokenUsage | None = None

    @property
    def settled_with(self) -> TokenUsage:
        """As the entry says."""
        return self.usage if self.estimate is None else self.estimate

    @property
    def correction(self) -> TokenUsage:
        """What its own worker's report added; counts may be negative."""
        now, then = self.usage, self.settled_with
        return TokenUsage(
            now.input_tokens - then.input_tokens,
            now.output_tokens - then.output_tokens,
            now.cache_creation_input_tokens - then.cache_creation_input_tokens,
            now.cache_read_input_tokens - then.cache_read_input_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that is known. `grants` are in the order in which etcd made them, over all its lives.

    `settled`: faults have stopped, and the run has waited as long as it may take until every task stands still.
    `healthy`: no fault was injected while `subscriptions` were open; times of delivery may be judged.
    `clock_slack_seconds`: by how much the clocks of services may differ from their database's.
    `unix_minus_monotonic_seconds`: brings the clients' clock and the database's together.
    """

    tasks: tuple[TaskSnapshot, ...] | None = None
    entries: tuple[LedgerEntry, ...] | None = None
    budgets: tuple[BudgetSnapshot, ...] | None = None
    bills: tuple[Bill, ...] | None = None
    grants: tuple[Grant, ...] | None = None
    generations: tuple[GenerationChange, ...] | None = None
    refusals: tuple[RefusalRecord, ...] | None = None
    fences: tuple[ToolFenceRecord, ...] | None = None
    calls: tuple[CallRecord, ...] | None = None
    effects: tuple[ObservedEffect, ...] | None = None
    model_calls: tuple[BilledModelCall, ...] | None = None
    operations: tuple[Operation, ...] | None = None
    subscriptions: tuple[Subscription, ...] | None = None
    settled: bool = False
    healthy: bool = False
    clock_slack_seconds: float = 0.0
    unix_minus_monotonic_seconds: float | None = None


# One task's part of a history, in the order in which checks read it.

SOURCES: Final = tuple(
    field.name for field in fields(History) if field.name not in {"settled", "healthy", "clock_slack_seconds"}
)
FLAGS: Final = ("settled", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """What is known of one task; task_id "" has the records that name none.

    `collected`: the sources that were, and the flags that are set. `entries` are by sequence, `bills` and `model_calls`
    by step and attempt, `grants`, `effects`, `operations` and `subscriptions` as they came, `calls` by their ids.
    `lost_request_ids`: of submits whose answer nobody got.
    """

    task_id: str
    collected: frozenset[str]
    row: TaskSnapshot | None = None
    entries: tuple[LedgerEntry, ...] = ()
    budget: BudgetSnapshot | None = None
    bills: tuple[Bill, ...] = ()
    grants: tuple[Grant, ...] = ()
    generations: tuple[GenerationChange, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    fence: ToolFenceRecord | None = None
    calls: tuple[CallRecord, ...] = ()
    effects: tuple[ObservedEffect, ...] = ()
    model_calls: tuple[BilledModelCall, ...] = ()
    operations: tuple[Operation, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    lost_request_ids: frozenset[str] = frozenset()
    clock_slack_seconds: float = 0.0
    unix_minus_monotonic_seconds: float | None = None


def collected_in(history: History) -> frozenset[str]:
    """Which sources there are, and which flags are set."""
    sources = {name for name in SOURCES if getattr(history, name) is not None}
    return frozenset(sources | {name for name in FLAGS if getattr(history, name)})


def split(history: History) -> Iterator[TaskHistory]:
    """By task, in the order of their ids; first what names no task."""
    parts: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for name in SOURCES:
        records = getattr(history, name)
        if isinstance(records, tuple):
            for record in records:
                parts[_task_of(record)][name].append(record)
    collected = collected_in(history)
    lost = _lost_request_ids(history)
    for task_id in sorted(parts):
        yield _assemble(task_id, collected, parts[task_id], history, lost)


def _lost_request_ids(history: History) -> frozenset[str]:
    submits = (op for op in history.operations or () if op.method is Method.SUBMIT and not op.task_id)
    return frozenset(op.request_id for op in submits if op.answer is OperationResult.UNKNOWN)


def _task_of(record: object) -> str:
    if isinstance(record, BudgetSnapshot):
        return record.root_task_id
    return getattr(record, "task_id", "")


def _assemble(
    task_id: str, collected: frozenset[str], part: dict[str, list[Any]], whole: History, lost: frozenset[str]
) -> TaskHistory:
    return TaskHistory(
        task_id=task_id,
        collected=collected,
        row=_newest(part["tasks"]),
        entries=tuple(sorted(part["entries"], key=lambda entry: entry.sequence)),
        budget=_newest(part["budgets"]),
        bills=tuple(sorted(part["bills"], key=lambda bill: (bill.step, bill.attempt_number))),
        grants=tuple(part["grants"]),
        generations=tuple(part["generations"]),
        refusals=tuple(part["refusals"]),
        fence=_newest(part["fences"]),
        calls=tuple(sorted(part["calls"], key=lambda call: call.call_id)),
        effects=tuple(part["effects"]),
        model_calls=tuple(sorted(part["model_calls"], key=lambda call: (call.step, call.attempt_number))),
        operations=tuple(part["operations"]),
        subscriptions=tuple(part["subscriptions"]),
        lost_request_ids=lost,
        clock_slack_seconds=whole.clock_slack_seconds,
        unix_minus_monotonic_seconds=whole.unix_minus_monotonic_seconds,
    )


def _newest(records: Iterable[Any]) -> Any:
    return next(reversed(list(records)), None)
