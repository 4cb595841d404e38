"""Laws of calls in process: what a caller sees is what it would see over a socket, and each call counts once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from tenure.domain.errors import InvalidRequest, NotFound, Unavailable
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import TENANT_KEY, as_tenant, current_tenant, traceparent
from tenure.runtime.rpc.in_process import PEER_KEY, InProcessContext, connection_of
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.access_control import current_principal
from tenure.v1 import live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceServicer, TaskServiceStub
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

SERVICE = "tenure.v1.TaskService"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


class Tasks(TaskServiceServicer):
    """Answers by the id of a task."""

    def __init__(self) -> None:
        self.ended, self.hanging, self.sent = asyncio.Event(), asyncio.Event(), 0
        self.answer = api.GetTaskResponse()

    async def GetTask(self, request: api.GetTaskRequest, context: Any) -> api.GetTaskResponse:
        match request.task_id:
            case "hang":
                await self.hang()
            case "large":
                return api.GetTaskResponse(task=task_pb2.Task(message="x" * 4 * 1024 * 1024))
            case "bug":
                raise ValueError("secret")
            case "where":
                where = (current_tenant(), traceparent(), current_principal().name, context.peer())
                return api.GetTaskResponse(task=task_pb2.Task(message=" ".join(where)))
        request.task_id = "changed"
        return self.answer

    async def hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def WatchTask(self, request: api.WatchTaskRequest, context: Any) -> AsyncIterator[api.WatchTaskResponse]:
        try:
            for sequence in range(request.after_sequence):
                self.sent += 1
                yield api.WatchTaskResponse(heartbeat=api.Heartbeat(sequence=sequence))
            if request.task_id == "hang":
                await self.hang()
            if request.task_id == "large":
                yield api.WatchTaskResponse(delta=live_pb2.Delta(text="x" * 4 * 1024 * 1024))
            raise NotFound("no such task")
        finally:
            self.ended.set()


def refuse_bad(request: Any, _size_bytes: int) -> None:
    if request.task_id == "bad":
        raise InvalidRequest(violations=[("task_id", "must not be bad")])


@pytest.fixture
def tasks() -> Tasks:
    servicer: Any = Tasks  # it has two methods of all
    return cast("Tasks", servicer())


@pytest.fixture
async def stub(tasks: Tasks) -> Any:
    server = RpcServer("127.0.0.1:0", validate=refuse_bad)
    server.add(SERVICE, tasks)
    channel: Any = server.in_process(CALL_SECONDS)
    return TaskServiceStub(channel)


def counted(name: str, **labels: str) -> float:
    return metrics.read(name, grpc_service=SERVICE, **labels)


async def read(stub: Any, request: api.WatchTaskRequest) -> list[int]:
    return [message.heartbeat.sequence async for message in stub.WatchTask(request)]


async def test_caller_and_servicer_share_no_message(stub: Any, tasks: Tasks) -> None:
    request = api.GetTaskRequest(task_id="x")
    answer = await stub.GetTask(request)
    answer.task.message = "changed"
    assert (request.task_id, tasks.answer.task.message) == ("x", "")


async def test_call_has_its_own_tenant_trace_caller_and_peer(stub: Any) -> None:
    metadata = ((TENANT_KEY, "acme"), ("traceparent", TRACE), (PEER_KEY, "ipv4:10.0.0.1:7"))
    with as_tenant("of-the-caller"):
        answer = await stub.GetTask(api.GetTaskRequest(task_id="where"), metadata=metadata)
        assert answer.task.message == f"acme {TRACE} anyone ipv4:10.0.0.1:7"
        assert (current_tenant(), traceparent()) == ("of-the-caller", "")
        without = await stub.GetTask(api.GetTaskRequest(task_id="where"))
    assert without.task.message == "default  anyone unknown:"


async def test_requests_are_validated(stub: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await stub.GetTask(api.GetTaskRequest(task_id="bad"))
    assert refused.value.violations == (("task_id", "must not be bad"),)
    with pytest.raises(InvalidRequest):
        await read(stub, api.WatchTaskRequest(task_id="bad"))


async def test_bug_has_its_details_in_the_log_only(stub: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PeerFailed, match=r"^INTERNAL: internal error$"):
        await stub.GetTask(api.GetTaskRequest(task_id="bug"))
    assert "secret" in caplog.text


async def test_unknown_method_is_unimplemented() -> None:
    channel: Any = RpcServer("127.0.0.1:0").in_process(CALL_SECONDS)
    with pytest.raises(PeerFailed, match="UNIMPLEMENTED"):
        await TaskServiceStub(channel).GetTask(api.GetTaskRequest())


@pytest.mark.parametrize("task_id", ["large", "x" * 4 * 1024 * 1024], ids=["answer", "request"])
async def test_message_beyond_the_limit_is_refused(stub: Any, task_id: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await stub.GetTask(api.GetTaskRequest(task_id=task_id))
    assert refused.value.reason == "MESSAGE_TOO_LARGE"
    with pytest.raises(InvalidRequest) as refused:
        await read(stub, api.WatchTaskRequest(task_id=task_id))
    assert refused.value.reason == "MESSAGE_TOO_LARGE"


async def test_call_counts_once(stub: Any) -> None:
    names = ("grpc_server_started_total", "grpc_server_msg_received_total", "grpc_server_msg_sent_total")

    def now() -> list[float]:
        calls = [counted(name, grpc_method=method) for name in names for method in ("GetTask", "WatchTask")]
        ok = counted("grpc_server_handled_total", grpc_method="GetTask", grpc_code="OK")
        return [*calls, ok, counted("grpc_server_handled_total", grpc_method="WatchTask", grpc_code="NOT_FOUND")]

    before = now()
    await stub.GetTask(api.GetTaskRequest(task_id="x"))
    with pytest.raises(NotFound):
        await read(stub, api.WatchTaskRequest(after_sequence=3))
    assert [after - first for first, after in zip(before, now(), strict=True)] == [1, 1, 1, 1, 1, 3, 1, 1]


async def test_deadline_ends_the_handler(stub: Any, tasks: Tasks) -> None:
    with pytest.raises(Unavailable) as late:
        await stub.GetTask(api.GetTaskRequest(task_id="hang"), timeout=0.05)
    assert (late.value.reason, late.value.metadata) == ("DEADLINE_EXCEEDED", {"outcome": "unknown"})
    async with asyncio.timeout(PATIENCE_SECONDS):
        await tasks.ended.wait()


async def test_cancelled_caller_ends_the_handler(stub: Any, tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    before = counted("grpc_server_handled_total", grpc_method="GetTask", grpc_code="CANCELLED")
    call = asyncio.create_task(stub.GetTask(api.GetTaskRequest(task_id="hang")))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await tasks.hanging.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await tasks.ended.wait()
    assert counted("grpc_server_handled_total", grpc_method="GetTask", grpc_code="CANCELLED") == before + 1
    assert caplog.text == ""


async def test_stream_ends_with_its_reader(stub: Any, tasks: Tasks) -> None:
    before = counted("grpc_server_handled_total", grpc_method="WatchTask", grpc_code="CANCELLED")
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with aclosing(stub.WatchTask(api.WatchTaskRequest(task_id="hang", after_sequence=1))) as messages:
            assert (await anext(messages)).heartbeat.sequence == 0
            await tasks.hanging.wait()
        await tasks.ended.wait()
    assert counted("grpc_server_handled_total", grpc_method="WatchTask", grpc_code="CANCELLED") == before + 1


async def test_slow_reader_holds_the_stream_back(stub: Any, tasks: Tasks) -> None:
    async with aclosing(stub.WatchTask(api.WatchTaskRequest(after_sequence=100))) as messages:
        await anext(messages)
        while not tasks.ended.is_set():
            sent = tasks.sent
            await asyncio.sleep(0)
            if tasks.sent == sent:
                break
        assert tasks.sent < 10
        assert [message.heartbeat.sequence async for message in first(messages, 99)] == list(range(1, 100))
        with pytest.raises(NotFound):
            await anext(messages)


async def first(messages: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(messages)


def test_streams_of_one_address_are_one_connection() -> None:
    contexts = [InProcessContext(((PEER_KEY, f"ipv4:10.0.0.1:{port}"),)) for port in (1, 2)]
    assert {connection_of(context) for context in contexts} == {"ipv4:10.0.0.1"}
