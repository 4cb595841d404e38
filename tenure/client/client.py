"""Calls of the public API, with the patience and the repetition that the contract allows already built in."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self, TypeVar

import uuid_utils
from google.protobuf.message import Message

from tenure.client.admin_calls import InDoubtCalls, InterventionCalls, PruneCalls
from tenure.client.leases import LeaseCalls
from tenure.client.reconnect import StreamReconnect
from tenure.client.service_calls import ScheduleCalls, TenantCalls, WebhookCalls
from tenure.client.task_calls import FileCalls, WaitCalls
from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub
from tenure.wire.common import duration

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub

T = TypeVar("T")

CALL_TIMEOUT_SECONDS: Final = 15.0
ONE_WAIT_SECONDS: Final = 60.0
FORK_TIMEOUT_SECONDS: Final = 150.0
"""Files are copied."""

PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
"""With a gateway that has never answered: perhaps there is none."""
RETURN_PATIENCE: Final = RetryPolicy(max_attempts=12, initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
"""With one that has: it is being started again, and its channel looks for it every 2 s."""
LONGEST_ASKED_SECONDS: Final = 10.0
"""Whoever is told to come again later than that decides for themselves: at a tenant's cap it may be a day."""
LIST_PAGE: Final = 500


class Client(
    InDoubtCalls,
    FileCalls,
    InterventionCalls,
    LeaseCalls,
    PruneCalls,
    ScheduleCalls,
    TenantCalls,
    WaitCalls,
    WebhookCalls,
):
    """A connection to the gateway: `host:port`, or its replicas as `ip:port,ip:port`.

    Errors are those of tenure.domain.errors; TryLater is retried a few times first, and for some ten seconds once the
    gateway has answered.
    """

    def __init__(self, address: str, *, tenant: str = "default", patience: RetryPolicy = PATIENCE) -> None:
        self._address, self._tenant, self._patience = address, tenant, patience
        self._answered = False
        self.tasks: TaskServiceAsyncStub
        self.admin: AdminServiceAsyncStub
        self.leases: LeaseServiceAsyncStub

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._address, default_timeout_seconds=CALL_TIMEOUT_SECONDS, tenant=self._tenant)
        self.tasks = TaskServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)
        self.leases = LeaseServiceStub(self._channel)
        self.schedules = ScheduleServiceStub(self._channel)
        self.tenants = TenantServiceStub(self._channel)
        self.webhooks = WebhookServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def submit(self, goal: str, *, request: api.SubmitTaskRequest | None = None) -> task_pb2.Task:
        """Submits `goal`, with the rest taken from `request`. One task, also when the call had to be repeated."""
        task_request = api.SubmitTaskRequest()
        if request is not None:
            task_request.CopyFrom(request)
        task_request.goal = goal
        task_request.request_id = task_request.request_id or str(uuid_utils.uuid7())
        return (await self._patiently(self.tasks.SubmitTask, task_request)).task

    async def get(self, task_id: str) -> task_pb2.Task:
        """The task as it stands."""
        return (await self._patiently(self.tasks.GetTask, api.GetTaskRequest(task_id=task_id))).task

    async def wait(self, task_id: str, timeout_seconds: float | None = None) -> task_pb2.Task:
        """The task once it has ended; TimeoutError when it has not by then. None: as long as it takes."""
        ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        await self.get(task_id)
        contact = StreamReconnect()
        while True:
            left = ONE_WAIT_SECONDS if ends_at is None else min(ONE_WAIT_SECONDS, ends_at - time.monotonic())
            request = api.WaitTaskRequest(task_id=task_id, timeout=duration(max(left, 0.0)))
            try:
                answer = await self.tasks.WaitTask(request, timeout=ONE_WAIT_SECONDS + CALL_TIMEOUT_SECONDS)
                contact.made()
                if answer.ended:
                    return answer.task
            except TryLater as error:
                await contact.lost(error)
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(f"task {task_id} has not ended in {timeout_seconds:g} s")

    async def list_tasks(
        self,
        task_filter: task_pb2.TaskFilter | None = None,
        *,
        limit: int = 50,
        order: task_pb2.TaskOrder.ValueType = task_pb2.TASK_ORDER_NEWEST,
    ) -> AsyncGenerator[task_pb2.Task]:
        """At most `limit` tasks, the newest first unless asked otherwise."""
        token = ""
        while limit > 0:
            page_size = min(LIST_PAGE, limit)
            request = api.ListTasksRequest(filter=task_filter, page_size=page_size, page_token=token, order=order)
            page = await self._patiently(self.tasks.ListTasks, request)
            for task in page.tasks:
                yield task
            limit -= len(page.tasks)
            token = page.next_page_token
            if not token:
                return

    async def entries(self, task_id: str, after_sequence: int = 0) -> AsyncGenerator[ledger_pb2.Entry]:
        """The entries so far, oldest first."""
        more = True
        while more:
            request = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after_sequence)
            page = await self._patiently(self.tasks.ListTaskEntries, request)
            for entry in page.entries:
                yield entry
                after_sequence = entry.sequence
            more = page.more

    async def watch(
        self, task_id: str, after_sequence: int = 0, *, live: bool = False
    ) -> AsyncGenerator[api.WatchTaskResponse]:
        """Events until the task ends. A broken stream is resumed: no entry is missed or repeated."""
        await self.get(task_id)
        contact = StreamReconnect()
        while True:
            request = api.WatchTaskRequest(task_id=task_id, after_sequence=after_sequence, live=live)
            try:
                async for event in self.tasks.WatchTask(request):
                    contact.made()
                    if event.HasField("entry"):
                        after_sequence = event.entry.sequence
                    yield event
            except TryLater as error:
                await contact.lost(error)
            else:
                return

    async def watch_tasks(
        self, task_filter: task_pb2.TaskFilter | None = None, *, after_cursor: str = ""
    ) -> AsyncGenerator[api.WatchTasksResponse]:
        """What happens to all tasks, for ever, beginning with a heartbeat; without a cursor from now on.

        A broken stream is resumed: no change is missed or repeated. Keep the last event's `cursor` to go on later.
        Raises OutOfRange (CURSOR_EXPIRED): list the tasks, and watch from now.
        """
        contact = StreamReconnect()
        while True:
            request = api.WatchTasksRequest(filter=task_filter, after_cursor=after_cursor)
            try:
                async for event in self.tasks.WatchTasks(request):
                    contact.made()
                    after_cursor = event.cursor
                    yield event
            except TryLater as error:
                await contact.lost(error)

    async def cancel(self, task_id: str, reason: str = "") -> task_pb2.Task:
        """Asks for the end; the answer means that the request is recorded."""
        request = api.CancelTaskRequest(task_id=task_id, reason=reason)
        return (await self._patiently(self.tasks.CancelTask, request)).task

    async def fork(self, request: api.ForkTaskRequest) -> task_pb2.Task:
        """A new task from another's history, with a copy of its files, once.

        Raises WrongState (NO_FORK_POINT, NOTHING_TO_DO, FORK_TOO_LARGE, WORKSPACE_LIMIT, WORKSPACE_UNREADABLE).
        """
        task_request = api.ForkTaskRequest()
        task_request.CopyFrom(request)
        task_request.request_id = task_request.request_id or str(uuid_utils.uuid7())
        return (await self._patiently(self.tasks.ForkTask, task_request, FORK_TIMEOUT_SECONDS)).task

    async def send(self, task_id: str, text: str, *, request_id: str = "") -> task_pb2.Task:
        """Says something to a live task's agent, once. WrongState when nobody would read it any more."""
        request_id = request_id or str(uuid_utils.uuid7())
        request = api.SendMessageRequest(task_id=task_id, request_id=request_id, text=text)
        return (await self._patiently(self.tasks.SendMessage, request)).task

    async def workers(self) -> admin.ListWorkersResponse:
        """Who is there to work."""
        return await self._patiently(self.admin.ListWorkers, admin.ListWorkersRequest())

    async def queues(self) -> admin.ListQueuesResponse:
        """How much is queued, of all tenants, by queue and priority."""
        return await self._patiently(self.admin.ListQueues, admin.ListQueuesRequest())

    async def tools(self) -> admin.AdminServiceListToolsResponse:
        """The tools that tasks of the tenant may be allowed to call."""
        return await self._patiently(self.admin.ListTools, admin.AdminServiceListToolsRequest())

    async def tool_sources(self) -> admin.ListToolSourcesResponse:
        """What has tools, and whether it is there, as one replica of the tool service sees it."""
        return await self._patiently(self.admin.ListToolSources, admin.ListToolSourcesRequest())

    async def claims(self, task_id: str = "") -> admin.ListClaimsResponse:
        """Who holds what, or who holds this task."""
        return await self._patiently(self.admin.ListClaims, admin.ListClaimsRequest(task_id=task_id))

    async def transfer(self, task_id: str, reason: str, to_worker_id: str = "") -> task_pb2.Task:
        """Take a running task from its worker, once, so that it goes on elsewhere. Raises WrongState, NotFound."""
        epoch = (await self.get(task_id)).epoch
        request = admin.TransferTaskRequest(task_id=task_id, reason=reason, to_worker_id=to_worker_id, epoch=epoch)
        return (await self._patiently(self.admin.TransferTask, request)).task

    async def aging(self, request: admin.ListAgingTasksRequest) -> AsyncGenerator[admin.ListAgingTasksResponse]:
        """Tasks that have not ended, page by page."""
        admin_request = admin.ListAgingTasksRequest()
        admin_request.CopyFrom(request)
        while True:
            page = await self._patiently(self.admin.ListAgingTasks, admin_request)
            yield page
            admin_request.page_token = page.next_page_token
            if not admin_request.page_token:
                return

    async def explain(self, task_id: str) -> api.ExplainTaskResponse:
        """In ten lines why a task is where it is, and what would move it."""
        return await self._patiently(self.tasks.ExplainTask, api.ExplainTaskRequest(task_id=task_id))

    async def drain(self, worker_id: str, reason: str) -> admin.DrainWorkerResponse:
        """Tell a worker to give back all it holds and take no more, until it is started anew. Raises NotFound."""
        request = admin.DrainWorkerRequest(worker_id=worker_id, reason=reason)
        return await self._patiently(self.admin.DrainWorker, request)

    async def refusals(self, task_id: str) -> admin.ListRefusalsResponse:
        """What the fences refused to stale holders of the task."""
        return await self._patiently(self.admin.ListRefusals, admin.ListRefusalsRequest(task_id=task_id))

    async def bills(self, task_id: str) -> AsyncGenerator[ledger_pb2.Bill]:
        """What the task's model attempts were billed, by step and attempt."""
        more, request = True, admin.AdminServiceListBillsRequest(task_id=task_id)
        while more:
            page = await self._patiently(self.admin.ListBills, request)
            for bill in page.bills:
                yield bill
                request.after_step, request.after_attempt_number = bill.step, bill.attempt_number
            more = page.more

    async def calls(self, task_id: str) -> AsyncGenerator[admin.AdminServiceListCallsResponse]:
        """The tools' records of the task's calls, page by page; the fence comes with each."""
        more, after = True, ""
        while more:
            request = admin.AdminServiceListCallsRequest(task_id=task_id, after_call_id=after)
            page = await self._patiently(self.admin.ListCalls, request)
            yield page
            more = page.more
            after = page.calls[-1].record.call_id if page.calls else after

    async def _patiently(
        self, method: Callable[..., Awaitable[T]], request: Message, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> T:
        patience = RETURN_PATIENCE if self._answered else self._patience
        answer = await retrying(
            lambda: method(request, timeout=timeout_seconds),
            patience,
            on=(TryLater,),
            longest_seconds=LONGEST_ASKED_SECONDS,
        )
        self._answered = True
        return answer
