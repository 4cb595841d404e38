"""Client: the calls of the public API, with the retries and the stream resumption that the contract allows."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc.aio import UnaryUnaryMultiCallable

from tenure.client.reconnect import StreamReconnect, ignore
from tenure.client.retries import CALL_TIMEOUT_SECONDS, ONCE, PATIENCE, RetryingChannel
from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.tls import ClientTls
from tenure.runtime.settings import Address, Secret
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, rule_pb2, task_pb2, tool_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.wire.common import duration

if TYPE_CHECKING:
    from tenure.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceAsyncStub
    from tenure.v1.approval_service_pb2_grpc import ApprovalServiceAsyncStub
    from tenure.v1.audit_service_pb2_grpc import AuditServiceAsyncStub
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub

T = TypeVar("T")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")

ONE_WAIT_SECONDS: Final = 60.0
RECEIPTS_PAGE: Final = 500
"""The most of a page: for each page the coordinator reads the whole chain."""
ACT_TIMEOUT_SECONDS: Final = 60.0
"""A page of acts on many tasks takes about 5 s, and longer where the ledger is slow."""
FORK_TIMEOUT_SECONDS: Final = 150.0
"""A fork copies the files of the workspace, so it takes longer."""


def check_stays_here(addresses: str) -> None:
    """Raises ValueError for an address on another machine: an API key must not cross a network in clear text."""
    from tenure.domain.outbound import is_loopback_host  # which only callers with a key need

    for address in addresses.split(","):
        if not is_loopback_host(Address(address.strip()).host):
            raise ValueError(f"{address}: an API key is sent to another machine by TLS only; give the CA file")


class Client:
    """A connection to the gateway: `host:port`, or its replicas as `ip:port,ip:port`.

    `api_key`: the client's identity, if the gateway demands one: an API key or a token of the identity provider, or a
    function that returns it, called for each call. It is sent to other machines by TLS only, so without `tls` the
    address must be on this machine (ValueError). `tenant`: with a key of an operator, the tenant to act for;
    without a key, the tenant ("default").

    Every method has its stub: `await client.agents.GetAgent(pb.GetAgentRequest(name="greeter"))`. A call without a
    `timeout` is repeated after Unavailable and LimitReached: a few times, and for about ten seconds once the gateway
    has answered. Raises the errors of tenure.domain.errors.
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

    async def __aenter__(self) -> Self:
        return self.connect()

    def connect(self) -> Self:
        """Opens the channel, in a running event loop. `close` closes it."""
        opened = open_channel(self._address, tls=self._tls, api_key=self._api_key, tenant=self._tenant)
        self._channel = RetryingChannel(opened, self._patience)
        self._stubs = cast("grpc.aio.Channel", self._channel)
        self.tasks = TaskServiceStub(self._stubs)
        self.admin = AdminServiceStub(self._stubs)
        return self

    def call_once(self) -> None:
        """Makes each call once until the gateway answers one: the caller has waited for it already."""
        self._channel.patience = ONCE

    # The stubs of the other services are imported at their first use: all together take a tenth of a command's start.

    @cached_property
    def agents(self) -> AgentServiceAsyncStub:
        from tenure.v1.agent_service_pb2_grpc import AgentServiceStub

        return AgentServiceStub(self._stubs)

    @cached_property
    def api_keys(self) -> ApiKeyServiceAsyncStub:
        from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceStub

        return ApiKeyServiceStub(self._stubs)

    @cached_property
    def approvals(self) -> ApprovalServiceAsyncStub:
        from tenure.v1.approval_service_pb2_grpc import ApprovalServiceStub

        return ApprovalServiceStub(self._stubs)

    @cached_property
    def audit(self) -> AuditServiceAsyncStub:
        from tenure.v1.audit_service_pb2_grpc import AuditServiceStub

        return AuditServiceStub(self._stubs)

    @cached_property
    def leases(self) -> LeaseServiceAsyncStub:
        from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub

        return LeaseServiceStub(self._stubs)

    @cached_property
    def schedules(self) -> ScheduleServiceAsyncStub:
        from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub

        return ScheduleServiceStub(self._stubs)

    @cached_property
    def tenants(self) -> TenantServiceAsyncStub:
        from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub

        return TenantServiceStub(self._stubs)

    @cached_property
    def webhooks(self) -> WebhookServiceAsyncStub:
        from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub

        return WebhookServiceStub(self._stubs)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel. Calls that still run end."""
        await self._channel.close()

    async def pages(
        self, method: UnaryUnaryMultiCallable[Request, Response], request: Request
    ) -> AsyncGenerator[Response]:
        """Yields the pages of a list. Without a `page_size`, they are as long as the contract allows."""
        page_request: Any = _copy(request)
        page_request.page_size = page_request.page_size or _longest_page(request)
        while True:
            page: Any = await method(page_request)
            yield page
            page_request.page_token = page.next_page_token
            if not page_request.page_token:
                return

    async def items(
        self,
        method: UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        of_page: Callable[[Response], Iterable[T]],
        *,
        limit: int = sys.maxsize,
    ) -> AsyncGenerator[T]:
        """Yields the items of a list, at most `limit`. `of_page`: returns those of a page.

        client.items(client.agents.ListAgents, pb.ListAgentsRequest(), lambda page: page.agents)
        """
        page_request: Any = _copy(request)
        page_request.page_size = min(limit, page_request.page_size or _longest_page(request))
        async with aclosing(self.pages(method, page_request)) as pages:
            async for page in pages:
                for item in islice(of_page(page), limit):
                    yield item
                    limit -= 1
                if limit <= 0:
                    return

    async def submit(self, goal: str, *, request: api.SubmitTaskRequest | None = None) -> task_pb2.Task:
        """Submits a task with `goal` and the other fields of `request`. Creates one task, also after retries."""
        task_request = api.SubmitTaskRequest() if request is None else _copy(request)
        task_request.spec.goal = goal
        return (await self.tasks.SubmitTask(task_request)).task

    async def get(self, task_id: str) -> task_pb2.Task:
        """Returns the task. Raises NotFound."""
        return (await self.tasks.GetTask(api.GetTaskRequest(task_id=task_id))).task

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

    def list_tasks(
        self,
        task_filter: task_pb2.TaskFilter | None = None,
        *,
        limit: int = 50,
        order: task_pb2.TaskOrder.ValueType = task_pb2.TASK_ORDER_NEWEST,
        fresh: bool = False,
    ) -> AsyncGenerator[task_pb2.Task]:
        """Yields at most `limit` tasks, by default the newest first. `fresh`: none may be missing because a standby was
        page_request.
        """
        request = api.ListTasksRequest(filter=task_filter, order=order, fresh=fresh)
        return self.items(self.tasks.ListTasks, request, lambda page: page.tasks, limit=limit)

    async def entries(
        self, task_id: str, after_sequence: int = 0, kinds: Sequence[str] = ()
    ) -> AsyncGenerator[ledger_pb2.Entry]:
        """Yields the entries of a task so far, the oldest first. `kinds`: only of these; empty: all."""
        more = True
        while more:
            request = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after_sequence, kinds=kinds)
            page = await self.tasks.ListTaskEntries(request)
            for entry in page.entries:
                yield entry
                after_sequence = entry.sequence
            more = page.more

    async def watch(
        self, task_id: str, after_sequence: int = 0, *, live: bool = False, on_lost: Callable[[], None] = ignore
    ) -> AsyncGenerator[api.WatchTaskResponse]:
        """Yields the events of a task until it ends. Resumes a broken stream without missing or repeating an entry.

        `on_lost` is called when no gateway can be reached at once.
        """
        await self.get(task_id)
        reconnect = StreamReconnect(on_lost)
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
        self,
        task_filter: task_pb2.TaskFilter | None = None,
        *,
        after_cursor: str = "",
        on_lost: Callable[[], None] = ignore,
    ) -> AsyncGenerator[api.WatchTasksResponse]:
        """Yields the changes of all tasks of the tenant, for ever, after a first heartbeat.

        Begins at `after_cursor`, or now. Resumes a broken stream without missing or repeating a change. Keep the cursor
        of the last event to continue later. Raises OutOfRange (CURSOR_EXPIRED): list the tasks, and watch from now.
        `on_lost` is called when no gateway can be reached at once.
        """
        reconnect = StreamReconnect(on_lost)
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
        return (await self.tasks.CancelTask(request)).task

    async def act_on_tasks(self, request: admin.ActOnTasksRequest) -> admin.ActOnTasksResponse:
        """Acts on the next page of the tasks that match, each once, also after retries."""
        return await self._channel.retried(self.admin.ActOnTasks, request, ACT_TIMEOUT_SECONDS)

    async def fork(self, request: api.ForkTaskRequest) -> task_pb2.Task:
        """Creates a task from another task's history, with a copy of its files. Creates one task, also after retries.

        Raises WrongState (NO_FORK_POINT, NOTHING_TO_DO, FORK_TOO_LARGE, WORKSPACE_LIMIT, WORKSPACE_UNREADABLE).
        """
        return (await self._channel.retried(self.tasks.ForkTask, request, FORK_TIMEOUT_SECONDS)).task

    async def plan_undo(self, request: api.PlanUndoRequest) -> api.PlanUndoResponse:
        """Returns the effects of a task, and which of them can be undone."""
        return await self.tasks.PlanUndo(request)

    async def undo(self, request: api.UndoTaskRequest) -> task_pb2.Task:
        """Creates the task that undoes effects of another task. Creates one task, also after retries.

        Raises WrongState (WRONG_STATE, NOTHING_TO_UNDO, PLAN_CHANGED, UNDO_TOO_LARGE).
        """
        return (await self.tasks.UndoTask(request)).task

    async def send(
        self,
        task_id: str,
        text: str,
        *,
        files: Iterable[workspace_pb2.InputFile] = (),
        request_id: str = "",
        interrupt: bool = False,
    ) -> task_pb2.Task:
        """Sends a message to a task's agent, once, also after retries. Raises WrongState when the task has ended."""
        request = api.SendMessageRequest(
            task_id=task_id, request_id=request_id, text=text, files=files, interrupt=interrupt
        )
        return (await self.tasks.SendMessage(request)).task

    async def workers(self) -> admin.ListWorkersResponse:
        """Returns all workers, as one page."""
        listed = admin.ListWorkersResponse()
        async for page in self.pages(self.admin.ListWorkers, admin.ListWorkersRequest()):
            listed.workers.extend(page.workers)
        return listed

    async def tools(self) -> admin.ListOfferedToolsResponse:
        """Returns the tools that the tenant's tasks may call."""
        return await self.admin.ListTools(admin.ListOfferedToolsRequest())

    def in_doubt(
        self, task_id: str = "", *, include_all: bool = False
    ) -> AsyncGenerator[admin.ListInDoubtCallsResponse.Listed]:
        """Yields the calls in doubt that wait for a resolution, the longest wait first. Raises NotFound.

        include_all: also yields the calls of tasks that ended or continued without a resolution.
        """
        request = admin.ListInDoubtCallsRequest(task_id=task_id, all=include_all)
        return self.items(self.admin.ListInDoubtCalls, request, lambda page: page.calls)

    def effects(self, tool: str = "", key: Mapping[str, str] | None = None) -> AsyncGenerator[tool_pb2.EffectCall]:
        """Yields the calls with an effect key, the first accepted first: all that touched an order, say.

        tool: only its calls. key: values of declared arguments, by the name of the argument or its JSON pointer.
        """
        request = admin.ListEffectsRequest(tool=tool, key=key)
        return self.items(self.admin.ListEffects, request, lambda page: page.effects)

    async def claims(self, task_id: str = "") -> admin.ListClaimsResponse:
        """Returns all claims, or the claim of one task."""
        return await self.admin.ListClaims(admin.ListClaimsRequest(task_id=task_id))

    async def transfer(self, task_id: str, reason: str, to_worker_id: str = "") -> task_pb2.Task:
        """Transfers a running task to another worker, once, also after retries. Raises WrongState, NotFound."""
        epoch = (await self.get(task_id)).epoch
        request = admin.TransferTaskRequest(task_id=task_id, reason=reason, to_worker_id=to_worker_id, epoch=epoch)
        return (await self.admin.TransferTask(request)).task

    async def explain(self, task_id: str) -> api.ExplainTaskResponse:
        """Explains in about ten lines why a task is in its state, and what would change that."""
        return await self.tasks.ExplainTask(api.ExplainTaskRequest(task_id=task_id))

    async def refusals(self, task_id: str) -> admin.ListRefusalsResponse:
        """Returns the refused writes of a task."""
        return await self.admin.ListRefusals(admin.ListRefusalsRequest(task_id=task_id))

    async def bills(self, task_id: str) -> AsyncGenerator[ledger_pb2.Bill]:
        """Yields the bills of a task, by step and model attempt."""
        more, request = True, admin.ListBillsRequest(task_id=task_id)
        while more:
            page = await self.admin.ListBills(request)
            for bill in page.bills:
                yield bill
                request.after_step, request.after_attempt_number = bill.step, bill.attempt_number
            more = page.more

    async def calls(self, task_id: str) -> AsyncGenerator[admin.ListCallsResponse]:
        """Yields the call records of a task, page by page, each page with the tool service's fence."""
        more, after = True, ""
        while more:
            request = admin.ListCallsRequest(task_id=task_id, after_call_id=after)
            page = await self.admin.ListCalls(request)
            yield page
            more = page.more
            after = page.calls[-1].record.call_id if page.calls else after

    async def receipts(self, task_id: str, call_id: str = "") -> AsyncGenerator[str]:
        """Yields the signed receipts of a task's effects, a line of JSON each, then the signed head of their chain.

        `call_id`: only the receipt of this call. Raises NotFound, and WrongState (RECEIPT_CHAIN_BROKEN).
        """
        more, request = True, api.GetReceiptsRequest(task_id=task_id, call_id=call_id, page_size=RECEIPTS_PAGE)
        while more:
            page = await self.tasks.GetReceipts(request)
            for line in page.receipts:
                yield line
            if page.head:
                yield page.head
            request.after_number += len(page.receipts)
            more = page.more

    async def resume(
        self,
        task_id: str,
        wait_id: str,
        *,
        decision: str = "",
        reply: str = "",
        calls: Sequence[task_pb2.CallDecision] = (),
        call_digest: str = "",
        comment: str = "",
        edited_arguments_json: str = "",
        extra_budget_tokens: int = 0,
        extra_budget_nano_usd: int = 0,
        files: Iterable[workspace_pb2.InputFile] = (),
        plan: tool_pb2.CallPlan | None = None,
        request_id: str = "",
    ) -> task_pb2.Task:
        """Answers the wait `wait_id` with a decision, a reply, or decisions on its `calls`.

        A decision on a call needs its `call_digest`. The agent gets the `files` with the answer. `plan`: later calls
        that the answer approves, too.

        The extra amounts raise the caps of the task's root. The approval of a wait for budget grants them, or without
        any amount the suggested ones; BudgetExhausted: they are too small for the next model call.

        Raises WrongState when the task is in another wait (WAIT_OVER), or the wait is for another call (OTHER_CALL).
        The error's metadata describes the current wait.
        """
        request = api.ResumeTaskRequest(
            task_id=task_id,
            wait_id=wait_id,
            call_digest=call_digest,
            request_id=request_id,
            comment=comment,
            edited_arguments_json=edited_arguments_json,
            extra_budget_tokens=extra_budget_tokens,
            extra_budget_nano_usd=extra_budget_nano_usd,
            calls=calls,
            files=files,
            plan=plan,
        )
        if calls:
            request.call_digest = ""
        elif decision:
            request.decision = decision
        else:
            request.reply = reply
        answer = await self.tasks.ResumeTask(request)
        return answer.task

    async def signal(self, correlation_id: str, payload_json: str, *, request_id: str = "") -> task_pb2.Task | None:
        """Sends a signal and returns the task that waited for it.

        Returns None when no task waits for it yet: the signal is kept for a later wait.
        """
        request = api.ResumeTaskRequest(
            correlation_id=correlation_id,
            request_id=request_id,
            payload_json=payload_json,
        )
        answer = await self.tasks.ResumeTask(request)
        return answer.task if answer.HasField("task") else None


def _copy(request: Request) -> Request:
    copied = type(request)()
    copied.CopyFrom(request)
    return copied


def _longest_page(request: Message) -> int:
    """Returns the longest page that the contract allows for a list."""
    return int(request.DESCRIPTOR.fields_by_name["page_size"].GetOptions().Extensions[rule_pb2.rule].most)
