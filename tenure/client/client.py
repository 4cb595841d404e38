"""Calls of the public API, with the patience and the repetition that the contract allows already built in."""

from __future__ import annotations

import random
import time
from asyncio import sleep
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self, TypeVar

import uuid_utils
from google.protobuf.message import Message

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_channel import open_channel
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.wire.times import duration

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub

T = TypeVar("T")

CALL_TIMEOUT_SECONDS: Final = 15.0
ONE_WAIT_SECONDS: Final = 60.0
PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)


class Client:
    """A connection to a gateway. Errors are those of tenure.domain.errors; TryLater is retried a few times first."""

    def __init__(self, address: str, *, tenant: str = "default", patience: RetryPolicy = PATIENCE) -> None:
        self._address, self._tenant, self._patience = address, tenant, patience
        self.tasks: TaskServiceAsyncStub
        self.admin: AdminServiceAsyncStub

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._address, default_timeout_seconds=CALL_TIMEOUT_SECONDS, tenant=self._tenant)
        self.tasks = TaskServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def submit(self, goal: str, *, request: api.SubmitTaskRequest | None = None) -> task_pb2.Task:
        """Submits `goal`, with the rest taken from `request`. One task, also when the call had to be repeated."""
        asked = api.SubmitTaskRequest()
        if request is not None:
            asked.CopyFrom(request)
        asked.goal = goal
        asked.request_id = asked.request_id or str(uuid_utils.uuid7())
        return (await self._patiently(self.tasks.SubmitTask, asked)).task

    async def get(self, task_id: str) -> task_pb2.Task:
        """The task as it stands."""
        return (await self._patiently(self.tasks.GetTask, api.GetTaskRequest(task_id=task_id))).task

    async def wait(self, task_id: str, timeout_seconds: float | None = None) -> task_pb2.Task:
        """The task once it has ended; TimeoutError when it has not by then. None: as long as it takes."""
        ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = ONE_WAIT_SECONDS if ends_at is None else min(ONE_WAIT_SECONDS, ends_at - time.monotonic())
            asked = api.WaitTaskRequest(task_id=task_id, timeout=duration(max(left, 0.0)))
            answer = await self._patiently(self.tasks.WaitTask, asked, ONE_WAIT_SECONDS + CALL_TIMEOUT_SECONDS)
            if answer.ended:
                return answer.task
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(f"task {task_id} has not ended in {timeout_seconds:g} s")

    async def list(self, task_filter: task_pb2.TaskFilter | None = None, *, limit: int = 50) -> list[task_pb2.Task]:
        """The newest tasks, at most `limit`."""
        found: list[task_pb2.Task] = []
        token = ""
        while len(found) < limit:
            asked = api.ListTasksRequest(filter=task_filter, page_size=min(500, limit - len(found)), page_token=token)
            page = await self._patiently(self.tasks.ListTasks, asked)
            found += page.tasks
            token = page.next_page_token
            if not token:
                break
        return found

    async def entries(self, task_id: str, after_sequence: int = 0) -> AsyncGenerator[ledger_pb2.Entry]:
        """The entries so far, oldest first."""
        more = True
        while more:
            asked = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after_sequence)
            page = await self._patiently(self.tasks.ListTaskEntries, asked)
            for entry in page.entries:
                yield entry
                after_sequence = entry.sequence
            more = page.more

    async def watch(
        self, task_id: str, after_sequence: int = 0, *, live: bool = False
    ) -> AsyncGenerator[api.WatchTaskResponse]:
        """Events until the task ends. A broken stream is resumed: no entry is missed or repeated."""
        failures = 0
        while True:
            asked = api.WatchTaskRequest(task_id=task_id, after_sequence=after_sequence, live=live)
            try:
                async for event in self.tasks.WatchTask(asked):
                    failures = 0
                    if event.HasField("entry"):
                        after_sequence = event.entry.sequence
                    yield event
            except TryLater:
                failures += 1
                if failures > self._patience.max_attempts:
                    raise
            else:
                return
            await sleep(self._patience.wait_seconds(failures, random.random()))

    async def cancel(self, task_id: str, reason: str = "") -> task_pb2.Task:
        """Asks for the end; the answer means that the request is recorded."""
        asked = api.CancelTaskRequest(task_id=task_id, reason=reason)
        return (await self._patiently(self.tasks.CancelTask, asked)).task

    async def refusals(self, task_id: str) -> admin.ListRefusalsResponse:
        """What the fences refused to stale holders of the task."""
        return await self._patiently(self.admin.ListRefusals, admin.ListRefusalsRequest(task_id=task_id))

    async def _patiently(
        self, method: Callable[..., Awaitable[T]], request: Message, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> T:
        return await retrying(lambda: method(request, timeout=timeout_seconds), self._patience, on=(TryLater,))
