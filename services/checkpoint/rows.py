"""The rows of a task: each column once, with its type and the statements that read and write it.

The statement `lock` reads TaskRow and BudgetRow, `tasks_by_id` reads ShownTask. `create_tasks` writes NewTaskRow,
`write` what is Stepped, `advance` the part that is Advanced, `move` what is Moved; see columns.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from services.checkpoint.columns import (
    ADVANCE,
    MOVE,
    STEP,
    Added,
    Advanced,
    Jsonb,
    Moved,
    RowArrays,
    Stepped,
    Unlisted,
    Uuid,
    select_list,
)
from tenure.domain.admission import FenceRow
from tenure.domain.budget import Budget, Prices, TokenUsage, due_warnings
from tenure.domain.close_out import OwnerDeaths, PendingEnding
from tenure.domain.fencing import Fence
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import TaskPolicy
from tenure.v1 import task_pb2
from tenure.wire.codec import writer
from tenure.wire.task import policy_to_domain, prices_to_domain


@dataclass(slots=True)
class ReadColumns:
    """The columns that both TaskRow and ShownTask read."""

    task_id: Uuid
    tenant: str
    root_task_id: Uuid
    parent_task_id: Uuid | None
    state: Moved[TaskState]
    reason: Moved[str]
    message: Moved[str]
    attempt: Moved[int]
    epoch: Moved[int]
    owner: Moved[str]
    claim_count: Moved[int]
    sequence: Advanced[int]
    step: Advanced[int]
    input_tokens: Stepped[int]
    output_tokens: Stepped[int]
    cache_creation_input_tokens: Stepped[int]
    cache_read_input_tokens: Stepped[int]
    used_nano_usd: Stepped[int]
    ending_state: Moved[str]
    next_retry_at: Moved[datetime | None]
    deadline_at: datetime
    wait: Moved[bytes]
    calls_in_doubt: Moved[tuple[str, ...]]
    exclusive_source: str | None
    source_at_most: int

    def __post_init__(self) -> None:
        """Converts the texts and lists of the database to domain types."""
        self.state = TaskState(self.state)
        self.calls_in_doubt = tuple(self.calls_in_doubt)

    @property
    def in_line(self) -> bool:
        """Whether the task is queued and waits in the line of its source."""
        return self.source_at_most > 0 and self.exclusive_source is None and self.state is TaskState.QUEUED


@dataclass(slots=True)
class ShownTask(ReadColumns):
    """A task as callers see it. `submitted`: the body of its first entry, `outputs`: their bodies."""

    result: bytes
    result_json: bytes
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    forked_from_task_id: Uuid | None
    forked_from_sequence: int | None
    depth: int
    spawn_call_id: str
    spawn_index: int
    queue: str
    priority: int
    submitted: Unlisted[bytes]
    outputs: Unlisted[list[bytes]]
    budget: Unlisted[Budget]


@dataclass(slots=True)
class TaskRow(ReadColumns):
    """A locked task. Drafts change it in memory and write it back.

    `stopped`: a stop of an operator covers it. `calls_at_lock`: the columns of its calls when it was locked.
    """

    max_steps: Moved[int]
    on_lease_lost: str
    has_result_schema: bool
    policy: bytes
    own_max_tokens: Moved[int]
    own_max_nano_usd: Moved[int]
    claim_id: Moved[str]
    holds: Moved[bool]
    granted: int
    granted_claim: str
    deaths: Advanced[int]
    dead_owners: Moved[tuple[str, ...]]
    commit_number: Advanced[int]
    last_commit_id: Advanced[str]
    last_commit_hash: Advanced[bytes]
    last_reply: Advanced[bytes]
    last_base: Advanced[int]
    open_calls: Stepped[tuple[str, ...]]
    model_open: Stepped[bool]
    model_step: Stepped[int]
    model_attempt: Stepped[int]
    model_name: Stepped[str]
    model_input: Stepped[int]
    model_output: Stepped[int]
    model_outlives: Stepped[bool]
    model_nano_usd: Stepped[int]
    model_prices: Stepped[bytes]
    ending_reason: Moved[str]
    ending_message: Moved[str]
    ending_actor: Moved[str]
    ending_result: Moved[bytes]
    ending_at: Moved[datetime | None]
    wait_deadline_at: Moved[datetime | None]
    wait_step_at: Moved[datetime | None]
    wait_correlation: Moved[str]
    waiting_since: Moved[datetime | None]
    timeout_retries: Moved[int]
    queued_at: datetime | None
    queued_until: Moved[datetime | None]
    sub_agents: int
    operator_wait: Moved[bytes]
    ledger_bytes: Advanced[int]
    locked_at: Unlisted[datetime]
    stopped: Unlisted[bool]
    calls_at_lock: Unlisted[tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Converts the texts and lists of the database to domain types."""
        ReadColumns.__post_init__(self)
        self.open_calls = tuple(self.open_calls)
        self.dead_owners = tuple(self.dead_owners)
        self.calls_at_lock = _of_calls(self)

    @property
    def only_advanced(self) -> bool:
        """Whether no column of model calls, of tool calls or of their usage has changed since the row was locked."""
        return _of_calls(self) == self.calls_at_lock

    @property
    def fence(self) -> FenceRow:
        """The fence and the last commit, as admission needs them."""
        return FenceRow(  # with positional arguments: each commit makes one
            self.state,
            Fence(self.epoch, self.claim_id),
            self.holds,
            Fence(self.granted, self.granted_claim),
            self.commit_number,
            self.last_commit_id,
            self.last_commit_hash,
        )

    @property
    def ending(self) -> PendingEnding | None:
        """The pending ending, or None."""
        if not self.ending_state:
            return None
        return PendingEnding(
            TaskState(self.ending_state),
            self.ending_reason,
            self.ending_message,
            self.ending_actor,
            self.ending_result.decode(),
        )

    @property
    def task_policy(self) -> TaskPolicy:
        """The task's policy."""
        return policy_to_domain(task_pb2.TaskPolicy.FromString(self.policy))

    @property
    def died(self) -> OwnerDeaths:
        """The deaths of the task's owners since its newest step."""
        return OwnerDeaths(self.deaths, self.dead_owners)

    def count_death(self, owner: str) -> None:
        """Counts the death of an owner."""
        died = self.died.and_of(owner)
        self.deaths, self.dead_owners = died.count, died.owners

    @property
    def model_reserved(self) -> int:
        """The tokens that the open model attempt has reserved."""
        return self.model_input + self.model_output if self.model_open else 0

    @property
    def prices(self) -> Prices | None:
        """The prices of the newest model attempt; None: unknown."""
        return prices_to_domain(task_pb2.ModelPrices.FromString(self.model_prices)) if self.model_prices else None

    @property
    def has_own_caps(self) -> bool:
        """Whether the task has caps of its own beside those of its root."""
        return bool(self.own_max_tokens or self.own_max_nano_usd)

    @property
    def own_budget(self) -> Budget:
        """The budget of the task itself, with no model attempt open."""
        usage = self.input_tokens + self.output_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens
        return Budget(self.own_max_tokens, usage, 0, self.own_max_nano_usd, self.used_nano_usd, 0)

    def raise_own_caps(self, tokens: int, nano_usd: int) -> None:
        """Raises the task's own caps, where it has any."""
        self.own_max_tokens += tokens if self.own_max_tokens else 0
        self.own_max_nano_usd += nano_usd if self.own_max_nano_usd else 0

    def add_usage(self, usage: TokenUsage, nano_usd: int) -> None:
        """Adds the usage of a settled model attempt."""
        self.used_nano_usd += nano_usd
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_creation_input_tokens += usage.cache_creation_input_tokens
        self.cache_read_input_tokens += usage.cache_read_input_tokens


@dataclass(slots=True)
class BudgetRow:
    """The locked budget of a root, shared by all its tasks of one transaction.

    `is_default_cap`: no submit asked for the cap in money. `is_first_unpriced`: the transaction settles the first call
    without a price under a cap in money. `beyond_*`: by how much the calls that the transaction settles exceed their
    reservations.
    """

    max_tokens: Stepped[int]
    used_tokens: Stepped[int]
    reserved_tokens: Stepped[int]
    max_nano_usd: Stepped[int]
    is_default_cap: bool
    used_nano_usd: Stepped[int]
    reserved_nano_usd: Stepped[int]
    unpriced_calls: Stepped[int]
    warned_tokens: Stepped[int]
    warned_nano_usd: Stepped[int]
    root_task_id: Unlisted[Uuid]
    changed: Unlisted[bool] = False
    raised: Unlisted[bool] = False
    beyond_tokens: Unlisted[Stepped[Added[int]]] = 0
    beyond_nano_usd: Unlisted[Stepped[Added[int]]] = 0
    is_first_unpriced: Unlisted[bool] = False

    @property
    def budget(self) -> Budget:
        """The budget as a domain value."""
        return Budget(
            self.max_tokens,
            self.used_tokens,
            self.reserved_tokens,
            self.max_nano_usd,
            self.used_nano_usd,
            self.reserved_nano_usd,
            self.unpriced_calls,
        )

    @property
    def shown(self) -> task_pb2.BudgetStatus:
        """The budget as callers see it. It is made of the row itself: each commit shows it."""
        return _shown_budget(self)

    def reserve(self, tokens: int, nano_usd: int) -> None:
        """Reserves tokens and money."""
        self.reserved_tokens += tokens
        self.reserved_nano_usd += nano_usd
        self.changed = True

    def raise_caps(self, tokens: int, nano_usd: int = 0) -> None:
        """Raises the caps. A budget without a money cap gets none."""
        self.max_tokens += tokens
        self.max_nano_usd += nano_usd if self.max_nano_usd else 0
        self.changed = self.raised = True

    def take_warnings(self) -> list[str]:
        """Returns the caps that need a warning, and marks them as warned.

        MODEL_UNPRICED: the cap in money does not hold for a call that was made.
        """
        due = due_warnings(self.budget, self.warned_tokens, self.warned_nano_usd)
        if Reason.TOKEN_LIMIT in due:
            self.warned_tokens = self.max_tokens
        if Reason.MONEY_LIMIT in due:
            self.warned_nano_usd = self.max_nano_usd
        if self.is_first_unpriced:
            self.is_first_unpriced = False
            due.append(Reason.MODEL_UNPRICED)
        return due

    def give_back(self, tokens: int, nano_usd: int) -> None:
        """Frees a reservation."""
        self.reserved_tokens -= tokens
        self.reserved_nano_usd -= nano_usd
        self.changed = True

    def use(self, tokens: int, nano_usd: int, *, unpriced: bool) -> None:
        """Adds what a call used and cost."""
        self.used_tokens += tokens
        self.used_nano_usd += nano_usd
        self.is_first_unpriced |= unpriced and not self.unpriced_calls and bool(self.max_nano_usd)
        self.unpriced_calls += unpriced
        self.changed = True

    def count_beyond(self, tokens: int, nano_usd: int) -> None:
        """Counts by how much a call exceeds its reservation; values below 0 count as 0. See 0003_budgets.sql for
        the reason.
        """
        self.beyond_tokens += max(0, tokens)
        self.beyond_nano_usd += max(0, nano_usd)


class NewTaskRow(NamedTuple):
    """A task to insert. All others of its columns have their defaults, or follow from its start."""

    task_id: Uuid
    root_task_id: Uuid
    parent_task_id: Uuid | None
    depth: int
    spawn_call_id: str
    spawn_index: int
    tenant: str
    request_id: str
    request_hash: bytes
    reason: str
    message: str
    queue: str
    priority: int
    loop: str
    tools: tuple[str, ...] | None
    labels: Jsonb
    max_steps: int
    on_lease_lost: str
    exclusive_source: str | None
    source_at_most: int
    debounced_since: datetime | None
    source_kind: str
    source_id: str
    source_run_id: str
    has_result_schema: bool
    policy: bytes
    own_max_tokens: int
    own_max_nano_usd: int
    agent: str
    agent_revision: int


_shown_budget: Final = writer(
    BudgetRow,
    task_pb2.BudgetStatus,
    skip="is_default_cap warned_tokens warned_nano_usd root_task_id changed raised beyond_tokens beyond_nano_usd "
    "is_first_unpriced",
)


class NewEntryRow(NamedTuple):
    """An entry to insert."""

    task_id: Uuid
    sequence: int
    tenant: str
    epoch: int
    claim_id: str
    attempt: int
    step: int
    kind: int
    actor: str
    body: bytes


class BillRow(NamedTuple):
    """The bill of a settled model attempt."""

    task_id: Uuid
    step: int
    attempt_number: int
    tenant: str
    root_task_id: Uuid
    epoch: int
    model: str
    provider_request_id: str
    lost: bool
    nano_usd: int
    unpriced: bool
    usage: TokenUsage


NEW_TASKS: Final = RowArrays("new", NewTaskRow)
STEPS: Final = RowArrays("steps", TaskRow, mark=STEP, key="task_id")
ADVANCES: Final = RowArrays("advances", TaskRow, mark=ADVANCE, key="task_id")
MOVES: Final = RowArrays("moves", TaskRow, mark=MOVE, key="task_id")
ENTRIES: Final = RowArrays("entries", NewEntryRow, prefix="entry_")
BILLS: Final = RowArrays("bills", BillRow, prefix="bill_")
BUDGETS: Final = RowArrays("budgets", BudgetRow, mark=STEP, key="root_task_id", prefix="budget_")
_of_calls: Final = STEPS.values_beyond(ADVANCES)
PARTS: Final = {
    **{
        name: sql
        for arrays in (NEW_TASKS, STEPS, ADVANCES, MOVES, ENTRIES, BILLS, BUDGETS)
        for name, sql in arrays.parts.items()
    },
    "locked": select_list(TaskRow, "held"),
    "locked_budget": select_list(BudgetRow, "money"),
    "shown": select_list(ShownTask, "t"),
    "budget": select_list(Budget, "b"),
}
"""The places of these names in sql/queries.sql."""
