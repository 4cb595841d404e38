"""Names of the OpenTelemetry span attributes, in particular those for generative AI.

They are copied here because the names in `opentelemetry-semantic-conventions` are all deprecated: the conventions moved
to a separate repository, whose status is Development. To change a name, change only this file.
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

# Input tokens include the tokens read from and written to the provider's cache.
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_CREATION_INPUT_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"

# Arguments and results of tools are not attributes, because they may be personal data. The ledger has them.
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"

ERROR_TYPE: Final = "error.type"

# Attributes of Tenure.
TASK_ID: Final = "tenure.task.id"
TENANT: Final = "tenure.tenant"
EPOCH: Final = "tenure.epoch"
STEP: Final = "tenure.step"
SEQUENCE: Final = "tenure.sequence"
WORKER: Final = "tenure.worker"
REASON: Final = "tenure.reason"
CLAIMS: Final = "tenure.claims"
OUTCOME: Final = "tenure.tool.outcome"
OUTCOME_DETAIL: Final = "tenure.tool.outcome_detail"
SANDBOX_WALL_SECONDS: Final = "tenure.sandbox.wall_seconds"
SANDBOX_CPU_SECONDS: Final = "tenure.sandbox.cpu_seconds"
SANDBOX_PEAK_MEMORY_BYTES: Final = "tenure.sandbox.peak_memory_bytes"
COMMITS: Final = "tenure.commits"
