"""Checks the requests of ModelService. Whether its messages are JSON is checked where they are parsed, once."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import model_service_pb2 as models
from tenure.validators.common import Check, check_duration, check_token
from tenure.validators.rules import Violations

MAX_MODEL_CHARACTERS: Final = 200
MAX_PROMPT_SYSTEM_BYTES: Final = 1024 * 1024
"""More than a task's system prompt: the loop adds the schema of the result."""
MAX_MESSAGES: Final = 100_000
MAX_TOOLS: Final = 1024


def _generate(request: models.GenerateRequest, v: Violations) -> None:
    _attempt(request, v)
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)


def _attempt(request: Any, v: Violations) -> None:
    check_token(request.token, v)


def _count(request: models.CountInputTokensRequest, v: Violations) -> None:
    check_token(request.token, v)


CHECKS: Final[dict[type, Check]] = {
    models.GenerateRequest: _generate,
    models.CancelGenerationRequest: _attempt,
    models.CountInputTokensRequest: _count,
}
