"""The history of an installation: the sources that the checks compare with each other.

A source that is None was not collected, and the checks that need it are reported as not run. An empty tuple is a
collected source without records. Unless stated otherwise, a source has the records of many tasks in any order.

`*_at` are Unix seconds by the clock of the store that wrote the record (Postgres sets the times of the ledger and of
the tool service); `*_monotonic` are seconds of the one monotonic clock that all clients of a run share.
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
from tenure.domain.outputs import TaskOutput
from tenure.domain.states import TaskState
from tenure.domain.tools import CallState, EffectClass, Outcome

# The logs of a run's clients: their requests, the answers, and the entries that watchers received.


class Method(StrEnum):
    """The kind of a client's request."""

    SUBMIT = "submit"
    GET = "get"
    CANCEL = "cancel"
    COMMIT = "commit"
    RESOLVE = "resolve"


class OperationResult(StrEnum):
    """The end of a client's call. FAILED: the request certainly had no effect. UNKNOWN: it may have had its effect."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of a client. The log of operations has all calls of all clients that write.

    `request_hash`: equal for equal payloads. `task_id`: "" if unknown. `reason`: the UPPER_SNAKE reason of a refusal.
    `sequence`, `state`, `result`, `seen_tenant`: of the task in the answer.
    COMMIT (only of loops outside of Tenure's worker): `fence` is the presented claim, `request_id` the commit_id,
    `body_hashes` the hashes of its entries in order, `sequence` the sequence in the answer.
    RESOLVE: `call_id` and `call_attempt` name the call in doubt.
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
    """One entry that a watcher received. `resync`: the server announced that it skipped the entries before it."""

    sequence: int
    body_hash: bytes = b""
    received_monotonic: float = 0.0
    resync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One WatchTask stream: its start, its entries in order, and whether the server ended it in order."""

    client: str
    task_id: str
    after_sequence: int = 0
    opened_monotonic: float = 0.0
    delivered: tuple[Delivered, ...] = ()
    ended: bool = False
    tenant: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """A task's row. Its entries were collected up to its `sequence`: read the row first, then the entries.

    `granted`: its newest registered grant, if known.
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
    outputs: tuple[TaskOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """An entry. `body`: None for an entry kind that this version does not know.

    `body_hash` is `collect.body_hash`: equal for bodies that are equal on the wire.
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
        """The claim under which the entry was written; epoch 0 for an entry without a claim."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim's key in etcd, from its creation to its deletion.

    `life`: numbers the lives of etcd; revisions are comparable only within one life. `generation`: from the claim's
    value. `last_revision`: of the last put of the key; a correct claim is put once. `deleted_revision`: None if the key
    existed at the end.
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
        """The epoch of the claim's fencing token."""
        return compose_epoch(self.generation, self.created_revision)

    @property
    def fence(self) -> Fence:
        """The claim as fences compare it."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """A put of the generation's key in etcd."""

    revision: int
    generation: int
    life: int = 0


class Guard(StrEnum):
    """The service that refused a stale write: the checkpoint service (LEDGER) or the tool service (TOOLS)."""

    LEDGER = "ledger"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRecord:
    """A write that a fence refused. Each service keeps the newest 500 of a task."""

    guard: Guard
    task_id: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str = ""
    refused_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFenceRecord:
    """The tool service's fence of a task, as of its newest raise or closing."""

    task_id: str
    epoch: int
    claim_id: str
    closed: bool = False
    changed_at: float = 0.0
    receipts: int = 0
    receipt_head: bytes = bytes(32)

    @property
    def fence(self) -> Fence:
        """The claim of the fence."""
        return Fence(self.epoch, self.claim_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """The tool service's call record.

    `epoch`, `claim_id`: the claim that authorised the call last. `runner_id`: "" if the call never ran.
    `outcome.content` may be missing in large collections: `outcome_hash` is `reading.outcome_hash` of the whole
    outcome. `receipt_number` 0: the call has no receipt. `idempotency_key`: of a call that ran under another key than
    `<task_id>/<call_id>`: with an effect key `<effect>-<period>-<round>`, of an undo `<task_id>/<call_id>/undo/…`.
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
    receipt_number: int = 0
    receipt_link: bytes = b""
    outcome_message_hash: bytes = b""
    idempotency_key: str = ""

    @property
    def has_effect_key(self) -> bool:
        """Whether the call ran under the idempotency key of an effect key."""
        return bool(self.idempotency_key) and "/" not in self.idempotency_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEffect:
    """An effect outside of the installation: a line in a file of the tool append_record.

    The line's idempotency key is `<task_id>/<call_id>`. `place` is "<file>:<line number>". `epoch`: as the call had it.
    """

    task_id: str
    call_id: str
    epoch: int
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledModelCall:
    """A request as the model provider saw and billed it. `answered`: the client could read the whole answer.

    `task_id`, `step`, `attempt_number`: as the worker sent them in a header; "" and 0 without the header.
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
    """A row of the ledger's bill: one settled model attempt. `lost`: a lost model call, whose usage is an estimate.

    `estimate`: the usage with which a lost model call was settled, if its worker reported `usage` later.
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
        """The usage in the entry that settled the attempt."""
        return self.usage if self.estimate is None else self.estimate

    @property
    def correction(self) -> TokenUsage:
        """The difference between the worker's later report and the estimate. Counts may be negative."""
        usage, settled = self.usage, self.settled_with
        return TokenUsage(
            usage.input_tokens - settled.input_tokens,
            usage.output_tokens - settled.output_tokens,
            usage.cache_creation_input_tokens - settled.cache_creation_input_tokens,
            usage.cache_read_input_tokens - settled.cache_read_input_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """A stop that all services had confirmed at `answered_at`, and that an operator began to end at `ended_at`.

    `ended_at` None: it is in force. Times: Unix seconds of the operator's clock. `tenant`, `queue`, `tool`: "" is each.
    """

    answered_at: float
    ended_at: float | None = None
    tenant: str = ""
    queue: str = ""
    tool: str = ""

    def __str__(self) -> str:
        named = (("tool", self.tool), ("queue", self.queue), ("tenant", self.tenant))
        return ", ".join(f"{kind} {name}" for kind, name in named if name) or "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRecord:
    """A rule with bounds that denies what is beyond them, without an expression and a window, for all of its tool.

    All replicas keep to it from `since` on, until an operator begins to delete it at `until`: Unix seconds.
    """

    name: str
    tenant: str
    tool: str
    since: float
    until: float | None = None
    count: int = 0
    sum_of: str = ""
    limit: str = ""
    per: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.count or 'any number of'} calls, {self.limit or 'any'} in total)"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All collected sources. `grants` are in the order in which etcd created them, over all its lives.

    `settled`: faults have stopped, and the run has waited long enough for every task to end or to wait.
    `healthy`: no fault was injected while `subscriptions` were open, so times of delivery can be checked.
    `clock_slack_seconds`: the largest difference between the clocks of services and of their database.
    `unix_minus_monotonic_seconds`: the difference between the database's clock and the clients' clock.
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
    stops: tuple[StopRecord, ...] | None = None
    bounds: tuple[BoundRecord, ...] | None = None
    settled: bool = False
    healthy: bool = False
    clock_slack_seconds: float = 0.0
    unix_minus_monotonic_seconds: float | None = None


# The part of a history that belongs to one task, sorted as the checks read it.

SOURCES: Final = tuple(
    field.name for field in fields(History) if field.name not in {"settled", "healthy", "clock_slack_seconds"}
)
FLAGS: Final = ("settled", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """The history of one task. The history with task_id "" has the records without a task.

    `collected`: the names of the collected sources and of the set flags. `entries` are sorted by sequence, `bills` and
    `model_calls` by step and attempt, `calls` by call id; `grants`, `effects`, `operations` and `subscriptions` keep
    their order. `lost_request_ids`: the request ids of submits without an answer.
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
    stops: tuple[StopRecord, ...] = ()
    bounds: tuple[BoundRecord, ...] = ()
    lost_request_ids: frozenset[str] = frozenset()
    clock_slack_seconds: float = 0.0
    unix_minus_monotonic_seconds: float | None = None


def collected_in(history: History) -> frozenset[str]:
    """Returns the names of the collected sources and of the set flags."""
    sources = {name for name in SOURCES if getattr(history, name) is not None}
    return frozenset(sources | {name for name in FLAGS if getattr(history, name)})


def split(history: History) -> Iterator[TaskHistory]:
    """Splits a history by task, in the order of task ids. The records without a task come first."""
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
        stops=tuple(part["stops"]),
        bounds=tuple(part["bounds"]),
        lost_request_ids=lost,
        clock_slack_seconds=whole.clock_slack_seconds,
        unix_minus_monotonic_seconds=whole.unix_minus_monotonic_seconds,
    )


def _newest(records: Iterable[Any]) -> Any:
    return next(reversed(list(records)), None)
