"""The client's calls about waits: answers to them, and events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import uuid_utils

from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub


class WaitCalls:
    """A part of Client, which has the stub and the patience."""

    tasks: TaskServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def resume(
        self,
        task_id: str,
        wait_id: str,
        *,
        decision: str = "",
        reply: str = "",
        call_digest: str = "",
        comment: str = "",
        edited_arguments_json: str = "",
        extra_budget_tokens: int = 0,
        request_id: str = "",
    ) -> task_pb2.Task:
        """Answers the wait `wait_id` by a decision or a reply; leave for a tool's call needs the wait's `call_digest`.

        WrongState when another wait (WAIT_OVER) or another call (OTHER_CALL) is the present one; the error's metadata
        describes it.
        """
        asked = api.ResumeTaskRequest(
            task_id=task_id,
            wait_id=wait_id,
            call_digest=call_digest,
            request_id=request_id or str(uuid_utils.uuid7()),
            comment=comment,
            edited_arguments_json=edited_arguments_json,
            extra_budget_tokens=extra_budget_tokens,
        )
        if decision:
            asked.decision = decision
        else:
            asked.reply = reply
        answer: api.ResumeTaskResponse = await self._patiently(self.tasks.ResumeTask, asked)
        return answer.task

    async def signal(self, correlation_id: str, payload_json: str, *, request_id: str = "") -> task_pb2.Task | None:
        """Sends an event to the task that waits for it; None: it is kept for one to come."""
        asked = api.ResumeTaskRequest(
            correlation_id=correlation_id,
            request_id=request_id or str(uuid_utils.uuid7()),
            payload_json=payload_json,
        )
        answer: api.ResumeTaskResponse = await self._patiently(self.tasks.ResumeTask, asked)
        return answer.task if answer.HasField("task") else None
