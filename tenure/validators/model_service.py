"""Checks the requests of ModelService. Whether its messages are JSON is checked where they are parsed, once."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import model_service_pb2 as models
from tenure.v1 import task_pb2
from tenure.validators.common import (
    MAX_CALL_ATTEMPTS,
    MAX_OUTPUT_TOKENS,
    TOOL_NAME,
    Check,
    Violations,
    check_duration,
    check_token,
)

MAX_MODEL_CHARACTERS: Final = 200
MAX_PROMPT_SYSTEM_BYTES: Final = 1024 * 1024
"""More than a task's system prompt: the loop adds the schema of the result."""
MAX_MESSAGES: Final = 100_000
MAX_TOOLS: Final = 1024


def _generate(request: models.GenerateRequest, v: Violations) -> None:
    _attempt(request, v)
    _prompt(request.prompt, v)
    v.between("max_output_tokens", request.max_output_tokens, 1, MAX_OUTPUT_TOKENS)
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)
    v.known("priority", task_pb2.Priority, request.priority)


def _attempt(request: Any, v: Violations) -> None:
    check_token(request.token, v)
    v.require(request.step >= 1, "step", "must be 1 or more")
    v.between("attempt_number", request.attempt_number, 1, MAX_CALL_ATTEMPTS)
    v.require(request.reserved_epoch >= 0, "reserved_epoch", "must not be negative")


def _prompt(prompt: models.Prompt, v: Violations) -> None:
    v.length("prompt.model", prompt.model, 1, MAX_MODEL_CHARACTERS)
    fits = len(prompt.system.encode()) <= MAX_PROMPT_SYSTEM_BYTES
    v.require(fits, "prompt.system", f"at most {MAX_PROMPT_SYSTEM_BYTES} bytes")
    v.between("prompt.messages_json", len(prompt.messages_json), 1, MAX_MESSAGES)
    v.require(len(prompt.tools) <= MAX_TOOLS, "prompt.tools", f"at most {MAX_TOOLS}")
    for index, tool in enumerate(prompt.tools[:MAX_TOOLS]):
        v.require(bool(TOOL_NAME.match(tool.name)), f"prompt.tools[{index}].name", "must be a tool's name")


def _count(request: models.CountInputTokensRequest, v: Violations) -> None:
    check_token(request.token, v)
    _prompt(request.prompt, v)


CHECKS: Final[dict[type, Check]] = {
    models.GenerateRequest: _generate,
    models.CancelGenerationRequest: _attempt,
    models.CountInputTokensRequest: _count,
}
