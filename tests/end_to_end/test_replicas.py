"""Two of every service behind one address each: any one of them may die, freeze or be restarted, and nothing is lost.

Where it matters which replica is asked, a test speaks to that one; a task's steps are then taken by a scripted worker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

from devstack import ServiceProcess, Stack
from tenure.client import Client
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_takeover import EFFECTS
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

KINDS: Final = ("gateway", "coordinator", "checkpoint", "tools")
KEYED_EFFECTS: Final = sorted(f"keyed {number}" for number in range(1, 6))

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faults]


@dataclass(slots=True)
class Replicated(Installation):
    """The installation, and ways to one of its replicas."""

    def both(self, kind: str) -> list[ServiceProcess]:
        return self.stack.replicas(kind)

    async def one_ended(self, task_id: str, file: str, effects: Sequence[str]) -> task_pb2.Task:
        task = await self.ended(task_id)
        assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
        check_whole(await self.entries(task_id))
        assert sorted(self.effects(file)) == effects
        return task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def install(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicated]:
    folder = tmp_path_factory.mktemp("replicas")
    stack = Stack(options(folder, workers=3, replicas=dict.fromkeys(KINDS, 2)))
    async with stack, Client(stack.gateway_address) as client:
        yield Replicated(stack, client)


@asynccontextmanager
async def scripted(install: Replicated, queue: str) -> AsyncIterator[ScriptedWorker]:
    """A worker in the hands of the test, for tasks of a queue of its own; leaves as if it were killed."""
    async with AsyncExitStack() as opened:
        channel = await opened.enter_async_context(open_channel(install.stack.addresses()["checkpoint"]))
        address = install.both("coordinator")[0].address
        worker = ScriptedWorker(
            address, CheckpointServiceStub(channel), worker_id=f"scripted-{uuid.uuid4()}", free_slots=1, queues=[queue]
        )
        opened.push_async_callback(worker.break_off)
        yield await worker.attach()


@asynccontextmanager
async def tool_replicas(install: Replicated) -> AsyncIterator[list[Any]]:
    """A stub for each."""
    async with AsyncExitStack() as opened:
        yield [
            ToolServiceStub(await opened.enter_async_context(open_channel(one.address)))
            for one in install.both("tools")
        ]


def call_of(grant: coordinator_pb.Grant, tool: str, arguments_json: str) -> tools_pb.ExecuteRequest:
    return tools_pb.ExecuteRequest(token=grant.token, call_id="1.0", tool=tool, arguments_json=arguments_json)


async def begin(tools: Any, call: tools_pb.ExecuteRequest) -> tuple[tools_pb.CallStarted, Any]:
    """The stream of a call that runs, after its first event."""
    stream = tools.Execute(call, timeout=PATIENCE_SECONDS)
    return (await stream.read()).started, stream


async def outcome_of(stream: Any) -> tool_pb2.Outcome:
    while (event := await stream.read()) is not grpc.aio.EOF:
        if event.HasField("outcome"):
            return event.outcome  # type: ignore[no-any-return]
    raise AssertionError("a call ends with its outcome")


async def take(worker: ScriptedWorker, tool: str, arguments_json: str) -> coordinator_pb.Grant:
    """A grant, opened, with the intent of its one call in the ledger."""
    grant = await worker.next_grant()
    header = await worker.open(grant)
    if header.task.step == 0:
        intent = ledger_pb2.ToolIntent(call_id="1.0", tool=tool, arguments_json=arguments_json)
        entry = ledger_pb2.NewEntry(step=1, body=ledger_pb2.EntryBody(tool_intent=intent))
        await worker.commit(grant, 1, known_sequence=header.task.sequence, entries=[entry])
    return grant


async def submit_paced(install: Replicated, count: int, scenario: str) -> dict[str, str]:
    """Tasks by the file that their effects go to."""
    files = [uuid.uuid4().hex for _ in range(count)]
    ids = await asyncio.gather(*(install.submit(scenario, file) for file in files))
    return dict(zip(files, ids, strict=True))


async def all_ended(install: Replicated, tasks: dict[str, str], effects: Sequence[str]) -> None:
    await asyncio.gather(*(install.one_ended(task_id, file, effects) for file, task_id in tasks.items()))


async def test_a_submit_repeated_at_all_gateways_at_once_is_one_task(install: Replicated) -> None:
    request = api.SubmitTaskRequest(
        request_id=str(uuid.uuid4()), spec=task_pb2.TaskSpec(goal="once", queue="nobody-serves-this")
    )
    async with AsyncExitStack() as opened:
        stubs = [
            TaskServiceStub(await opened.enter_async_context(open_channel(one.address)))
            for one in install.both("gateway")
        ]
        answers = await asyncio.gather(*(stubs[n % 2].SubmitTask(request, timeout=CALL_SECONDS) for n in range(20)))
    assert len({answer.task.task_id for answer in answers}) == 1


async def test_a_watch_at_one_checkpoint_tells_what_another_commits(install: Replicated) -> None:
    """Whichever replica a worker's commits go to, one of these watches is at the other."""
    file = uuid.uuid4().hex
    task_id = await install.submit("sim-e2e-keyed-paced", file)
    async with AsyncExitStack() as opened:
        channels = [await opened.enter_async_context(open_channel(one.address)) for one in install.both("checkpoint")]
        results = await asyncio.gather(*(entries_streamed(channel, task_id) for channel in channels))
    assert results[0] == results[1]
    check_whole(results[0])


async def entries_streamed(channel: Any, task_id: str) -> list[ledger_pb2.Entry]:
    watch: Any = CheckpointServiceStub(channel).WatchEntries(ledger_pb.WatchEntriesRequest(task_id=task_id))
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [entry async for page in watch for entry in page.entries]


async def test_watches_lose_nothing_while_each_checkpoint_crashes(install: Replicated) -> None:
    file = uuid.uuid4().hex
    task_id = await install.submit("sim-e2e-paced", file)
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(Client(one.address)) for one in install.both("gateway")]
        watches = [asyncio.create_task(watched(client, task_id)) for client in clients for _ in range(2)]
        for step, checkpoint in zip((2, 5), install.both("checkpoint"), strict=True):
            await install.until(task_id, "tool_outcome", partial(is_of_step, step))
            checkpoint.kill()
            await install.until(task_id, "tool_outcome", partial(is_of_step, step + 1))
            await checkpoint.restart()
        await install.one_ended(task_id, file, EFFECTS)
        results = await asyncio.gather(*watches)
    assert all(one == results[0] for one in results)
    check_whole(results[0])


def is_of_step(step: int, entry: ledger_pb2.Entry) -> bool:
    return entry.step == step


async def watched(client: Client, task_id: str) -> list[ledger_pb2.Entry]:
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.watch(task_id)) as events:
        return [event.entry async for event in events if event.HasField("entry")]


async def test_a_call_is_joined_at_another_replica_after_a_crash(
    install: Replicated,
) -> None:
    queue, file = f"q-{uuid.uuid4()}", uuid.uuid4().hex
    arguments = f'{{"file": "{file}", "line": "at most once", "delay_ms": 6000}}'
    await install.submit("sim-hello", queue=queue)
    async with tool_replicas(install) as (here, there):
        async with scripted(install, queue) as first:
            grant = await take(first, "append_record_unsafe", arguments)
            started, _ = await begin(here, call_of(grant, "append_record_unsafe", arguments))
            assert not started.joined
        async with scripted(install, queue) as second:
            grant = await take(second, "append_record_unsafe", arguments)
            joined, stream = await begin(there, call_of(grant, "append_record_unsafe", arguments))
            outcome = await outcome_of(stream)
            again = await outcome_of(
                here.Execute(call_of(grant, "append_record_unsafe", arguments), timeout=CALL_SECONDS)
            )
    assert (joined.joined, joined.call_attempt) == (True, started.call_attempt)
    assert outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED
    assert again == outcome
    assert install.effects(file) == ["at most once"]


async def test_a_closed_fence_stops_calls_at_another_replica(install: Replicated) -> None:
    queue, file = f"q-{uuid.uuid4()}", uuid.uuid4().hex
    await install.submit("sim-hello", queue=queue)
    arguments = f'{{"file": "{file}", "line": "never", "delay_ms": 25000}}'
    async with tool_replicas(install) as (here, there), scripted(install, queue) as worker:
        grant = await take(worker, "append_record", arguments)
        _, stream = await begin(here, call_of(grant, "append_record", arguments))
        fenced = await there.Fence(tools_pb.FenceRequest(token=grant.token, close=True), timeout=CALL_SECONDS)
        outcome = await outcome_of(stream)
        (call,) = fenced.calls
        assert (call.state, call.outcome) == (tool_pb2.CALL_STATE_FINISHED, outcome)
        assert outcome.status == tool_pb2.OUTCOME_STATUS_CANCELLED
    assert install.effects(file) == []


@pytest.mark.parametrize("victim", [0, 1])
async def test_any_replica_of_every_service_may_crash(install: Replicated, victim: int) -> None:
    """One of each at the same moment, in the middle of the work."""
    tasks = await submit_paced(install, 4, "sim-e2e-keyed-paced")
    await install.until(next(iter(tasks.values())), "tool_outcome", lambda entry: entry.step == 2)
    crashed = [install.both(kind)[victim] for kind in KINDS]
    for service in crashed:
        service.kill()
    later = await submit_paced(install, 2, "sim-e2e-keyed-paced")
    await all_ended(install, {**tasks, **later}, KEYED_EFFECTS)
    await asyncio.gather(*(service.restart() for service in crashed))


async def test_one_replica_of_every_service_may_freeze(install: Replicated) -> None:
    """Watches that stood at a frozen one go on at the other, without a gap."""
    tasks = await submit_paced(install, 3, "sim-e2e-keyed-paced")
    watches = [asyncio.create_task(watched(install.client, task_id)) for task_id in tasks.values()]
    await install.until(next(iter(tasks.values())), "tool_outcome", lambda entry: entry.step == 2)
    frozen = [install.both(kind)[1] for kind in KINDS]
    for service in frozen:
        service.freeze()
    try:
        await all_ended(install, tasks, KEYED_EFFECTS)
        for expected in await asyncio.gather(*watches):
            check_whole(expected)
    finally:
        for service in frozen:
            service.wake()
    assert all(service.exit_code is None for service in frozen)


async def test_a_rolling_restart_of_everything_loses_nothing(
    install: Replicated,
) -> None:
    """UNSAFE calls too: what is asked to end lets its calls end first. A bare caller hears UNAVAILABLE, if anything, or
    CANCELLED when the call came in just as the server closed.
    """
    tasks = await submit_paced(install, 2, "sim-e2e-paced")
    async with AsyncExitStack() as opened:
        bare: Any = TaskServiceStub((await opened.enter_async_context(open_channel(install.stack.gateway_address))).raw)
        done = asyncio.Event()
        asking = asyncio.create_task(ask_until(done, install.client, bare, list(tasks.values())))
        for kind in (*KINDS, "worker"):
            tasks |= await submit_paced(install, 1, "sim-e2e-paced")
            for service in install.both(kind):
                assert await service.drain() == 0, service.log_tail()
                await service.restart()
        await all_ended(install, tasks, EFFECTS)
        done.set()
        heard = await asking
    assert heard <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def ask_until(done: asyncio.Event, client: Client, bare: Any, task_ids: Sequence[str]) -> set[grpc.StatusCode]:
    """Asks all the time. The client must always answer; returns how the bare calls failed."""
    heard: set[grpc.StatusCode] = set()
    while not done.is_set():
        for task_id in task_ids:
            assert (await client.get(task_id)).task_id == task_id
            try:
                await bare.GetTask(api.GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                heard.add(error.code())
        await asyncio.sleep(0.01)
    return heard


async def test_renewals_are_listed_from_whichever_coordinator(install: Replicated) -> None:
    """The claim of a worker at one coordinator; after it attached to the other one, that one counts."""
    queue = f"renewals-{uuid.uuid4().hex[:12]}"
    async with scripted(install, queue) as worker:
        await install.client.submit("hold it", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue=queue)))
        grant = await worker.next_grant()
        first = await renewed(install, grant, 2)
        again = await worker.reattach(install.both("coordinator")[1].address)
        try:
            await worker.break_off()
            assert again.lost == []
            second = await renewed(install, grant, 1, after=first.last_time.ToNanoseconds())
            assert second.first_time.ToNanoseconds() > first.first_time.ToNanoseconds()
            await again.succeed(grant)
        finally:
            await again.break_off()


async def renewed(install: Replicated, grant: coordinator_pb.Grant, count: int, after: int = 0) -> admin_pb.Renewals:
    """The renewals of the claim once there are so many, the newest after this moment."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            for claim in (await install.client.claims(grant.task_id)).claims:
                renewals = claim.renewals
                is_newer = renewals.last_time.ToNanoseconds() > after
                if claim.claim_id == grant.claim_id and renewals.count >= count and is_newer:
                    return renewals
            await asyncio.sleep(0.1)
