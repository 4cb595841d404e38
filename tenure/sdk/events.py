"""The events of a task: the entries of its ledger, and the live text of the model call in flight.

`kind` names the event, in Python and in the public JSON. An entry has the kind that the ledger gives it; live text has
the kind "live_text". A newer gateway may send a kind that this release does not know: it arrives as OtherEvent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from tenure.domain.budget import TokenUsage
from tenure.domain.lease_ends import LeaseEnd
from tenure.domain.states import TaskState
from tenure.domain.tools import OutcomeStatus, ToolDefinition
from tenure.domain.waits import WaitAnswerKind, WaitKind
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.task_info import CallPlan, TaskBudget, TaskInfo, TaskWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(PublicValue):
    """An event of a task. `step`: the step it belongs to; 0: none. `attempt`: of the task.

    `sequence`: the entry's position in the ledger, 1, 2, 3 … without gaps; None for live text. Keep the last one to
    continue later: `task.events(after=sequence)`. `recorded_at` and `actor` (a worker, "checkpoint", or the identity
    of a caller) are those of the entry.
    """

    kind: str
    sequence: int | None
    step: int
    attempt: int = 0
    actor: str = ""
    recorded_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTextEvent(Event):
    """A piece of the answer that a model is giving. It is not recorded: the AssistantMessageEvent that follows is.

    Pieces of one model call come in order and do not overlap, also after a reconnect. `replaces` is true for the first
    piece of a call that replaces an earlier, unfinished one (a retry): discard that call's text. A call that another
    worker joins goes on.
    `skipped` is true when text before this piece was lost, because the reader was slow. `block` counts content blocks.
    """

    text: str
    block: int = 0
    offset: int = 0
    replaces: bool = False
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedEvent(Event):
    """The goal was accepted: the first entry. `parent_task_id`: the task that spawned this one; empty: none.

    `files`: the paths of the files that came with it.
    """

    goal: str
    model: str
    request_id: str
    parent_task_id: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionEvent(Event):
    """The state changed. `wait` is set when the task begins to wait: answer it with `task.approve(event.wait)`.

    `result` and `result_data` are set for a terminal state. `budget`: of the tree, after calls in flight were settled.
    `epoch`: of the claim under which the state changed; 0: without a claim. `lease_end`: of a lost claim, the last
    renewals of its worker and when the loss was noticed, if its coordinator reported them.
    """

    from_state: TaskState | None
    state: TaskState
    reason: str
    message: str
    wait: TaskWait | None
    calls_in_doubt: tuple[str, ...]
    result: str
    result_data: Any
    next_retry_at: datetime | None
    budget: TaskBudget | None
    epoch: int = 0
    lease_end: LeaseEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDefinedEvent(Event):
    """The tools of the task. `unknown_names`: names that the submit allowed and that no tool has."""

    tools: tuple[ToolDefinition, ...]
    unknown_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAttemptEvent(Event):
    """A model call is about to be sent. `reserved_…`: the most that it may use.

    `outlives_worker`: a model runner makes it, so it goes on when its worker is gone.
    """

    attempt_number: int
    model: str
    reserved_tokens: int
    reserved_cost_usd: Decimal
    budget: TaskBudget | None
    outlives_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailureEvent(Event):
    """A model call failed. `status_code`: of the provider's answer; 0: none. `retryable`: another try may succeed.

    `refused_tools`: the tools whose definitions the provider refused; the task goes on without them.
    """

    attempt_number: int
    error_class: str
    message: str
    status_code: int
    retryable: bool
    retry_after_seconds: float | None
    usage: TokenUsage
    refused_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLostEvent(Event):
    """A model call was lost with its worker. `usage`: what was billed."""

    attempt_number: int
    usage: TokenUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessageEvent(Event):
    """The model answered. `text`: its text blocks; `content`: all of the provider's content blocks, as JSON."""

    attempt_number: int
    text: str
    content: Any
    model: str
    stop_reason: str
    usage: TokenUsage
    usage_estimated: bool
    latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolIntentEvent(Event):
    """A tool call, recorded before it is made. `undoes`: in an undo, the task and the call that it undoes."""

    call_id: str
    tool: str
    arguments: Any
    undoes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcomeEvent(Event):
    """A tool call ended. The model reads `content`, and then `note`, which Tenure adds: that a person changed the
    arguments, for example. `output_path`: the whole output, a file of the workspace.

    `images`: the files of the images that the model sees, if it can.
    """

    call_id: str
    status: OutcomeStatus
    content: str
    note: str
    truncated: bool
    detail: str
    call_attempt: int
    output_path: str
    duration_seconds: float
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessageEvent(Event):
    """A message for the agent (`task.send`). `files`: the paths of the files that came with it.

    `interrupt`: it stops the model call that runs.
    """

    text: str
    request_id: str
    files: tuple[str, ...] = ()
    interrupt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequestEvent(Event):
    """The acknowledgement of a cancel. The transition follows."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitResolutionEvent(Event):
    """A wait has its answer. `answer`: the decision, the text, or the payload of the event, as JSON text.

    `addressee`: whom the link was sent to, for an answer by link. `shown_digest`: of what the person could read.
    `plan`: the later calls that the answer approved, too.
    """

    wait_id: str
    call_id: str
    wait_kind: WaitKind | None
    answer_kind: WaitAnswerKind | None
    answer: str
    comment: str
    edited_arguments: Any
    extra_tokens: int
    extra_cost_usd: Decimal
    request_id: str
    addressee: str
    shown_digest: str
    plan: CallPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStepEvent(Event):
    """A step of a control function ended, with `result` (a JSON value), or with an `error` that the function caught.

    `result_path`: the file of the workspace that has the result, if it is too large for the ledger; `result` is None.
    """

    name: str
    result: Any
    error: str
    duration_seconds: float
    result_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFailureEvent(Event):
    """A control function raised. The transition follows."""

    error_class: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRejectedEvent(Event):
    """The agent's final answer did not match the result's schema: it is called again."""

    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarningEvent(Event):
    """The tree has used 80 % of a cap. `limit`: TOKEN_LIMIT or MONEY_LIMIT.

    MODEL_UNPRICED: the tree has made its first call without a known price.
    """

    limit: str
    budget: TaskBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentsSpawnedEvent(Event):
    """The sub-agents of a call were created, in the order of its goals."""

    call_id: str
    task_ids: tuple[str, ...]
    max_tokens: int
    deadline_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEvent(Event):
    """An entry of another kind: `operator_request`, `forked`, `compaction`, `quota_warning`, `wait_escalated`.

    `data`: the entry's body with the field names of the contract (protos/tenure/v1/ledger.proto).
    """

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChangeEvent(PublicValue):
    """A change of one of the tenant's tasks: of its state, its reason or its pending ending.

    `cursor`: keep the last one to continue later, `client.changes(after=cursor)`; the gateway keeps changes for 7 days
    by default. `sequence`: the newest entry after the change. `task`: as the change left it, or later.
    """

    kind: str
    cursor: str
    task_id: str
    sequence: int
    state: TaskState
    reason: str
    cancel_requested: bool
    changed_at: datetime | None
    task: TaskInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatEvent(PublicValue):
    """Shows that the stream of changes is alive. The first event of `tenure tasks follow --json` is one."""

    kind: str
    cursor: str
    sent_at: datetime | None
