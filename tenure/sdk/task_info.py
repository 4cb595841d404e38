"""A task as the client sees it: frozen dataclasses, without protobuf.

Times are in UTC. Money is in US dollars, as exact decimals. Durations end in their unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from tenure.domain.budget import TokenUsage
from tenure.domain.model_parameters import Effort
from tenure.domain.outputs import TaskOutput
from tenure.domain.states import TaskState, is_terminal
from tenure.domain.task import MoneyCap, Priority, Source, TaskPolicy
from tenure.domain.waits import WaitDeadlinePolicy, WaitKind
from tenure.sdk.json_shape import PublicValue


@dataclass(frozen=True, slots=True)
class TaskBudget(PublicValue):
    """The caps and the use of the budget that a task shares with its whole tree.

    `max_cost_usd` None: no cap in money. `reserved_…`: set aside for model calls in flight. `unpriced_calls`: calls of
    models without a known price, which `used_cost_usd` does not include.
    """

    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    max_cost_usd: Decimal | None
    used_cost_usd: Decimal
    reserved_cost_usd: Decimal
    unpriced_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan(PublicValue):
    """Later calls of a task's tree that an approval permits at once: up to `count` calls of `tool` ("": of the approved
    call) for which the CEL expression `when` is true, which have at the paths `same` ("args.customer") the values of
    the approved call, and whose amounts at `sum_of` are at most `limit` together. `ends_at` None: after 24 hours.

    The ledger sets `plan_id`, `same_values` (JSON texts), `approved_by` and `approved_at`.
    """

    count: int
    tool: str = ""
    when: str = ""
    same: tuple[str, ...] = ()
    sum_of: str = ""
    limit: str = ""
    ends_at: datetime | None = None
    plan_id: str = ""
    same_values: tuple[str, ...] = ()
    approved_by: str = ""
    approved_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BudgetNeed(PublicValue):
    """The budget that a waiting task asks for (`WaitKind.BUDGET`).

    `limit`: TOKEN_LIMIT or MONEY_LIMIT. `needed_…`: the least that the next model call needs. `suggested_…`: what
    `approve` grants if it names no amount.
    """

    limit: str
    own_cap: bool
    needed_tokens: int
    needed_cost_usd: Decimal
    suggested_tokens: int
    suggested_cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class CallToApprove(PublicValue):
    """A call that needs approval, of a wait for several calls."""

    call_id: str
    tool: str
    arguments: Any
    call_digest: str


@dataclass(frozen=True, slots=True)
class TaskWait(PublicValue):
    """A wait of a task. Answer it with `task.approve`, `task.deny` or `task.answer`, or an event with `client.signal`.

    `options`: the decisions to choose from; empty: any text. `tool` and `arguments`: of the call that needs approval
    (`WaitKind.TOOL_APPROVAL`); `call_digest` binds the answer to that call. `calls`: all of them, if several calls need
    approval; the first is in the wait, too. `correlation_id`: the name under which an awaited event arrives.
    `sub_agent_task_ids`: the awaited sub-agents. `approvers`: the groups ("group:" and a name) and members who alone
    may answer; empty: each client with the permission APPROVE.
    """

    wait_id: str
    kind: WaitKind
    question: str
    options: tuple[str, ...]
    context: str
    reference: str
    call_id: str
    tool: str
    arguments: Any
    call_digest: str
    calls: tuple[CallToApprove, ...]
    correlation_id: str
    assignee: str
    begun_at: datetime | None
    deadline_at: datetime | None
    at_deadline: WaitDeadlinePolicy
    sub_agent_task_ids: tuple[str, ...]
    budget_need: BudgetNeed | None
    approvers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskLimits(PublicValue):
    """The limits of a task. `max_cost_usd` None: no cap in money, and `money_cap` says why."""

    max_tokens: int
    max_cost_usd: Decimal | None
    money_cap: MoneyCap | None
    max_steps: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class ModelParametersInfo(PublicValue):
    """The parameters of a task's model calls. None, 0 and empty: the provider's own choice."""

    temperature: float | None
    top_p: float | None
    effort: Effort | None
    thinking_tokens: int
    tool_choice: str
    seed: int | None
    extra_body: Any


@dataclass(frozen=True, slots=True)
class FunctionCall(PublicValue):
    """The control function that runs instead of an agent, and its input as a JSON value."""

    name: str
    input: Any


@dataclass(frozen=True, slots=True)
class TaskInfo(PublicValue):
    """A task at one moment.

    What was submitted: `goal`, `model` (empty: the worker's default), `system`, `tools` (None: all of the tenant's),
    `approve_tools`, `max_output_tokens` (0: the worker's default), `parameters` (of the model; None: none), `loop`,
    `function`, `agent` and `agent_revision` (of the revision that the task is pinned to; empty and None: none),
    `result_schema`, `limits`, `policy`, `priority`, `queue`, `labels`, `source`, `start_at`.

    How it stands: `state` with its `reason` (UPPER_SNAKE, for programs) and `message` (for people); `attempt`, which
    counts retries and requeues from 1; `step`, the newest one; `sequence`, that of the newest entry; `worker`, empty
    without one; `claim_count`, how often a worker opened the task; `in_line`, whether it waits for others of its
    source; `wait`; `calls_in_doubt`, ids of calls; `usage` and `cost_usd` of the task's own model calls; `budget` of
    its tree.

    `undo_of`: the task whose effects it undoes; empty: none.

    What it came to: `result`, the agent's last text; `result_data`, the JSON value of a task with a result schema,
    or what a function returned; `outputs`.
    """

    task_id: str
    tenant: str
    state: TaskState
    reason: str
    message: str
    goal: str
    model: str
    system: str
    tools: tuple[str, ...] | None
    approve_tools: tuple[str, ...]
    max_output_tokens: int
    parameters: ModelParametersInfo | None
    loop: str
    function: FunctionCall | None
    agent: str
    agent_revision: int | None
    result_schema: Any
    limits: TaskLimits
    policy: TaskPolicy
    priority: Priority
    queue: str
    labels: Mapping[str, str]
    source: Source
    attempt: int
    step: int
    sequence: int
    worker: str
    claim_count: int
    cancel_requested: bool
    in_line: bool
    wait: TaskWait | None
    calls_in_doubt: tuple[str, ...]
    usage: TokenUsage
    cost_usd: Decimal
    budget: TaskBudget
    result: str
    result_data: Any
    outputs: tuple[TaskOutput, ...]
    parent_task_id: str
    root_task_id: str
    depth: int
    undo_of: str
    forked_from_task_id: str
    forked_from_sequence: int
    created_at: datetime | None
    updated_at: datetime | None
    start_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_retry_at: datetime | None
    deadline_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether the state is terminal: SUCCEEDED, FAILED, TIMED_OUT, CANCELLED or COST_EXCEEDED."""
        return is_terminal(self.state)


@dataclass(frozen=True, slots=True)
class TaskPage(PublicValue):
    """A page of tasks. `next_page_token`: pass it to `client.tasks_page` for the next one; empty: there is none.

    `as_of`: the page was read at a standby, and has everything up to this moment; None: it is not stale.
    `searched_until`: the page is shorter than asked for, because it read as many tasks as one page may: it has what was
    submitted at this time or later, and the next page continues.
    """

    tasks: tuple[TaskInfo, ...]
    next_page_token: str
    as_of: datetime | None = None
    searched_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class StateCount(PublicValue):
    """The number of tasks in one state. `at_least`: there may be more than were counted."""

    state: TaskState
    count: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class TaskCounts(PublicValue):
    """The numbers of tasks that match a filter, of each state that has any."""

    counts: tuple[StateCount, ...]


@dataclass(frozen=True, slots=True)
class TaskFile(PublicValue):
    """A file of a task's workspace. `kind`: FILE, DIRECTORY, LINK or OTHER."""

    path: str
    kind: str
    size_bytes: int
    modified_at: datetime | None
