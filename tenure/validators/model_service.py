"""Checks the requests of ModelService. Whether its messages are JSON is checked where they are parsed, once."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.models import VENDOR_PATHS, vendor_of_path
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import model_service_pb2 as models
from tenure.validators.common import Check, check_duration, check_token
from tenure.validators.rules import TOOL_NAME, Violations

_PATHS: Final = f"must be one of {', '.join(VENDOR_PATHS)}, with any query"


def _generate(request: models.GenerateRequest, v: Violations) -> None:
    _attempt(request, v)
    if request.HasField("vendor_request"):
        v.require(not request.HasField("prompt"), "prompt", "must not be set beside vendor_request")
        v.require(vendor_of_path(request.vendor_request.path) is not None, "vendor_request.path", _PATHS)
    else:
        _prompt(request, v)
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)


def _attempt(request: Any, v: Violations) -> None:
    check_token(request.token, v)


def _prompt(request: Any, v: Violations) -> None:
    v.require(request.HasField("prompt"), "prompt", "must be set")
    for index, tool in enumerate(request.prompt.tools):
        v.require(bool(TOOL_NAME.match(tool.name)), f"prompt.tools[{index}].name", "must be a tool's name")


def _count(request: models.CountInputTokensRequest, v: Violations) -> None:
    check_token(request.token, v)
    _prompt(request, v)


CHECKS: Final[dict[type, Check]] = {
    models.GenerateRequest: _generate,
    models.CancelGenerationRequest: _attempt,
    models.CountInputTokensRequest: _count,
}
