"""What the public API promises, through a gateway of its own over a real ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from tenure.domain.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable
from tenure.runtime.observability import metrics
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, kinds, words
from tests.support.fix_gateway import NOBODYS, TIMEOUT_SECONDS, Serve, StubOfTenant
from tests.support.fix_proxy import MakeProxy
from tests.support.patience import PATIENCE_SECONDS


async def watch(stub: Any, task_id: str, after: int = 0) -> AsyncGenerator[api.WatchTaskResponse, None]:
    async for event in stub.WatchTask(
        api.WatchTaskRequest(task_id=task_id, after_sequence=after), timeout=PATIENCE_SECONDS
    ):
        yield event


async def entries(stream: AsyncIterator[api.WatchTaskResponse]) -> list[Any]:
    return [event.entry async for event in stream if event.HasField("entry")]


async def test_an_idle_watch_sends_heartbeats_with_the_newest_entry(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    task = await replica.create()
    stream = watch(await shared_gateway(), task.task_id)
    seen = [await anext(stream) for _ in range(4)]
    assert [event.WhichOneof("event") for event in seen] == ["entry", "entry", "heartbeat", "heartbeat"]
    assert {event.heartbeat.sequence for event in seen[2:]} == {2}
    assert seen[2].heartbeat.time.ToNanoseconds() < seen[3].heartbeat.time.ToNanoseconds()
    await replica.cancel(task.task_id)
    assert kinds(await entries(stream))[-1] == "QUEUED>CANCELLED"


async def test_a_watch_resumes_after_any_entry_without_gap_or_repeat(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(words(), words())
    await owner.end()
    stub, last = await shared_gateway(), (await replica.get(owner.task.task_id)).sequence
    for after in range(last + 1):
        response = await entries(watch(stub, owner.task.task_id, after))
        assert [entry.sequence for entry in response] == list(range(after + 1, last + 1))


async def test_a_watch_outlives_a_ledger_that_is_away(
    checkpoint: MakeCheckpoint, gateway: Serve, tcp_proxy: MakeProxy
) -> None:
    """It says only that it is alive while there is none; it goes on where it was when one is back."""
    replica = await checkpoint()
    task = await replica.create()
    host, _, port = replica.address.rpartition(":")
    proxy = await tcp_proxy(host, int(port))
    stream = watch(await gateway(proxy.address, heartbeat_seconds=2.0), task.task_id)
    assert [(await anext(stream)).entry.sequence for _ in range(2)] == [1, 2]
    await proxy.stop()
    await replica.cancel(task.task_id)
    for _ in range(3):
        assert (await anext(stream)).HasField("heartbeat")
    await proxy.start()
    assert [entry.sequence for entry in await entries(stream)] == [3, 4]


async def test_a_draining_gateway_ends_watches_with_a_retry_time(checkpoint: MakeCheckpoint, gateway: Serve) -> None:
    replica = await checkpoint()
    task = await replica.create()
    stub = await gateway(replica.address)
    stream = watch(stub, task.task_id)
    waiting = asyncio.ensure_future(stub.WaitTask(api.WaitTaskRequest(task_id=task.task_id), timeout=TIMEOUT_SECONDS))
    await anext(stream)
    stopped = asyncio.create_task(stub.process.stop())
    with pytest.raises(Unavailable) as refused:
        await entries(stream)
    assert refused.value.retry_after_seconds
    assert not (await waiting).ended
    assert await stopped == 0


async def test_a_wait_returns_at_the_end_or_at_its_timeout(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    task = await replica.create()
    stub = await shared_gateway()
    short = await stub.WaitTask(api.WaitTaskRequest(task_id=task.task_id, timeout=Duration(nanos=10**8)))
    assert (short.ended, short.task.state) == (False, task_pb2.TASK_STATE_QUEUED)
    waiting = asyncio.ensure_future(stub.WaitTask(api.WaitTaskRequest(task_id=task.task_id)))
    await replica.cancel(task.task_id)
    ended = await waiting
    assert (ended.ended, ended.task.state) == (True, task_pb2.TASK_STATE_CANCELLED)


async def test_a_wait_outlives_a_ledger_that_is_away(
    checkpoint: MakeCheckpoint, gateway: Serve, tcp_proxy: MakeProxy
) -> None:
    replica = await checkpoint()
    task = await replica.create()
    host, _, port = replica.address.rpartition(":")
    proxy = await tcp_proxy(host, int(port))
    stub, watchers = await gateway(proxy.address), metrics.read("tenure_watchers")
    waiting = asyncio.ensure_future(stub.WaitTask(api.WaitTaskRequest(task_id=task.task_id)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while metrics.read("tenure_watchers") == watchers:
            await asyncio.sleep(0.01)
    await proxy.stop()
    await replica.cancel(task.task_id)
    await proxy.start()
    ended = await waiting
    assert (ended.ended, ended.task.state) == (True, task_pb2.TASK_STATE_CANCELLED)


async def test_tasks_of_another_tenant_are_not_found(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    task = await replica.create()
    stub = await shared_gateway("somebody-else")
    for task_id in (task.task_id, NOBODYS):
        for request in (
            stub.GetTask(api.GetTaskRequest(task_id=task_id)),
            stub.WaitTask(api.WaitTaskRequest(task_id=task_id)),
            stub.ListTaskEntries(api.ListTaskEntriesRequest(task_id=task_id)),
            stub.CancelTask(api.CancelTaskRequest(task_id=task_id)),
            anext(watch(stub, task_id)),
        ):
            with pytest.raises(NotFound):
                await request
    assert not (await stub.ListTasks(api.ListTasksRequest())).tasks


async def test_a_request_id_makes_one_task(shared_gateway: StubOfTenant) -> None:
    stub = await shared_gateway()
    first = (await stub.SubmitTask(api.SubmitTaskRequest(request_id="r", spec=task_pb2.TaskSpec(goal="a")))).task
    assert (
        await stub.SubmitTask(api.SubmitTaskRequest(request_id="r", spec=task_pb2.TaskSpec(goal="a")))
    ).task == first
    with pytest.raises(AlreadyExists) as refused:
        await stub.SubmitTask(api.SubmitTaskRequest(request_id="r", spec=task_pb2.TaskSpec(goal="b")))
    assert (refused.value.reason, refused.value.metadata) == ("REQUEST_ID_REUSED", {"task_id": first.task_id})
    without = [
        (await stub.SubmitTask(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="a")))).task.task_id for _ in range(2)
    ]
    assert len({first.task_id, *without}) == 3


async def test_a_page_token_of_another_list_is_refused(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    """It would be taken for a position, and rows would be left out."""
    for _ in range(3):
        await replica.create(labels={"page": "token"})
    stub = await shared_gateway()
    wanted = task_pb2.TaskFilter(labels={"page": "token"})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        first = await stub.ListTasks(api.ListTasksRequest(filter=wanted, page_size=2))
        rest = await stub.ListTasks(api.ListTasksRequest(filter=wanted, page_token=first.next_page_token))
        assert (len(first.tasks), len(rest.tasks), rest.next_page_token) == (2, 1, "")
        for other in (
            api.ListTasksRequest(page_token=first.next_page_token),
            api.ListTasksRequest(
                filter=wanted, page_token=first.next_page_token, order=task_pb2.TASK_ORDER_WAIT_DEADLINE
            ),
        ):
            with pytest.raises(InvalidRequest, match="page_token") as refused:
                await stub.ListTasks(other)
            assert refused.value.reason == "OTHER_LIST"


async def test_every_method_validates_its_request(shared_gateway: StubOfTenant) -> None:
    stub = await shared_gateway()
    for request, field in (
        (stub.SubmitTask(api.SubmitTaskRequest()), "spec.goal"),
        (stub.WaitTask(api.WaitTaskRequest(task_id=NOBODYS, timeout=Duration(seconds=601))), "timeout"),
        (stub.ListTasks(api.ListTasksRequest(page_size=501)), "page_size"),
        (stub.ListTaskEntries(api.ListTaskEntriesRequest(task_id="x")), "task_id"),
        (stub.CancelTask(api.CancelTaskRequest(task_id=NOBODYS, reason="x" * 1001)), "reason"),
        (anext(watch(stub, NOBODYS, after=-1)), "after_sequence"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await request
        assert field in {violation.field for violation in refused.value.violations}


async def test_without_a_ledger_methods_return_a_retry_delay(gateway: Serve, closed_port: int) -> None:
    stub = await gateway(f"127.0.0.1:{closed_port}")
    for request in (
        stub.SubmitTask(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="a"))),
        stub.GetTask(api.GetTaskRequest(task_id=NOBODYS)),
        stub.ListTasks(api.ListTasksRequest()),
        anext(watch(stub, NOBODYS)),
    ):
        with pytest.raises(Unavailable) as refused:
            await request
        assert refused.value.retry_after_seconds
        assert str(closed_port) not in refused.value.message
