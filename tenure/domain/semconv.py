"""The names of spans, their attributes and their events: those of OpenTelemetry for generative AI, and Tenure's own.

They are written down here because the names in `opentelemetry-semantic-conventions` are all deprecated: the conventions
moved to a separate repository, whose status is Development. To change a name, change only this file. A test compares
docs/tracing.md with `ATTRIBUTES` and `EVENTS`.
"""

from __future__ import annotations

from typing import Final

# Spans are named "<operation> <name>": "invoke_agent messages", "chat claude-…", "execute_tool send_mail".
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_CREATION_INPUT_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"

# Content: exported only where a setting asks for it.
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
STEP_RESULT: Final = "tenure.step.result"
MESSAGE: Final = "tenure.message"
CONTENT: Final = frozenset(
    {
        SYSTEM_INSTRUCTIONS,
        INPUT_MESSAGES,
        OUTPUT_MESSAGES,
        TOOL_CALL_ARGUMENTS,
        TOOL_CALL_RESULT,
        STEP_RESULT,
        MESSAGE,
    }
)
"""The attributes that have texts of users, models, tools and providers."""

# Attributes of Tenure.
TASK_ID: Final = "tenure.task.id"
TENANT: Final = "tenure.tenant"
ATTEMPT: Final = "tenure.attempt"
QUEUE: Final = "tenure.queue"
FORKED_FROM: Final = "tenure.forked_from.task.id"
STATE: Final = "tenure.state"
REASON: Final = "tenure.reason"
TAKEOVERS: Final = "tenure.takeovers"
SEQUENCE: Final = "tenure.sequence"
STEP: Final = "tenure.step"
EPOCH: Final = "tenure.epoch"
WORKER: Final = "tenure.worker"
FROM_EPOCH: Final = "tenure.from_epoch"
FROM_WORKER: Final = "tenure.from_worker"
MODEL_ATTEMPT: Final = "tenure.model.attempt"
IS_SUMMARY: Final = "tenure.model.is_summary"
USAGE_ESTIMATED: Final = "tenure.model.usage_estimated"
COST_USD: Final = "tenure.cost_usd"
CALL_ID: Final = "tenure.call.id"
CALL_ATTEMPT: Final = "tenure.call.attempt"
EFFECT_CLASS: Final = "tenure.tool.effect_class"
OUTCOME: Final = "tenure.tool.outcome"
OUTCOME_DETAIL: Final = "tenure.tool.outcome_detail"
SANDBOX_WALL_SECONDS: Final = "tenure.sandbox.wall_seconds"
SANDBOX_CPU_SECONDS: Final = "tenure.sandbox.cpu_seconds"
SANDBOX_PEAK_MEMORY_BYTES: Final = "tenure.sandbox.peak_memory_bytes"
WAIT_ID: Final = "tenure.wait.id"
WAIT_KIND: Final = "tenure.wait.kind"
WAIT_ANSWER: Final = "tenure.wait.answer"
ESCALATION_STEP: Final = "tenure.wait.escalation_step"
SUB_AGENTS: Final = "tenure.sub_agents"
RETRYABLE: Final = "tenure.retryable"
RETRY_AFTER_SECONDS: Final = "tenure.retry_after_seconds"
LIMIT: Final = "tenure.limit"
USED: Final = "tenure.used"
CAP: Final = "tenure.cap"
ACT: Final = "tenure.act"
ACTOR: Final = "tenure.actor"
VIOLATIONS: Final = "tenure.violations"

ATTRIBUTES: Final = {
    OPERATION_NAME: "`invoke_agent`, `chat` or `execute_tool`",
    PROVIDER_NAME: "the vendor of the model",
    CONVERSATION_ID: "the task",
    AGENT_NAME: "the loop of the agent, or the name of the agent or function in Python",
    REQUEST_MODEL: "the model that was asked",
    REQUEST_MAX_TOKENS: "the maximum output that was requested",
    RESPONSE_MODEL: "the model that answered",
    RESPONSE_ID: "the provider's id of the request",
    RESPONSE_FINISH_REASONS: "why the answer ended, as the provider says it",
    USAGE_INPUT_TOKENS: "input tokens, with those read from and written to the provider's cache",
    USAGE_OUTPUT_TOKENS: "output tokens",
    USAGE_CACHE_READ_INPUT_TOKENS: "input tokens read from the provider's cache",
    USAGE_CACHE_CREATION_INPUT_TOKENS: "input tokens written to the provider's cache",
    TOOL_NAME: "the tool",
    TOOL_TYPE: "`function`",
    TOOL_CALL_ID: "the provider's id of the call",
    ERROR_TYPE: "the class of the error: of a model failure, of an outcome, or the reason of the task's end",
    STATUS_CODE: "the provider's HTTP status of a failed model call",
    TASK_ID: "the task",
    TENANT: "the tenant",
    ATTEMPT: "the attempt of the task, from 1",
    QUEUE: "the queue of the task",
    FORKED_FROM: "the task that a fork continues",
    STATE: "the state of the task in which the span ended, or the state that the span is",
    REASON: "the reason of a transition, UPPER_SNAKE",
    TAKEOVERS: "how often another worker took the task over",
    SEQUENCE: "the ledger entry that began the span",
    STEP: "the step",
    EPOCH: "the epoch of the claim",
    WORKER: "the worker that held the task",
    FROM_EPOCH: "the epoch of the claim that was lost",
    FROM_WORKER: "the worker that lost the task",
    MODEL_ATTEMPT: "the attempt of the step's model call, from 1",
    IS_SUMMARY: "the call asked for a summary of the conversation",
    USAGE_ESTIMATED: "the provider did not state the whole usage",
    COST_USD: "what the call cost; absent for a model without a known price",
    CALL_ID: "the call, `<step>.<index>`",
    CALL_ATTEMPT: "the attempt of the call that gave the outcome, from 1",
    EFFECT_CLASS: "PURE, IDEMPOTENT, KEYED or UNSAFE",
    OUTCOME: "the status of the outcome",
    OUTCOME_DETAIL: "a more specific class of the outcome",
    SANDBOX_WALL_SECONDS: "how long the program ran in the sandbox",
    SANDBOX_CPU_SECONDS: "its CPU time",
    SANDBOX_PEAK_MEMORY_BYTES: "its highest memory",
    WAIT_ID: "the wait",
    WAIT_KIND: "the kind of the wait",
    WAIT_ANSWER: "the kind of the answer",
    ESCALATION_STEP: "the step of the escalation",
    SUB_AGENTS: "the tasks of the sub-agents",
    RETRYABLE: "another attempt may succeed",
    RETRY_AFTER_SECONDS: "the delay that the provider asked for",
    LIMIT: "the cap or the quota",
    USED: "what is used of it",
    CAP: "how much it is",
    ACT: "what the operator did, or the kind of a compaction",
    ACTOR: "who did it",
    VIOLATIONS: "how many violations of the schema the result has",
    SYSTEM_INSTRUCTIONS: "content: the system prompt",
    INPUT_MESSAGES: "content: the goal",
    OUTPUT_MESSAGES: "content: the answer of the model, or the result of the task",
    TOOL_CALL_ARGUMENTS: "content: the arguments of the call",
    TOOL_CALL_RESULT: "content: what the model reads of the outcome",
    STEP_RESULT: "content: the result of a function's step",
    MESSAGE: "content: the text of an error",
}

EVENT_CLAIM: Final = "tenure.claim"
EVENT_TAKEOVER: Final = "tenure.takeover"
EVENT_MODEL_FAILURE: Final = "tenure.model_failure"
EVENT_CALL_RETRY: Final = "tenure.call_retry"
EVENT_ANSWER: Final = "tenure.answer"
EVENT_ESCALATION: Final = "tenure.escalation"
EVENT_SUB_AGENTS: Final = "tenure.sub_agents"
EVENT_BUDGET_WARNING: Final = "tenure.budget_warning"
EVENT_QUOTA_WARNING: Final = "tenure.quota_warning"
EVENT_MESSAGE: Final = "tenure.user_message"
EVENT_CANCEL: Final = "tenure.cancel_request"
EVENT_OPERATOR: Final = "tenure.operator_request"
EVENT_FUNCTION_FAILURE: Final = "tenure.function_failure"
EVENT_RESULT_REJECTED: Final = "tenure.result_rejected"
EVENT_COMPACTION: Final = "tenure.compaction"

EVENTS: Final = {
    EVENT_CLAIM: "a worker opened the task: worker and epoch",
    EVENT_TAKEOVER: "a worker opened the task after another lost it: workers, epochs, reason; also on open calls",
    EVENT_MODEL_FAILURE: "the model call failed: class, HTTP status, whether and when it may be repeated",
    EVENT_CALL_RETRY: "the tool service ran the call again: the attempt",
    EVENT_ANSWER: "a wait got its answer: kind and author",
    EVENT_ESCALATION: "a wait reached a step of its escalation",
    EVENT_SUB_AGENTS: "the call created sub-agents",
    EVENT_BUDGET_WARNING: "the tree has used 80 % of a cap, or has made its first call without a price",
    EVENT_QUOTA_WARNING: "the tenant reached the soft cap of a quota",
    EVENT_MESSAGE: "a message for the agent arrived",
    EVENT_CANCEL: "a user asked for the end of the task",
    EVENT_OPERATOR: "an operator intervened",
    EVENT_FUNCTION_FAILURE: "a control function raised",
    EVENT_RESULT_REJECTED: "a final answer did not fit the schema",
    EVENT_COMPACTION: "the conversation was shortened",
}
