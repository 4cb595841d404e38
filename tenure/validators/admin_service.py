"""Checks the requests of operators: those of AdminService, and those of the ledger and the coordinator behind it."""

from __future__ import annotations

import re
from typing import Any, Final

from tenure.domain.budget import MAX_NANO_USD, MAX_TOKENS
from tenure.domain.waits import MAX_QUESTION_CHARACTERS
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.common import (
    CALL_ID,
    MAX_CALL_ATTEMPTS,
    MAX_CALLS_IN_DOUBT,
    MAX_CHOICES,
    MAX_GOAL_BYTES,
    MAX_ID_CHARACTERS,
    MAX_IN_DOUBT_A_PAGE,
    WORKER_ID,
    Check,
    Violations,
    check_duration,
    check_moment,
    check_task_id,
)

SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_SEEN_TOOLS: Final = 256
MAX_WORKERS_A_PAGE: Final = 1000
_WORKERS_TOKEN: Final = re.compile(WORKER_ID.pattern.removesuffix(r"\Z") + rf" .{{1,{MAX_ID_CHARACTERS}}}\Z")

# Calls in doubt and their resolutions.


def check_resolve_call(request: Any, v: Violations) -> None:
    """Checks the resolution of a call attempt, in the fields that the gateway and the ledger share."""
    v.require(bool(CALL_ID.match(request.call_id)), "call_id", 'must be "<step>.<index>"')
    v.between("call_attempt", request.call_attempt, 1, MAX_CALL_ATTEMPTS)
    _decision(request.decision, v, "decision")


def check_resolution(resolution: tool_pb2.CallResolution, v: Violations) -> None:
    """Checks a resolution on its way to the tool service."""
    v.between("resolution.call_attempt", resolution.call_attempt, 1, MAX_CALL_ATTEMPTS)
    v.length("resolution.reason", resolution.reason, 1, 1000)
    v.length("resolution.actor", resolution.actor, 1, 200)
    _decision(resolution.decision, v, "resolution.decision")


def check_calls_in_doubt(calls: Any, v: Violations, field: str) -> None:
    """Checks the calls in doubt that a wait is for."""
    v.require(len(calls) <= MAX_CALLS_IN_DOUBT, field, f"at most {MAX_CALLS_IN_DOUBT}")
    for index, call in enumerate(calls):
        v.require(bool(CALL_ID.match(call.call_id)), f"{field}[{index}].call_id", 'must be "<step>.<index>"')
        v.between(f"{field}[{index}].call_attempt", call.call_attempt, 0, MAX_CALL_ATTEMPTS)


def check_in_doubt_page(request: Any, v: Violations) -> None:
    """Checks the paging fields of the requests that list calls in doubt."""
    v.between("page_size", request.page_size, 0, MAX_IN_DOUBT_A_PAGE)
    v.length("page_token", request.page_token, 0, 512)


def _decision(decision: tool_pb2.InDoubtDecision, v: Violations, field: str) -> None:
    v.require(decision.WhichOneof("decision") is not None, field, "must be set")
    size = len(decision.happened.result.encode())
    v.require(size <= MAX_GOAL_BYTES, f"{field}.happened.result", f"at most {MAX_GOAL_BYTES} bytes")


def _resolve(request: admin.ResolveInDoubtCallRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    v.length("reason", request.reason, 1, 1000)
    check_resolve_call(request, v)


def _list(request: Any, v: Violations) -> None:
    if request.task_id:
        check_task_id(request, v)
    check_in_doubt_page(request, v)


def _list_in_tool_service(request: tools.ListInDoubtCallsRequest, v: Violations) -> None:
    _list(request, v)
    v.require(len(request.calls) <= MAX_IN_DOUBT_A_PAGE, "calls", f"at most {MAX_IN_DOUBT_A_PAGE}")
    for index, call in enumerate(request.calls):
        v.uuid(f"calls[{index}].task_id", call.task_id)
        v.require(bool(CALL_ID.match(call.call_id)), f"calls[{index}].call_id", 'must be "<step>.<index>"')


_IN_DOUBT_CHECKS: Final[dict[type, Check]] = {
    admin.ResolveInDoubtCallRequest: _resolve,
    admin.AdminServiceListInDoubtCallsRequest: _list,
    tools.ListInDoubtCallsRequest: _list_in_tool_service,
}

MAX_EXTRA_STEPS: Final = 100_000
MAX_IDLE_SECONDS: Final = 366 * 24 * 3600.0
_END_STATES: Final = frozenset(
    {
        task_pb2.TASK_STATE_SUCCEEDED,
        task_pb2.TASK_STATE_FAILED,
        task_pb2.TASK_STATE_TIMED_OUT,
        task_pb2.TASK_STATE_CANCELLED,
    }
)


def check_reason(request: Any, v: Violations, field: str = "reason") -> None:
    v.length(field, request.reason, 1, 1000)


def check_operator_request(request: ledger_pb2.OperatorRequest, v: Violations) -> None:
    check_reason(request, v, "operator_request.reason")
    v.require(request.WhichOneof("act") is not None, "operator_request.act", "must be set")
    if request.HasField("requeue"):
        _check_extras(request.requeue, v)
    if request.HasField("grant_budget"):
        _check_grant(request.grant_budget, v)
    if request.HasField("close_out"):
        _check_end(request.close_out, v)
    if request.HasField("resolve_call"):
        check_resolve_call(request.resolve_call, v)
    if request.HasField("begin_wait"):
        _check_wait(request.begin_wait, v)


def _check_extras(requeue: Any, v: Violations) -> None:
    _check_budget(requeue, v)
    v.between("extra_steps", requeue.extra_steps, 0, MAX_EXTRA_STEPS)


def _check_budget(extras: Any, v: Violations) -> None:
    v.between("extra_tokens", extras.extra_tokens, 0, MAX_TOKENS)
    v.between("extra_nano_usd", extras.extra_nano_usd, 0, MAX_NANO_USD)


def _check_grant(grant: Any, v: Violations) -> None:
    _check_budget(grant, v)
    v.require(
        bool(grant.extra_tokens or grant.extra_nano_usd), "extra_tokens", "must be set unless extra_nano_usd is set"
    )


def _check_end(close_out: Any, v: Violations) -> None:
    v.require(close_out.to_state in _END_STATES, "to_state", "must be SUCCEEDED, FAILED, TIMED_OUT or CANCELLED")
    is_success = close_out.to_state == task_pb2.TASK_STATE_SUCCEEDED
    v.require(bool(close_out.result) or not is_success, "result", "must be set for SUCCEEDED")
    v.require(len(close_out.result.encode()) <= MAX_GOAL_BYTES, "result", f"at most {MAX_GOAL_BYTES} bytes")


def _requeue(request: admin.RequeueTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_extras(request, v)


def _grant(request: admin.GrantBudgetRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_grant(request, v)


def _close_out(request: admin.CloseOutTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_end(request, v)


def _check_wait(wait: Any, v: Violations) -> None:
    v.length("question", wait.question, 1, MAX_QUESTION_CHARACTERS)
    v.require(wait.HasField("until"), "until", "must be set")
    check_moment("until", wait.until, v)
    v.known("at_deadline", task_pb2.WaitDeadlinePolicy, wait.at_deadline)


def _begin_wait(request: admin.BeginWaitRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_wait(request, v)


def _check_worker(field: str, worker_id: str, least: int, v: Violations) -> None:
    v.length(field, worker_id, least, 128)


def _transfer(request: admin.TransferTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    check_reason(request, v)
    _check_worker("to_worker_id", request.to_worker_id, 0, v)
    v.require(request.epoch >= 0, "epoch", "must not be negative")


def _drain(request: admin.DrainWorkerRequest, v: Violations) -> None:
    _check_worker("worker_id", request.worker_id, 1, v)
    check_reason(request, v)


def _transfer_by_coordinator(request: coordinator.CoordinatorServiceTransferTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    check_reason(request, v)
    v.length("actor", request.actor, 1, 200)
    v.require(request.epoch > 0, "epoch", "must be the epoch of a claim")
    _check_worker("to_worker_id", request.to_worker_id, 0, v)


def _drain_by_coordinator(request: coordinator.CoordinatorServiceDrainWorkerRequest, v: Violations) -> None:
    _check_worker("worker_id", request.worker_id, 1, v)
    check_reason(request, v)
    v.length("actor", request.actor, 1, 200)


def check_prune(request: Any, v: Violations) -> None:
    """Checks the fields that the prune requests of the gateway and of the ledger share."""
    v.require(request.WhichOneof("which") is not None, "which", "must be set")
    if request.WhichOneof("which") == "task_id":
        check_task_id(request, v)
    if request.WhichOneof("which") == "ended_before":
        check_moment("ended_before", request.ended_before, v)
    check_reason(request, v)
    v.between("limit", request.limit, 0, 500)


def _list_workers(request: Any, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, MAX_WORKERS_A_PAGE)
    v.require(
        not request.page_token or bool(_WORKERS_TOKEN.match(request.page_token)),
        "page_token",
        "must be the next_page_token of an earlier answer",
    )


def _aging(request: Any, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 500)
    v.length("page_token", request.page_token, 0, 512)
    check_duration("idle", request.idle, MAX_IDLE_SECONDS, v)
    v.require(len(request.states) <= MAX_CHOICES, "states", f"at most {MAX_CHOICES}")


def _aging_with_leases(request: admin.ListAgingTasksRequest, v: Violations) -> None:
    _aging(request, v)
    check_duration("lease_below", request.lease_below, MAX_IDLE_SECONDS, v)


def _accept_tools(request: Any, v: Violations) -> None:
    v.length("name", request.name, 1, 64)
    v.require(1 <= len(request.tools) <= MAX_SEEN_TOOLS, "tools", f"must be 1 to {MAX_SEEN_TOOLS} tools")
    for number, tool in enumerate(request.tools):
        v.length(f"tools[{number}].name", tool.name, 1, 64)
        v.require(bool(SHA256.fullmatch(tool.sha256)), f"tools[{number}].sha256", "must be 64 hexadecimal digits")
    names = {tool.name for tool in request.tools}
    v.require(len(names) == len(request.tools), "tools", "must be different tools")


def _accept_source_tools(request: tools.AcceptSourceToolsRequest, v: Violations) -> None:
    _accept_tools(request, v)
    v.length("actor", request.actor, 1, 200)


_OPERATOR_CHECKS: Final[dict[type, Check]] = {
    checkpoint.ListAgingRequest: _aging,
    admin.ListAgingTasksRequest: _aging_with_leases,
    admin.ListWorkersRequest: _list_workers,
    coordinator.CoordinatorServiceListWorkersRequest: _list_workers,
    admin.RequeueTaskRequest: _requeue,
    admin.GrantBudgetRequest: _grant,
    admin.PruneTasksRequest: check_prune,
    admin.CloseOutTaskRequest: _close_out,
    admin.BeginWaitRequest: _begin_wait,
    admin.TransferTaskRequest: _transfer,
    admin.DrainWorkerRequest: _drain,
    admin.AcceptToolsRequest: _accept_tools,
    tools.AcceptSourceToolsRequest: _accept_source_tools,
    coordinator.CoordinatorServiceTransferTaskRequest: _transfer_by_coordinator,
    coordinator.CoordinatorServiceDrainWorkerRequest: _drain_by_coordinator,
}


CHECKS: Final[dict[type, Check]] = {
    **_IN_DOUBT_CHECKS,
    **_OPERATOR_CHECKS,
}
