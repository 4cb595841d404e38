"""Calls in doubt, and words on them, wherever they come."""

from __future__ import annotations

from typing import Any, Final

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import tool_pb2
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.fields import check_task_id
from tenure.validators.limits import (
    CALL_ID,
    MAX_GOAL_BYTES,
    MOST_CALL_ATTEMPTS,
    MOST_CALLS_IN_DOUBT,
    MOST_DOUBTS_A_PAGE,
)
from tenure.validators.violations import Check, Violations


def check_word(request: Any, v: Violations) -> None:
    """A word on an attempt of a call: the same fields at the gateway and at the ledger."""
    v.require(bool(CALL_ID.match(request.call_id)), "call_id", 'must be "<step>.<index>"')
    v.between("call_attempt", request.call_attempt, 1, MOST_CALL_ATTEMPTS)
    _decision(request.decision, v, "decision")


def check_resolution(resolution: tool_pb2.CallResolution, v: Violations) -> None:
    """A word on its way to the tools."""
    v.between("resolution.call_attempt", resolution.call_attempt, 1, MOST_CALL_ATTEMPTS)
    v.length("resolution.reason", resolution.reason, 1, 1000)
    v.length("resolution.actor", resolution.actor, 1, 200)
    _decision(resolution.decision, v, "resolution.decision")


def check_calls_in_doubt(calls: Any, v: Violations, field: str) -> None:
    """Those that a wait is over."""
    v.require(len(calls) <= MOST_CALLS_IN_DOUBT, field, f"at most {MOST_CALLS_IN_DOUBT}")
    for index, call in enumerate(calls):
        v.require(bool(CALL_ID.match(call.call_id)), f"{field}[{index}].call_id", 'must be "<step>.<index>"')
        v.between(f"{field}[{index}].call_attempt", call.call_attempt, 0, MOST_CALL_ATTEMPTS)


def check_page_of_doubts(request: Any, v: Violations) -> None:
    """Wherever they are listed."""
    v.between("page_size", request.page_size, 0, MOST_DOUBTS_A_PAGE)
    v.length("page_token", request.page_token, 0, 512)


def _decision(decision: tool_pb2.InDoubtDecision, v: Violations, field: str) -> None:
    v.require(decision.WhichOneof("decision") is not None, field, "must be set")
    size = len(decision.happened.result.encode())
    v.require(size <= MAX_GOAL_BYTES, f"{field}.happened.result", f"at most {MAX_GOAL_BYTES} bytes")


def _resolve(request: admin.ResolveInDoubtCallRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    v.length("reason", request.reason, 1, 1000)
    check_word(request, v)


def _list(request: Any, v: Violations) -> None:
    if request.task_id:
        check_task_id(request, v)
    check_page_of_doubts(request, v)


def _list_at_tools(request: tools.ListInDoubtCallsRequest, v: Violations) -> None:
    _list(request, v)
    v.require(len(request.calls) <= MOST_DOUBTS_A_PAGE, "calls", f"at most {MOST_DOUBTS_A_PAGE}")
    for index, call in enumerate(request.calls):
        v.uuid(f"calls[{index}].task_id", call.task_id)
        v.require(bool(CALL_ID.match(call.call_id)), f"calls[{index}].call_id", 'must be "<step>.<index>"')


CHECKS: Final[dict[type, Check]] = {
    admin.ResolveInDoubtCallRequest: _resolve,
    admin.AdminServiceListInDoubtCallsRequest: _list,
    tools.ListInDoubtCallsRequest: _list_at_tools,
}
