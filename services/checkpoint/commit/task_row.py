"""The row of a task as it stands under its lock, and the budget of its root. Changed in memory, then written back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.queries import QUERIES, fetch_all
from tenure.domain.admission import FenceRow
from tenure.domain.budget import Budget, TokenUsage, due_warnings
from tenure.domain.close_out import PendingEnding
from tenure.domain.crash_loop import OwnerDeaths
from tenure.domain.fencing import Fence
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import Wait
from tenure.v1 import task_pb2
from tenure.wire.common import timestamp
from tenure.wire.task import policy_to_domain, prices_to_domain, wait_to_domain, wait_to_wire

if TYPE_CHECKING:
    from collections.abc import Collection

    from tenure.domain.budget import Prices
    from tenure.domain.task import TaskPolicy
    from tenure.runtime.postgres import Connection


# The wait in a task's row: there from the transition that begins it to the next one.


def begin_wait(row: TaskRow, wait: Wait, sequence: int) -> task_pb2.Wait:
    """The wait as the transition with this sequence tells it; the row has it from now on."""
    kept = wait_to_wire(wait)
    kept.wait_id = f"w{sequence}"
    timeout_seconds = row.task_policy.timeouts.wait_seconds(wait.kind, wait.timeout_seconds)
    left_seconds = max(0.0, timeout_seconds - wait.elapsed_seconds)
    row.wait_deadline_at = row.locked_at + timedelta(seconds=left_seconds)
    kept.begin_time.CopyFrom(timestamp(row.locked_at))
    kept.deadline_time.CopyFrom(timestamp(row.wait_deadline_at))
    row.wait = kept.SerializeToString()
    row.wait_correlation = wait.correlation_id
    return kept


def shown_wait(row_wait: bytes) -> task_pb2.Wait | None:
    """The wait as callers see it; one that an earlier version began gets its digest here."""
    if not row_wait:
        return None
    kept = task_pb2.Wait.FromString(row_wait)
    if kept.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL and not kept.call_digest:
        kept.call_digest = wait_to_domain(kept).call_digest
    return kept


def current_wait(row: TaskRow) -> Wait | None:
    """What the task waits for."""
    return wait_to_domain(task_pb2.Wait.FromString(row.wait)) if row.wait else None


@dataclass(slots=True)
class TaskRow:
    """A task under its lock. The fields and their order are those of the statement `lock`."""

    locked_at: datetime
    task_id: str
    tenant: str
    root_task_id: str
    max_steps: int
    on_lease_lost: str
    state: TaskState
    reason: str
    message: str
    attempt: int
    epoch: int
    claim_id: str
    holds: bool
    owner: str
    granted: int
    granted_claim: str
    claim_count: int
    deaths: int
    dead_owners: tuple[str, ...]
    commit_number: int
    last_commit_id: str
    last_commit_hash: bytes
    last_reply: bytes
    last_base: int
    sequence: int
    step: int
    open_calls: tuple[str, ...]
    model_open: bool
    model_step: int
    model_attempt: int
    model_name: str
    model_input: int
    model_output: int
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    ending_state: str
    ending_reason: str
    ending_message: str
    ending_actor: str
    ending_result: bytes
    ending_at: datetime | None
    next_retry_at: datetime | None
    deadline_at: datetime
    wait: bytes
    wait_deadline_at: datetime | None
    wait_correlation: str
    waiting_since: datetime | None
    has_result_schema: bool
    policy: bytes
    timeout_retries: int
    queued_until: datetime | None
    used_nano_usd: int
    model_nano_usd: int
    model_prices: bytes
    own_max_tokens: int
    own_max_nano_usd: int
    parent_task_id: str | None
    sub_agents: int
    calls_in_doubt: tuple[str, ...]

    def __post_init__(self) -> None:
        """What the database gives as text and list becomes what the rules speak of."""
        self.state = TaskState(self.state)
        self.open_calls = tuple(self.open_calls)
        self.dead_owners = tuple(self.dead_owners)
        self.calls_in_doubt = tuple(self.calls_in_doubt)

    @property
    def fence(self) -> FenceRow:
        """What the ledger's door asks."""
        return FenceRow(
            state=self.state,
            opened=Fence(self.epoch, self.claim_id),
            holds=self.holds,
            granted=Fence(self.granted, self.granted_claim),
            commit_number=self.commit_number,
            last_commit_id=self.last_commit_id,
            last_commit_hash=self.last_commit_hash,
        )

    @property
    def ending(self) -> PendingEnding | None:
        """The pending ending."""
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
        """What to do when things go wrong."""
        return policy_to_domain(task_pb2.TaskPolicy.FromString(self.policy))

    @property
    def died(self) -> OwnerDeaths:
        """The deaths of its owners since its newest step."""
        return OwnerDeaths(self.deaths, self.dead_owners)

    def count_death(self, owner: str) -> None:
        """One more."""
        died = self.died.and_of(owner)
        self.deaths, self.dead_owners = died.count, died.owners

    @property
    def model_reserved(self) -> int:
        """What the open attempt has set aside, in tokens."""
        return self.model_input + self.model_output if self.model_open else 0

    @property
    def prices(self) -> Prices | None:
        """What the newest attempt is charged by; None: unknown."""
        return prices_to_domain(task_pb2.ModelPrices.FromString(self.model_prices)) if self.model_prices else None

    @property
    def own_budget(self) -> Budget:
        """What the task may use by itself, with no attempt open."""
        usage = self.input_tokens + self.output_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens
        return Budget(self.own_max_tokens, usage, 0, self.own_max_nano_usd, self.used_nano_usd, 0)

    def raise_own_caps(self, tokens: int, nano_usd: int) -> None:
        """Allow the task itself so much more, where it has caps of its own."""
        self.own_max_tokens += tokens if self.own_max_tokens else 0
        self.own_max_nano_usd += nano_usd if self.own_max_nano_usd else 0

    def add_usage(self, usage: TokenUsage, nano_usd: int) -> None:
        """Count a settled attempt."""
        self.used_nano_usd += nano_usd
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_creation_input_tokens += usage.cache_creation_input_tokens
        self.cache_read_input_tokens += usage.cache_read_input_tokens


@dataclass(slots=True)
class BudgetRow:
    """The budget of a root under its lock, shared by all its tasks in one transaction.

    `beyond_*`: what the calls that the transaction settles came to beyond what was set aside for them.
    """

    root_task_id: str
    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    max_nano_usd: int
    used_nano_usd: int
    reserved_nano_usd: int
    unpriced_calls: int
    warned_tokens: int
    warned_nano_usd: int
    changed: bool = False
    beyond_tokens: int = 0
    beyond_nano_usd: int = 0

    @property
    def budget(self) -> Budget:
        """As the rules see it."""
        return Budget(
            self.max_tokens,
            self.used_tokens,
            self.reserved_tokens,
            self.max_nano_usd,
            self.used_nano_usd,
            self.reserved_nano_usd,
            self.unpriced_calls,
        )

    def reserve(self, tokens: int, nano_usd: int) -> None:
        """Set tokens and money aside."""
        self.reserved_tokens += tokens
        self.reserved_nano_usd += nano_usd
        self.changed = True

    def raise_caps(self, tokens: int, nano_usd: int = 0) -> None:
        """Allow so much more. Where money has no cap, it gets none."""
        self.max_tokens += tokens
        self.max_nano_usd += nano_usd if self.max_nano_usd else 0
        self.changed = True

    def take_warnings(self) -> list[str]:
        """The caps that are due to be warned of, which are warned of from here on."""
        due = due_warnings(self.budget, self.warned_tokens, self.warned_nano_usd)
        if Reason.TOKEN_LIMIT in due:
            self.warned_tokens = self.max_tokens
        if Reason.MONEY_LIMIT in due:
            self.warned_nano_usd = self.max_nano_usd
        return due

    def give_back(self, tokens: int, nano_usd: int) -> None:
        """What was set aside is free again."""
        self.reserved_tokens -= tokens
        self.reserved_nano_usd -= nano_usd
        self.changed = True

    def use(self, tokens: int, nano_usd: int, *, unpriced: bool) -> None:
        """Count what a call used and cost."""
        self.used_tokens += tokens
        self.used_nano_usd += nano_usd
        self.unpriced_calls += unpriced
        self.changed = True

    def count_beyond(self, tokens: int, nano_usd: int) -> None:
        """A call came to so much more than was set aside for it; below 0: to less. Why: 0020_budget_guards.sql."""
        self.beyond_tokens += max(0, tokens)
        self.beyond_nano_usd += max(0, nano_usd)


_TASK_COLUMNS: Final = len(fields(TaskRow))


async def lock_tasks(
    connection: Connection, task_ids: Collection[str]
) -> tuple[dict[str, TaskRow], dict[str, BudgetRow]]:
    """Locks the rows that exist until the transaction ends; by task_id, and by root_task_id."""
    tasks: dict[str, TaskRow] = {}
    budgets: dict[str, BudgetRow] = {}
    rows: list[tuple[Any, ...]] = await fetch_all(connection, QUERIES.lock, {"task_ids": list(task_ids)})
    for columns in rows:
        row = TaskRow(*columns[:_TASK_COLUMNS])
        tasks[row.task_id] = row
        if row.root_task_id not in budgets:
            budgets[row.root_task_id] = BudgetRow(row.root_task_id, *columns[_TASK_COLUMNS:])
    return tasks, budgets
