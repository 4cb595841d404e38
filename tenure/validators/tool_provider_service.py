"""Checks the requests of ToolProviderService. The tool service sends them; a provider in Python can check them."""

from __future__ import annotations

from typing import Final

from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import tool_provider_service_pb2 as providers
from tenure.validators.common import (
    CALL_ID,
    MAX_ARGUMENT_BYTES,
    TOOL_NAME,
    Check,
    Violations,
    check_duration,
    check_token,
)


def _call_tool(request: providers.CallToolRequest, v: Violations) -> None:
    v.require(bool(TOOL_NAME.match(request.tool)), "tool", "must be 1 to 64 of [a-zA-Z0-9_-]")
    size = len(request.arguments_json.encode())
    v.require(size <= MAX_ARGUMENT_BYTES, "arguments_json", f"at most {MAX_ARGUMENT_BYTES} bytes")
    v.length("idempotency_key", request.idempotency_key, 1, 128)
    if request.HasField("token"):
        check_token(request.token, v)
    v.require(request.epoch > 0, "epoch", "must be positive")
    v.length("tenant", request.tenant, 1, 63)
    v.uuid("task_id", request.task_id)
    v.require(bool(CALL_ID.match(request.call_id)), "call_id", 'must be "<step>.<index>"')
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)
    v.length("traceparent", request.traceparent, 0, 128)


CHECKS: Final[dict[type, Check]] = {providers.CallToolRequest: _call_tool}
