"""The facts a ledger is made of. Each class is one kind of entry; the fold in fold.py says what they mean together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.budget import BudgetWarning, Prices, TokenUsage
from tenure.domain.in_doubt import CallInDoubt, ResolveCall
from tenure.domain.quotas import QuotaWarning
from tenure.domain.states import TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.tools import Outcome, ToolDefinition
from tenure.domain.waits import Wait, WaitAnswerKind, WaitKind

# What ledgers say of sub-agents: where one comes from, and what a call spawned. The rules are in sub_agents.py.


@dataclass(frozen=True, slots=True)
class SpawnedBy:
    """The call that spawned a sub-agent, and which of its goals this is. `traceparent` "": the parent had no trace."""

    task_id: str
    call_id: str
    index: int
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SubAgentsSpawned:
    """The sub-agents of a call, in the order of its goals. `tools` None: all of the tenant's."""

    call_id: str
    task_ids: tuple[str, ...]
    max_tokens: int
    tools: tuple[str, ...] | None = None


ContentBlock = dict[str, Any]
"""A provider's content block, as JSON: {"type": "text", "text": ...}, {"type": "tool_use", ...} and others."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The goal was accepted. Always the first entry."""

    spec: TaskSpec
    request_id: str = ""
    spawned_by: SpawnedBy | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """The state changed. `retry_delay_seconds` only for RETRY_SCHEDULED, `result` for endings, `wait` for WAITING,
    `result_json` for SUCCEEDED with a schema, `error_class` for what a failed model call led to, `calls_in_doubt` for
    TOOL_IN_DOUBT.
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


@dataclass(frozen=True, slots=True)
class ToolsDefined:
    """The tools as they were at the first Open; a resumed task keeps them. `unknown_names`: allowed in vain."""

    tools: tuple[ToolDefinition, ...]
    unknown_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """A model call is about to be sent, its tokens are set aside.

    `summary_through_step` not 0: it asks for a summary of the conversation through that step, and is no turn.
    `prices`: those that it is settled by; None: unknown.
    """

    attempt_number: int
    model: str
    input_tokens: int
    max_output_tokens: int
    reserved_tokens: int
    summary_through_step: int = 0
    reserved_nano_usd: int = 0
    prices: Prices | None = None


PROMPT_TOO_LONG: Final = "PROMPT_TOO_LONG"
"""The class of a failure that a shorter conversation may mend."""


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """A model call failed; settles its attempt."""

    attempt_number: int
    error_class: str
    message: str
    retryable: bool
    status_code: int = 0
    retry_after_seconds: float | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    provider_request_id: str = ""


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """A model call's fate is unknown; settles its attempt from the progress last heard."""

    attempt_number: int
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The model answered; settles its attempt."""

    attempt_number: int
    content: tuple[ContentBlock, ...]
    stop_reason: str
    usage: TokenUsage
    model: str = ""
    provider_request_id: str = ""
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolIntent:
    """A tool call, written before it is made."""

    call_id: str
    tool_use_id: str
    tool: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call came to."""

    call_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Words for the agent, read at its next model call."""

    text: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Somebody asked for the end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Back into the queue, with more of what it may use up."""

    extra_tokens: int = 0
    extra_steps: int = 0
    extra_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class GrantBudget:
    """More to spend, for the whole tree; a root that ended for want of it goes on."""

    extra_tokens: int = 0
    extra_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class OperatorCloseOut:
    """The end. `result` "": the agent's last words."""

    to_state: TaskState
    result: str = ""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """An operator intervened. What came of it is the transition that follows."""

    reason: str
    act: Requeue | OperatorCloseOut | GrantBudget | ResolveCall


@dataclass(frozen=True, slots=True)
class WaitResolution:
    """A wait has its answer. `answer`: the decision, the words, or the event's payload (JSON)."""

    wait_id: str
    call_id: str
    wait_kind: WaitKind
    answer_kind: WaitAnswerKind
    answer: str = ""
    comment: str = ""
    edited_arguments_json: str = ""
    extra_budget_tokens: int = 0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Forked:
    """The task goes on from another's history: the `copied_entries` entries that follow were made there."""

    task_id: str
    sequence: int
    copied_entries: int


@dataclass(frozen=True, slots=True)
class ControlFailure:
    """A control function, or a step of it, raised. `retryable`: another attempt may succeed."""

    error_class: str
    message: str
    retryable: bool
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A step of a control function ended: with a result, or with a failure that the function lived with."""

    name: str
    result_json: str = ""
    failure: ControlFailure | None = None
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ResultRejected:
    """A final answer did not fit the result's schema. `text` is what the agent reads, at its next model call."""

    text: str
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearedResults:
    """The results of the calls through a step are left out. Tokens: of what was sent so far, estimated."""

    through_step: int
    results: int
    input_tokens_before: int
    input_tokens_after: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A text stands for the conversation through a step, its calls and their results included."""

    through_step: int
    text: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """From here on the model is sent a part of the history in a shorter form."""

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
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An appended fact with its place. Never updated, never renumbered."""

    sequence: int
    step: int
    body: Body
    epoch: int = 0
    claim_id: str = ""
    attempt: int = 1
    actor: str = ""
