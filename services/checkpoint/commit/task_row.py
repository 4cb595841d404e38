"""The locked row of a task and the budget row of its root. Drafts change them in memory and write them back."""

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
from tenure.domain.waits import Wait, next_step
from tenure.v1 import task_pb2
from tenure.wire.common import WAIT_KINDS, moment, timestamp
from tenure.wire.task import escalation_step_to_wire, policy_to_domain, prices_to_domain, wait_to_domain, wait_to_wire

if TYPE_CHECKING:
    from collections.abc import Collection

    from tenure.domain.budget import Prices
    from tenure.domain.task import TaskPolicy
    from tenure.runtime.postgres import Connection


# The wait in a task row lasts from the transition that begins it to the next transition.


def begin_wait(row: TaskRow, wait: Wait, sequence: int) -> task_pb2.Wait:
    """Stores the wait in the row and returns it as the transition with this sequence shows it."""
    kept = wait_to_wire(wait)
    kept.wait_id = f"w{sequence}"
    if wait.is_for_person:
        kept.approvers[:] = row.task_policy.approvers
    timeout_seconds = row.task_policy.timeouts.wait_seconds(wait.kind, wait.timeout_seconds)
    left_seconds = max(0.0, timeout_seconds - wait.elapsed_seconds)
    row.wait_deadline_at = row.locked_at + timedelta(seconds=left_seconds)
    kept.begin_time.CopyFrom(timestamp(row.locked_at))
    kept.deadline_time.CopyFrom(timestamp(row.wait_deadline_at))
    plan_step(row, kept)
    row.wait_correlation = wait.correlation_id
    return kept


def plan_step(row: TaskRow, kept: task_pb2.Wait) -> None:
    """Puts the next step of the wait's escalation into the wait and the row, and stores the wait."""
    begin_at = moment(kept.begin_time)
    timeout_seconds = (moment(kept.deadline_time) - begin_at).total_seconds()
    steps = row.task_policy.escalations.steps_of(WAIT_KINDS.to_domain(kept.kind))
    step = next_step(steps, kept.steps_taken, timeout_seconds)
    kept.ClearField("next_step")
    kept.ClearField("next_step_time")
    row.wait_step_at = None
    if step is not None:
        row.wait_step_at = begin_at + timedelta(seconds=step.after_seconds)
        kept.next_step.CopyFrom(escalation_step_to_wire(step))
        kept.next_step_time.CopyFrom(timestamp(row.wait_step_at))
    row.wait = kept.SerializeToString()


def shown_wait(row_wait: bytes) -> task_pb2.Wait | None:
    """Returns the wait as callers see it."""
    return task_pb2.Wait.FromString(row_wait) if row_wait else None


def current_wait(row: TaskRow) -> Wait | None:
    """Returns the task's wait, or None."""
    return wait_to_domain(task_pb2.Wait.FromString(row.wait)) if row.wait else None


@dataclass(slots=True)
class TaskRow:
    """A locked task. The fields have the order of the statement `lock`."""

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
    model_outlives: bool
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
    wait_step_at: datetime | None
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
    operator_wait: bytes
    queued_at: datetime | None
    ledger_bytes: int

    def __post_init__(self) -> None:
        """Converts the texts and lists of the database to domain types."""
        self.state = TaskState(self.state)
        self.open_calls = tuple(self.open_calls)
        self.dead_owners = tuple(self.dead_owners)
        self.calls_in_doubt = tuple(self.calls_in_doubt)

    @property
    def fence(self) -> FenceRow:
        """The fence and the last commit, as admission needs them."""
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

    `beyond_*`: by how much the calls that the transaction settles exceed their reservations.
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
    raised: bool = False
    beyond_tokens: int = 0
    beyond_nano_usd: int = 0

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
        """Returns the caps that need a warning, and marks them as warned."""
        due = due_warnings(self.budget, self.warned_tokens, self.warned_nano_usd)
        if Reason.TOKEN_LIMIT in due:
            self.warned_tokens = self.max_tokens
        if Reason.MONEY_LIMIT in due:
            self.warned_nano_usd = self.max_nano_usd
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
        self.unpriced_calls += unpriced
        self.changed = True

    def count_beyond(self, tokens: int, nano_usd: int) -> None:
        """Counts by how much a call exceeds its reservation; values below 0 count as 0. See 0003_budgets.sql for
        the reason.
        """
        self.beyond_tokens += max(0, tokens)
        self.beyond_nano_usd += max(0, nano_usd)


_TASK_COLUMNS: Final = len(fields(TaskRow))


async def lock_tasks(
    connection: Connection, task_ids: Collection[str]
) -> tuple[dict[str, TaskRow], dict[str, BudgetRow]]:
    """Locks the rows that exist until the transaction ends. Returns tasks by task_id and budgets by root_task_id."""
    tasks: dict[str, TaskRow] = {}
    budgets: dict[str, BudgetRow] = {}
    rows: list[tuple[Any, ...]] = await fetch_all(connection, QUERIES.lock, {"task_ids": list(task_ids)})
    for columns in rows:
        row = TaskRow(*columns[:_TASK_COLUMNS])
        tasks[row.task_id] = row
        if row.root_task_id not in budgets:
            budgets[row.root_task_id] = BudgetRow(row.root_task_id, *columns[_TASK_COLUMNS:])
    return tasks, budgets
