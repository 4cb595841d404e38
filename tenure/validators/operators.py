"""What operators ask for: AdminService, and the ledger's door behind it."""

from __future__ import annotations

from typing import Any, Final

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.validators.fields import check_task_id
from tenure.validators.limits import MAX_GOAL_BYTES
from tenure.validators.violations import Check, Violations

MOST_EXTRA_TOKENS: Final = 10**12
MOST_EXTRA_STEPS: Final = 100_000
_ENDS: Final = frozenset({task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_TIMED_OUT, task_pb2.TASK_STATE_CANCELLED})


def check_reason(request: Any, v: Violations, field: str = "reason") -> None:
    v.length(field, request.reason, 1, 1000)


def check_operator_request(request: ledger_pb2.OperatorRequest, v: Violations) -> None:
    check_reason(request, v, "operator_request.reason")
    v.require(request.WhichOneof("act") is not None, "operator_request.act", "must be set")
    if request.HasField("requeue"):
        _check_extras(request.requeue, v)
    if request.HasField("close_out"):
        _check_end(request.close_out, v)


def _check_extras(requeue: Any, v: Violations) -> None:
    v.between("extra_tokens", requeue.extra_tokens, 0, MOST_EXTRA_TOKENS)
    v.between("extra_steps", requeue.extra_steps, 0, MOST_EXTRA_STEPS)


def _check_end(close_out: Any, v: Violations) -> None:
    v.require(close_out.to_state in _ENDS, "to_state", "must be FAILED, TIMED_OUT or CANCELLED")
    v.require(len(close_out.result.encode()) <= MAX_GOAL_BYTES, "result", f"at most {MAX_GOAL_BYTES} bytes")


def _requeue(request: admin.RequeueTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_extras(request, v)


def _close_out(request: admin.CloseOutTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_reason(request, v)
    _check_end(request, v)


CHECKS: Final[dict[type, Check]] = {
    admin.RequeueTaskRequest: _requeue,
    admin.CloseOutTaskRequest: _close_out,
}
