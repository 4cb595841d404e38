"""Words for agents, and histories to go on from."""

from __future__ import annotations

from typing import Any

from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.validators.fields import check_task_id
from tenure.validators.limits import MAX_GOAL_BYTES, MAX_SYSTEM_BYTES
from tenure.validators.specs import check_limits, check_result_schema, check_source, check_tools
from tenure.validators.violations import Violations


def check_words(field: str, text: str, v: Violations) -> None:
    """What an agent is told: providers refuse a text of blanks."""
    v.require(bool(text.strip()), field, "must not be blank")
    v.require(len(text.encode()) <= MAX_GOAL_BYTES, field, f"at most {MAX_GOAL_BYTES} bytes")


def check_send(request: tasks.SendMessageRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_words("text", request.text, v)


def check_fork(request: Any, v: Violations) -> None:
    """ForkTaskRequest, the gateway's and the ledger's."""
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    match request.WhichOneof("point"):
        case "at_sequence":
            v.require(request.at_sequence >= 1, "at_sequence", "must be 1 or more")
        case "step":
            v.require(request.step >= 0, "step", "must not be negative")
    if request.message:
        check_words("message", request.message, v)
    _overrides(request.overrides, v)


def _overrides(overrides: task_pb2.ForkOverrides, v: Violations) -> None:
    v.length("overrides.model", overrides.model, 0, 200)
    fits = len(overrides.system.encode()) <= MAX_SYSTEM_BYTES
    v.require(fits, "overrides.system", f"at most {MAX_SYSTEM_BYTES} bytes")
    both = overrides.HasField("tools") and overrides.all_tools
    v.require(not both, "overrides.all_tools", "not together with tools")
    check_tools(overrides.tools, v, "overrides.tools")
    check_limits(overrides.limits, v, "overrides.limits")
    check_source(overrides.source, v, "overrides.source")
    check_result_schema(overrides.result_schema_json, v, "overrides.result_schema_json")
