"""Defines the entries of a ledger: one class per entry kind. The fold in fold.py gives them their meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.budget import BudgetWarning, Prices, TokenUsage
from tenure.domain.images import SubmittedFile
from tenure.domain.in_doubt import CallInDoubt, ResolveCall
from tenure.domain.lease_ends import LeaseEnd
from tenure.domain.outputs import TaskOutput
from tenure.domain.quotas import QuotaWarning
from tenure.domain.states import TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.texts import KeptContent
from tenure.domain.tools import Outcome, PlannedCalls, ToolDefinition
from tenure.domain.waits import BeginWait, EscalationStep, Wait, WaitAnswerKind, WaitKind

# Entries about sub-agents. The rules are in sub_agents.py.


@dataclass(frozen=True, slots=True)
class SpawnedBy:
    """The parent's call that spawned a sub-agent, and the index of its goal in that call."""

    task_id: str
    call_id: str
    index: int


@dataclass(frozen=True, slots=True)
class SubAgentsSpawned:
    """The sub-agents that a call spawned, in the order of its goals. `tools` None: all tools of the tenant."""

    call_id: str
    task_ids: tuple[str, ...]
    max_tokens: int
    tools: tuple[str, ...] | None = None


ContentBlock = dict[str, Any]
"""A provider's content block, as JSON: {"type": "text", "text": ...}, {"type": "tool_use", ...} and others."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The task was submitted. Always the first entry. `traceparent`: the client's span, to which the trace links."""

    spec: TaskSpec
    request_id: str = ""
    spawned_by: SpawnedBy | None = None
    traceparent: str = ""
    files: tuple[SubmittedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Transition:
    """The task's state changed.

    Set only for some transitions: `retry_delay_seconds` for RETRY_SCHEDULED, `result` for terminal states, `wait` for
    the waiting states, `result_json` for SUCCEEDED with a schema, `error_class` for a transition that a failed model
    call caused, `calls_in_doubt` for the reason TOOL_IN_DOUBT, `outputs` for SUCCEEDED: as checked at the close-out,
    `lease_end` for a lost claim whose renewals were known.
    """

    to_state: TaskState
    reason: str
    message: str = ""
    result: str = ""
    retry_delay_seconds: float | None = None
    from_state: TaskState | None = None
    wait: Wait | None = None
    result_json: str = ""
    error_class: str = ""
    calls_in_doubt: tuple[CallInDoubt, ...] = ()
    outputs: tuple[TaskOutput, ...] = ()
    lease_end: LeaseEnd | None = None


@dataclass(frozen=True, slots=True)
class ToolsDefined:
    """The tools as they were at the first Open; a resumed task keeps them. The newest entry counts: of code there are
    more with each model call that is offered others, and each call of another tool.

    `unknown_names`: tools that the spec allows and that do not exist.
    """

    tools: tuple[ToolDefinition, ...]
    unknown_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """A model call is about to be sent, and its tokens are reserved.

    `summary_through_step` not 0: the call asks for a summary of the conversation through that step; its answer is not
    part of the conversation. `prices`: the prices that settle the call; None: unknown. `outlives_worker`: a model
    runner makes the call, so the attempt stays open when its worker is gone, and the next owner joins the call.
    """

    attempt_number: int
    model: str
    input_tokens: int
    max_output_tokens: int
    reserved_tokens: int
    summary_through_step: int = 0
    reserved_nano_usd: int = 0
    prices: Prices | None = None
    outlives_worker: bool = False


PROMPT_TOO_LONG: Final = "PROMPT_TOO_LONG"
"""The error class of a failure that a shorter conversation may avoid."""


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """A model call failed. Settles its model attempt.

    `context_window_tokens`: of the model at its endpoint; 0: unknown.
    `refused_tools`: the tools whose definitions the provider refused. The task's further requests do not have them.
    """

    attempt_number: int
    error_class: str
    message: str
    retryable: bool
    status_code: int = 0
    retry_after_seconds: float | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    provider_request_id: str = ""
    context_window_tokens: int = 0
    refused_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """The worker was lost before the answer of a model call was committed. Settles its model attempt.

    `usage`: from the worker's last usage report.
    """

    attempt_number: int
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The model answered. Settles its model attempt.

    `usage_estimated`: the provider did not state the whole usage, so the worker estimated the rest.
    `context_window_tokens`: of the model at its endpoint; 0: unknown.
    """

    attempt_number: int
    content: tuple[ContentBlock, ...]
    stop_reason: str
    usage: TokenUsage
    model: str = ""
    provider_request_id: str = ""
    latency_seconds: float = 0.0
    usage_estimated: bool = False
    context_window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolIntent:
    """Announces a tool call before it is made. `undoes`: the call that it undoes, "<task_id>/<call_id>"; "": none."""

    call_id: str
    tool_use_id: str
    tool: str
    arguments_json: str
    undoes: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a tool call."""

    call_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message to the agent, which reads it at its next model call. `interrupt`: it stops the call that runs."""

    text: str
    request_id: str = ""
    files: tuple[SubmittedFile, ...] = ()
    interrupt: bool = False


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A user requested that the task ends as CANCELLED."""

    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Returns the task to the queue and raises its limits."""

    extra_tokens: int = 0
    extra_steps: int = 0
    extra_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class GrantBudget:
    """Raises the caps of the root's budget. A root that ended because its budget was exhausted continues."""

    extra_tokens: int = 0
    extra_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class OperatorCloseOut:
    """Ends the task. `result` "": the agent's last text becomes the result."""

    to_state: TaskState
    result: str = ""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """An operator intervened. The transition that follows records the effect."""

    reason: str
    act: Requeue | OperatorCloseOut | GrantBudget | ResolveCall | BeginWait


@dataclass(frozen=True, slots=True)
class WaitEscalated:
    """A wait reached a step of its escalation. `step_number`: 1, 2, 3 and so on within the wait."""

    wait_id: str
    step_number: int
    step: EscalationStep


@dataclass(frozen=True, slots=True)
class WaitResolution:
    """A wait has its answer. `answer`: the decision, the text, or the event's payload as JSON. `plan`: later calls that
    it approved, too.
    """

    wait_id: str
    call_id: str
    wait_kind: WaitKind
    answer_kind: WaitAnswerKind
    answer: str = ""
    comment: str = ""
    edited_arguments_json: str = ""
    extra_budget_tokens: int = 0
    request_id: str = ""
    extra_budget_nano_usd: int = 0
    addressee: str = ""
    client_address: str = ""
    shown_digest: str = ""
    plan: PlannedCalls | None = None


@dataclass(frozen=True, slots=True)
class Forked:
    """The task continues another task's history.

    The `copied_entries` entries that follow are copies from the task `task_id` through `sequence`.
    """

    task_id: str
    sequence: int
    copied_entries: int


@dataclass(frozen=True, slots=True)
class ControlFailure:
    """A control function or one of its steps raised an exception. `retryable`: another attempt may succeed."""

    error_class: str
    message: str
    retryable: bool
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A step of a control function ended, with a result or with a failure that the function handled.

    `kept`: where the result is, if it is too large for the entry.
    """

    name: str
    result_json: str = ""
    failure: ControlFailure | None = None
    duration_seconds: float = 0.0
    kept: KeptContent | None = None


@dataclass(frozen=True, slots=True)
class ResultRejected:
    """A final answer does not fit the result's schema. The agent reads `text` at its next model call."""

    text: str
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearedResults:
    """Tool results of the calls through a step are removed. Token counts are estimates of the conversation's input."""

    through_step: int
    results: int
    input_tokens_before: int
    input_tokens_after: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A text replaces the conversation through a step, with its calls and their results."""

    through_step: int
    text: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """The model gets a part of the history in a shorter form from now on."""

    how: ClearedResults | Summary


Body = (
    Submitted
    | Transition
    | ToolsDefined
    | ModelAttempt
    | ModelFailure
    | AttemptLost
    | AssistantMessage
    | ToolIntent
    | ToolOutcome
    | UserMessage
    | CancelRequest
    | WaitResolution
    | OperatorRequest
    | Forked
    | ControlStep
    | ControlFailure
    | ResultRejected
    | Compaction
    | QuotaWarning
    | BudgetWarning
    | SubAgentsSpawned
    | WaitEscalated
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry with its sequence, step and author. It is never updated and never renumbered."""

    sequence: int
    step: int
    body: Body
    epoch: int = 0
    claim_id: str = ""
    attempt: int = 1
    actor: str = ""
