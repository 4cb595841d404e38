"""Client: the calls of the public API, with the retries and the stream resumption that the contract allows."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Self, TypeVar

import uuid_utils
from google.protobuf.message import Message

from tenure.client.admin_calls import InDoubtCalls, InterventionCalls, PruneCalls
from tenure.client.leases import LeaseCalls
from tenure.client.reconnect import StreamReconnect
from tenure.client.service_calls import (
    AgentCalls,
    ApiKeyCalls,
    ApproverCalls,
    AuditCalls,
    ScheduleCalls,
    TenantCalls,
    WebhookCalls,
)
from tenure.client.task_calls import FileCalls, WaitCalls
from tenure.domain.errors import TryLater
from tenure.domain.outbound import is_loopback_host
from tenure.domain.retry import RetryPolicy
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_client import open_channel
from tenure.runtime.settings import Address, Secret
from tenure.runtime.tls import ClientTls
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub
from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceStub
from tenure.v1.approval_service_pb2_grpc import ApprovalServiceStub
from tenure.v1.audit_service_pb2_grpc import AuditServiceStub
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
"""A fork copies the files of the workspace, so it takes longer."""

PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
"""The retries before the gateway has answered once: the address may be wrong."""
RETURN_PATIENCE: Final = RetryPolicy(max_attempts=12, initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
"""The retries after the gateway has answered: it may be restarting, and the channel reconnects every 2 s."""
LONGEST_RETRY_AFTER_SECONDS: Final = 10.0
"""A longer retry time of the server goes to the caller as an error: at a tenant's quota it may be a day."""
LIST_PAGE: Final = 500


def check_stays_here(addresses: str) -> None:
    """Raises ValueError for an address on another machine: an API key must not cross a network in clear text."""
    for address in addresses.split(","):
        if not is_loopback_host(Address(address.strip()).host):
            raise ValueError(f"{address}: an API key is sent to another machine by TLS only; give the CA file")


class Client(
    AgentCalls,
    ApiKeyCalls,
    ApproverCalls,
    AuditCalls,
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

    `api_key`: the client's identity, if the gateway demands one: an API key or a token of the identity provider, or a
    function that returns it, called for each call. It is sent to other machines by TLS only, so without `tls` the
    address must be on this machine (ValueError). `tenant`: with a key of an operator, the tenant to act for;
    without a key, the tenant ("default").

    Raises the errors of tenure.domain.errors. Retries TryLater a few times, and for about ten seconds once the gateway
    has answered.
    """

    def __init__(
        self,
        address: str,
        *,
        tenant: str | None = None,
        api_key: str | Callable[[], str] = "",
        tls: ClientTls | None = None,
        patience: RetryPolicy = PATIENCE,
    ) -> None:
        if api_key and tls is None:
            check_stays_here(address)
        identity = api_key if callable(api_key) else lambda: api_key
        self._api_key = (lambda: Secret(identity())) if api_key else None
        self._tenant = tenant or ("" if api_key else DEFAULT_TENANT)
        self._address, self._tls, self._patience = address, tls, patience
        self._answered = False
        self.tasks: TaskServiceAsyncStub
        self.admin: AdminServiceAsyncStub
        self.leases: LeaseServiceAsyncStub

    async def __aenter__(self) -> Self:
        return self.connect()

    def connect(self) -> Self:
        """Opens the channel, in a running event loop. `close` closes it."""
        self._channel = open_channel(
            self._address,
            tls=self._tls,
            api_key=self._api_key,
            default_timeout_seconds=CALL_TIMEOUT_SECONDS,
            tenant=self._tenant,
        )
        self.tasks = TaskServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)
        self.leases = LeaseServiceStub(self._channel)
        self.schedules = ScheduleServiceStub(self._channel)
        self.tenants = TenantServiceStub(self._channel)
        self.webhooks = WebhookServiceStub(self._channel)
        self.api_keys = ApiKeyServiceStub(self._channel)
        self.approvals = ApprovalServiceStub(self._channel)
        self.audit = AuditServiceStub(self._channel)
        self.agents = AgentServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel. Calls that still run end."""
        await self._channel.close()

    async def submit(self, goal: str, *, request: api.SubmitTaskRequest | None = None) -> task_pb2.Task:
        """Submits a task with `goal` and the other fields of `request`. Creates one task, also after retries."""
        task_request = api.SubmitTaskRequest()
        if request is not None:
            task_request.CopyFrom(request)
        task_request.spec.goal = goal
        task_request.request_id = task_request.request_id or str(uuid_utils.uuid7())
        return (await self._call(self.tasks.SubmitTask, task_request)).task

    async def get(self, task_id: str) -> task_pb2.Task:
        """Returns the task. Raises NotFound."""
        return (await self._call(self.tasks.GetTask, api.GetTaskRequest(task_id=task_id))).task

    async def wait(self, task_id: str, timeout_seconds: float | None = None) -> task_pb2.Task:
        """Waits until the task has ended and returns it. `timeout_seconds` None: waits without a limit.

        Raises TimeoutError when the task has not ended in time.
        """
        ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        await self.get(task_id)
        reconnect = StreamReconnect()
        while True:
            left = ONE_WAIT_SECONDS if ends_at is None else min(ONE_WAIT_SECONDS, ends_at - time.monotonic())
            request = api.WaitTaskRequest(task_id=task_id, timeout=duration(max(left, 0.0)))
            try:
                answer = await self.tasks.WaitTask(request, timeout=max(left, 0.0) + CALL_TIMEOUT_SECONDS)
                reconnect.succeeded()
                if answer.ended:
                    return answer.task
            except TryLater as error:
                await reconnect.wait(error)
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(f"task {task_id} has not ended within {timeout_seconds:g} s")

    async def list_tasks(
        self,
        task_filter: task_pb2.TaskFilter | None = None,
        *,
        limit: int = 50,
        order: task_pb2.TaskOrder.ValueType = task_pb2.TASK_ORDER_NEWEST,
        fresh: bool = False,
    ) -> AsyncGenerator[task_pb2.Task]:
        """Yields at most `limit` tasks, by default the newest first. `fresh`: none may be missing because a standby was
        asked.
        """
        token = ""
        while limit > 0:
            page_size = min(LIST_PAGE, limit)
            request = api.ListTasksRequest(
                filter=task_filter, page_size=page_size, page_token=token, order=order, fresh=fresh
            )
            page = await self.list_page(request)
            for task in page.tasks:
                yield task
            limit -= len(page.tasks)
            token = page.next_page_token
            if not token:
                return

    async def list_page(self, request: api.ListTasksRequest) -> api.ListTasksResponse:
        """Returns one page of tasks."""
        return await self._call(self.tasks.ListTasks, request)

    async def entries(self, task_id: str, after_sequence: int = 0) -> AsyncGenerator[ledger_pb2.Entry]:
        """Yields the entries of a task so far, the oldest first."""
        more = True
        while more:
            request = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after_sequence)
            page = await self._call(self.tasks.ListTaskEntries, request)
            for entry in page.entries:
                yield entry
                after_sequence = entry.sequence
            more = page.more

    async def watch(
        self, task_id: str, after_sequence: int = 0, *, live: bool = False
    ) -> AsyncGenerator[api.WatchTaskResponse]:
        """Yields the events of a task until it ends. Resumes a broken stream without missing or repeating an entry."""
        await self.get(task_id)
        reconnect = StreamReconnect()
        while True:
            request = api.WatchTaskRequest(task_id=task_id, after_sequence=after_sequence, live=live)
            try:
                async for event in self.tasks.WatchTask(request):
                    reconnect.succeeded()
                    if event.HasField("entry"):
                        after_sequence = event.entry.sequence
                    yield event
            except TryLater as error:
                await reconnect.wait(error)
            else:
                return

    async def watch_tasks(
        self, task_filter: task_pb2.TaskFilter | None = None, *, after_cursor: str = ""
    ) -> AsyncGenerator[api.WatchTasksResponse]:
        """Yields the changes of all tasks of the tenant, for ever, after a first heartbeat.

        Begins at `after_cursor`, or now. Resumes a broken stream without missing or repeating a change. Keep the cursor
        of the last event to continue later. Raises OutOfRange (CURSOR_EXPIRED): list the tasks, and watch from now.
        """
        reconnect = StreamReconnect()
        while True:
            request = api.WatchTasksRequest(filter=task_filter, after_cursor=after_cursor)
            try:
                async for event in self.tasks.WatchTasks(request):
                    reconnect.succeeded()
                    after_cursor = event.cursor
                    yield event
            except TryLater as error:
                await reconnect.wait(error)

    async def cancel(self, task_id: str, reason: str = "") -> task_pb2.Task:
        """Requests the cancellation of a task. The request is recorded when this returns."""
        request = api.CancelTaskRequest(task_id=task_id, reason=reason)
        return (await self._call(self.tasks.CancelTask, request)).task

    async def fork(self, request: api.ForkTaskRequest) -> task_pb2.Task:
        """Creates a task from another task's history, with a copy of its files. Creates one task, also after retries.

        Raises WrongState (NO_FORK_POINT, NOTHING_TO_DO, FORK_TOO_LARGE, WORKSPACE_LIMIT, WORKSPACE_UNREADABLE).
        """
        task_request = api.ForkTaskRequest()
        task_request.CopyFrom(request)
        task_request.request_id = task_request.request_id or str(uuid_utils.uuid7())
        return (await self._call(self.tasks.ForkTask, task_request, FORK_TIMEOUT_SECONDS)).task

    async def send(self, task_id: str, text: str, *, request_id: str = "") -> task_pb2.Task:
        """Sends a message to a task's agent, once, also after retries. Raises WrongState when the task has ended."""
        request_id = request_id or str(uuid_utils.uuid7())
        request = api.SendMessageRequest(task_id=task_id, request_id=request_id, text=text)
        return (await self._call(self.tasks.SendMessage, request)).task

    async def workers(self) -> admin.ListWorkersResponse:
        """Returns all workers, as one page."""
        request, listed = admin.ListWorkersRequest(), admin.ListWorkersResponse()
        while True:
            page = await self._call(self.admin.ListWorkers, request)
            listed.workers.extend(page.workers)
            request.page_token = page.next_page_token
            if not request.page_token:
                return listed

    async def queues(self) -> admin.ListQueuesResponse:
        """Returns the number of queued tasks of all tenants, by queue and priority."""
        return await self._call(self.admin.ListQueues, admin.ListQueuesRequest())

    async def tools(self) -> admin.ListOfferedToolsResponse:
        """Returns the tools that the tenant's tasks may call."""
        return await self._call(self.admin.ListTools, admin.ListOfferedToolsRequest())

    async def tool_sources(self) -> admin.ListToolSourcesResponse:
        """Returns the tool sources and whether they are connected, as one replica of the tool service sees them."""
        return await self._call(self.admin.ListToolSources, admin.ListToolSourcesRequest())

    async def accept_tools(self, source: str, seen: Mapping[str, str]) -> None:
        """Accepts held tools of a source. `seen`: their hashes by name, as `tool_sources` returned them.

        Raises WrongState (OTHER_DEFINITION) if one of them is described otherwise now.
        """
        tools = [tool_pb2.SeenTool(name=name, sha256=sha256) for name, sha256 in seen.items()]
        await self._call(self.admin.AcceptTools, admin.AcceptToolsRequest(name=source, tools=tools))

    async def claims(self, task_id: str = "") -> admin.ListClaimsResponse:
        """Returns all claims, or the claim of one task."""
        return await self._call(self.admin.ListClaims, admin.ListClaimsRequest(task_id=task_id))

    async def transfer(self, task_id: str, reason: str, to_worker_id: str = "") -> task_pb2.Task:
        """Transfers a running task to another worker, once, also after retries. Raises WrongState, NotFound."""
        epoch = (await self.get(task_id)).epoch
        request = admin.TransferTaskRequest(task_id=task_id, reason=reason, to_worker_id=to_worker_id, epoch=epoch)
        return (await self._call(self.admin.TransferTask, request)).task

    async def aging(self, request: admin.ListAgingTasksRequest) -> AsyncGenerator[admin.ListAgingTasksResponse]:
        """Yields the tasks that have not ended, page by page."""
        admin_request = admin.ListAgingTasksRequest()
        admin_request.CopyFrom(request)
        while True:
            page = await self._call(self.admin.ListAgingTasks, admin_request)
            yield page
            admin_request.page_token = page.next_page_token
            if not admin_request.page_token:
                return

    async def explain(self, task_id: str) -> api.ExplainTaskResponse:
        """Explains in about ten lines why a task is in its state, and what would change that."""
        return await self._call(self.tasks.ExplainTask, api.ExplainTaskRequest(task_id=task_id))

    async def drain(self, worker_id: str, reason: str) -> admin.DrainWorkerResponse:
        """Drains a worker: it releases its claims and takes no more until it is restarted. Raises NotFound."""
        request = admin.DrainWorkerRequest(worker_id=worker_id, reason=reason)
        return await self._call(self.admin.DrainWorker, request)

    async def refusals(self, task_id: str) -> admin.ListRefusalsResponse:
        """Returns the refused writes of a task."""
        return await self._call(self.admin.ListRefusals, admin.ListRefusalsRequest(task_id=task_id))

    async def bills(self, task_id: str) -> AsyncGenerator[ledger_pb2.Bill]:
        """Yields the bills of a task, by step and model attempt."""
        more, request = True, admin.ListBillsRequest(task_id=task_id)
        while more:
            page = await self._call(self.admin.ListBills, request)
            for bill in page.bills:
                yield bill
                request.after_step, request.after_attempt_number = bill.step, bill.attempt_number
            more = page.more

    async def calls(self, task_id: str) -> AsyncGenerator[admin.ListCallsResponse]:
        """Yields the call records of a task, page by page, each page with the tool service's fence."""
        more, after = True, ""
        while more:
            request = admin.ListCallsRequest(task_id=task_id, after_call_id=after)
            page = await self._call(self.admin.ListCalls, request)
            yield page
            more = page.more
            after = page.calls[-1].record.call_id if page.calls else after

    async def _call(
        self, method: Callable[..., Awaitable[T]], request: Message, timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> T:
        patience = RETURN_PATIENCE if self._answered else self._patience
        answer = await retrying(
            lambda: method(request, timeout=timeout_seconds),
            patience,
            on=(TryLater,),
            longest_seconds=LONGEST_RETRY_AFTER_SECONDS,
        )
        self._answered = True
        return answer
