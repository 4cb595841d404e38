"""The client's calls for operators: calls in doubt, requeues, budgets, close-outs and pruning."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import uuid_utils

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import timestamp
from tenure.wire.tool import decision_to_wire

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.domain.in_doubt import Decision
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub


# Calls in doubt.


class InDoubtCalls:
    """A mixin of Client, which has the stub and `_call`."""

    admin: AdminServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def in_doubt(
        self, task_id: str = "", *, include_all: bool = False
    ) -> AsyncGenerator[pb.ListInDoubtCallsResponse.Listed]:
        """Yields the calls in doubt that wait for a resolution, the longest wait first. Raises NotFound.

        include_all: also yields the calls of tasks that ended or continued without a resolution.
        """
        request = pb.ListInDoubtCallsRequest(task_id=task_id, all=include_all)
        while True:
            page: pb.ListInDoubtCallsResponse = await self._call(self.admin.ListInDoubtCalls, request)
            for listed in page.calls:
                yield listed
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def resolve_call(
        self, task_id: str, call_id: str, call_attempt: int, decision: Decision, reason: str, *, request_id: str = ""
    ) -> task_pb2.Task:
        """Records the resolution of a call in doubt.

        Raises WrongState with the reason WRONG_STATE, NOT_IN_DOUBT, OTHER_ATTEMPT or RUNNER_NOT_GONE.
        """
        request = pb.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=call_id,
            call_attempt=call_attempt,
            decision=decision_to_wire(decision),
            reason=reason,
            request_id=request_id or str(uuid_utils.uuid7()),
        )
        response: pb.ResolveInDoubtCallResponse = await self._call(self.admin.ResolveInDoubtCall, request)
        return response.task


class InterventionCalls:
    """A mixin of Client, which has the stub and `_call`."""

    admin: AdminServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def requeue(
        self, task_id: str, reason: str, *, extra_tokens: int = 0, extra_steps: int = 0, extra_nano_usd: int = 0
    ) -> task_pb2.Task:
        """Requeues an ended task as its next attempt, or starts a scheduled retry at once. Raises WrongState."""
        request = admin.RequeueTaskRequest(
            task_id=task_id,
            request_id=str(uuid_utils.uuid7()),
            reason=reason,
            extra_tokens=extra_tokens,
            extra_steps=extra_steps,
            extra_nano_usd=extra_nano_usd,
        )
        queued: admin.RequeueTaskResponse = await self._call(self.admin.RequeueTask, request)
        return queued.task

    async def grant_budget(
        self, task_id: str, reason: str, *, extra_tokens: int = 0, extra_nano_usd: int = 0
    ) -> task_pb2.Task:
        """Raises the caps of a task's root and returns the root.

        A root in COST_EXCEEDED continues. Raises WrongState.
        """
        request = admin.GrantBudgetRequest(
            task_id=task_id,
            request_id=str(uuid_utils.uuid7()),
            reason=reason,
            extra_tokens=extra_tokens,
            extra_nano_usd=extra_nano_usd,
        )
        granted: admin.GrantBudgetResponse = await self._call(self.admin.GrantBudget, request)
        return granted.task

    async def close_out(
        self, task_id: str, to_state: task_pb2.TaskState.ValueType, reason: str, result: str = ""
    ) -> task_pb2.Task:
        """Records a request to end a task as SUCCEEDED, FAILED, TIMED_OUT or CANCELLED.

        SUCCEEDED needs a result, which fits the task's result schema. Raises WrongState and InvalidRequest.
        """
        request = admin.CloseOutTaskRequest(
            task_id=task_id, request_id=str(uuid_utils.uuid7()), reason=reason, to_state=to_state, result=result
        )
        closed: admin.CloseOutTaskResponse = await self._call(self.admin.CloseOutTask, request)
        return closed.task

    async def begin_wait(
        self,
        task_id: str,
        question: str,
        until: datetime,
        reason: str,
        at_deadline: task_pb2.WaitDeadlinePolicy.ValueType = task_pb2.WAIT_DEADLINE_POLICY_GO_ON,
    ) -> task_pb2.Task:
        """Lets a task wait for a person until `resume` with the decision "continue", or until the deadline.

        Raises WrongState, and Unavailable (STILL_HELD) while its worker still has the task.
        """
        request = admin.BeginWaitRequest(
            task_id=task_id,
            request_id=str(uuid_utils.uuid7()),
            reason=reason,
            question=question,
            until=timestamp(until),
            at_deadline=at_deadline,
        )
        waiting: admin.BeginWaitResponse = await self._call(self.admin.BeginWait, request)
        return waiting.task


# Pruning of ended tasks.

_PAGE: Final = 500


class PruneCalls:
    """A mixin of Client, which has the stub and `_call`."""

    admin: AdminServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def prune(self, task_id: str, reason: str, *, dry_run: bool = False) -> None:
        """Deletes an ended task for good, except for its bills. A repeat has no effect. Raises NotFound, WrongState."""
        request = pb.PruneTasksRequest(task_id=task_id, reason=reason, dry_run=dry_run)
        await self._call(self.admin.PruneTasks, request)

    async def prune_before(
        self, ended_before: datetime, reason: str, *, dry_run: bool = False
    ) -> AsyncGenerator[list[str]]:
        """Deletes the tasks that ended before a moment, and yields their ids in batches.

        dry_run: deletes nothing, and yields the first 500 ids.
        """
        request = pb.PruneTasksRequest(
            ended_before=timestamp(ended_before), reason=reason, dry_run=dry_run, limit=_PAGE
        )
        more = True
        while more:
            response: pb.PruneTasksResponse = await self._call(self.admin.PruneTasks, request)
            yield list(response.task_ids)
            more = response.more and not dry_run
