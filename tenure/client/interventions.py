"""The client's calls by which operators decide what becomes of a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import uuid_utils

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2

if TYPE_CHECKING:  # it exists for type checkers only
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub


class InterventionCalls:
    """A part of Client, which has the stub and the patience."""

    admin: AdminServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def requeue(
        self, task_id: str, reason: str, *, extra_tokens: int = 0, extra_steps: int = 0, extra_nano_usd: int = 0
    ) -> task_pb2.Task:
        """Let an ended task go on as its next attempt, or one that waits for its retry at once. Raises WrongState."""
        asked = admin.RequeueTaskRequest(
            task_id=task_id,
            request_id=str(uuid_utils.uuid7()),
            reason=reason,
            extra_tokens=extra_tokens,
            extra_steps=extra_steps,
            extra_nano_usd=extra_nano_usd,
        )
        queued: admin.RequeueTaskResponse = await self._patiently(self.admin.RequeueTask, asked)
        return queued.task

    async def grant_budget(
        self, task_id: str, reason: str, *, extra_tokens: int = 0, extra_nano_usd: int = 0
    ) -> task_pb2.Task:
        """Raise the caps of a task's tree. Gives its root, which goes on if it was COST_EXCEEDED. Raises WrongState."""
        asked = admin.GrantBudgetRequest(
            task_id=task_id,
            request_id=str(uuid_utils.uuid7()),
            reason=reason,
            extra_tokens=extra_tokens,
            extra_nano_usd=extra_nano_usd,
        )
        granted: admin.GrantBudgetResponse = await self._patiently(self.admin.GrantBudget, asked)
        return granted.task

    async def close_out(
        self, task_id: str, to_state: task_pb2.TaskState.ValueType, reason: str, result: str = ""
    ) -> task_pb2.Task:
        """Ask for a task's end as FAILED, TIMED_OUT or CANCELLED; recorded once this returns. Raises WrongState."""
        asked = admin.CloseOutTaskRequest(
            task_id=task_id, request_id=str(uuid_utils.uuid7()), reason=reason, to_state=to_state, result=result
        )
        closed: admin.CloseOutTaskResponse = await self._patiently(self.admin.CloseOutTask, asked)
        return closed.task
