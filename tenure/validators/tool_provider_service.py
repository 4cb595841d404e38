"""Checks the requests of ToolProviderService. The tool service sends them; a provider in Python can check them."""

from __future__ import annotations

from typing import Final

from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import tool_provider_service_pb2 as providers
from tenure.validators.common import Check, check_duration, check_token
from tenure.validators.rules import Violations


def _call_tool(request: providers.CallToolRequest, v: Violations) -> None:
    if request.HasField("token"):
        check_token(request.token, v)
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)


CHECKS: Final[dict[type, Check]] = {providers.CallToolRequest: _call_tool}
