"""The client's calls about tool calls that may or may not have happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import uuid_utils

from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.in_doubt import decision_to_wire

if TYPE_CHECKING:
    from tenure.domain.in_doubt import Decision
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub


class DoubtCalls:
    """A part of Client, which has the stub and the patience."""

    admin: AdminServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def in_doubt(
        self, task_id: str = "", *, include_all: bool = False
    ) -> AsyncGenerator[pb.AdminServiceListInDoubtCallsResponse.Listed]:
        """Calls in doubt that somebody can settle, the longest wait first. `include_all`: those of tasks that ended or
        went on, too. Raises NotFound.
        """
        asked = pb.AdminServiceListInDoubtCallsRequest(task_id=task_id, all=include_all)
        while True:
            page: pb.AdminServiceListInDoubtCallsResponse = await self._patiently(self.admin.ListInDoubtCalls, asked)
            for listed in page.calls:
                yield listed
            if not page.next_page_token:
                return
            asked.page_token = page.next_page_token

    async def resolve_call(
        self, task_id: str, call_id: str, call_attempt: int, decision: Decision, reason: str, *, request_id: str = ""
    ) -> task_pb2.Task:
        """Say what became of a call in doubt: recorded once this returns. Raises WrongState, by its reason WRONG_STATE,
        NOT_IN_DOUBT, OTHER_ATTEMPT or RUNNER_NOT_GONE.
        """
        asked = pb.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=call_id,
            call_attempt=call_attempt,
            decision=decision_to_wire(decision),
            reason=reason,
            request_id=request_id or str(uuid_utils.uuid7()),
        )
        told: pb.ResolveInDoubtCallResponse = await self._patiently(self.admin.ResolveInDoubtCall, asked)
        return told.task
