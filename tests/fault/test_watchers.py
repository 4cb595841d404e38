"""Watchers that are slow, go away and come back elsewhere: they delay no other watcher, and miss nothing."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import OutOfRange, Unavailable
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_checkpoint import MakeCheckpointProcess, kinds, words
from tests.support.fix_gateway import Serve
from tests.support.patience import PATIENCE_SECONDS

SLOW_READERS = 40
COMMITS = 80
COMMIT_BYTES = 300_000
MAX_GROWTH_MIB = 7 * SLOW_READERS
"""For readers who each leave 24 MiB unread. What is on its way to each, in the windows of its streams and two pages of
entries, was measured as 4 MiB in the gateway and 4 in the ledger, however much there is to be read.
"""


@pytest.fixture
async def ledgers(checkpoint_process: MakeCheckpointProcess) -> Any:
    """Two replicas, each a process."""
    first = await checkpoint_process()
    return [first, await checkpoint_process(dsn=first.replica.dsn)]


def memory_mib(pid: int) -> int:
    """What it holds of the machine's memory."""
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def watch(stub: Any, task_id: Any, after: int = 0) -> Any:
    return stub.WatchTask(api.WatchTaskRequest(task_id=task_id, after_sequence=after), timeout=2 * PATIENCE_SECONDS)


async def read_on(stream: Any) -> Any:
    """The entries, to the stream's end."""
    return [event.entry async for event in stream if event.HasField("entry")]


async def slow_readers(opened: Any, address: Any, task_id: Any) -> Any:
    """Streams of which the first entry was read, each on a connection of its own: no other stream holds it back."""
    streams = []
    for _ in range(SLOW_READERS):
        channel = await opened.enter_async_context(open_channel(address))
        streams.append(aiter(watch(TaskServiceStub(channel), task_id)))
        await anext(streams[-1])
    return streams


@pytest.mark.faults
async def test_slow_readers_cost_no_memory_and_delay_none(
    checkpoint_process: MakeCheckpointProcess, gateway: Serve
) -> None:
    """F43. What they do not read is not kept for them: it is read from the ledger once they go on."""
    ledger = await checkpoint_process()
    replica = ledger.replica
    owner = await replica.claim((await replica.create()).task_id)
    stub = await gateway(replica.address, heartbeat_seconds=15.0)
    processes = [ledger.process.pid, stub.process.pid]
    async with AsyncExitStack() as opened:
        slow = await slow_readers(opened, stub.process.address, owner.task.task_id)
        before = [memory_mib(pid) for pid in processes]
        quick = asyncio.create_task(read_on(watch(stub, owner.task.task_id)))
        for _ in range(COMMITS):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await owner.commit(words("x" * COMMIT_BYTES))
        await owner.end()
        async with asyncio.timeout(PATIENCE_SECONDS):
            whole = [entry.sequence for entry in await quick]
        assert whole == list(range(1, COMMITS + 5))
        grown = [memory_mib(pid) - then for pid, then in zip(processes, before, strict=True)]
        assert max(grown) < MAX_GROWTH_MIB, f"checkpoint and gateway grew by {grown} MiB"
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [entry.sequence for entry in await read_on(slow[0])] == whole[1:]


async def restless(stubs: Any, task_id: Any, dice: Any) -> Any:
    """A watcher that breaks off after a few entries and comes back by either gateway: all that it got, in order."""
    seen: list[Any] = []
    while not (seen and kinds(seen[-1:]) == ["RUNNING>SUCCEEDED"]):
        stream = watch(dice.choice(stubs), task_id, after=seen[-1].sequence if seen else 0)
        patience = dice.randrange(1, 12)
        try:
            async for event in stream:
                if event.HasField("entry"):
                    seen.append(event.entry)
                    patience -= 1
                if patience <= 0:
                    break
        except Unavailable:
            await asyncio.sleep(0.05)
        stream.cancel()
    return seen


@pytest.mark.faults
async def test_watchers_at_two_gateways_get_everything_once(ledgers: Any, gateway: Serve) -> None:
    """F44, while a ledger replica and a gateway are killed and commits are written by both ledgers in turn."""
    owners_replica, other = (each.replica for each in ledgers)
    owner = await owners_replica.claim((await owners_replica.create()).task_id)
    stubs = [await gateway(each.replica.address) for each in ledgers]
    doomed = await gateway(other.address)
    watchers = [
        asyncio.create_task(restless([*stubs, doomed], owner.task.task_id, random.Random(seed))) for seed in range(6)
    ]
    for number in range(120):
        owner.replica = (owners_replica, other)[number % 2]
        await owner.commit(words(str(number)))
        if number == 60:
            doomed.process.signal(signal.SIGKILL)
        await asyncio.sleep(0.005)  # the watchers' turn
    await owner.end()
    written = await owners_replica.entries(owner.task.task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for seen in await asyncio.gather(*watchers):
            assert seen == written
    for stub in stubs:
        assert await read_on(watch(stub, owner.task.task_id, after=len(written))) == []
        with pytest.raises(OutOfRange) as beyond:
            await read_on(watch(stub, owner.task.task_id, after=len(written) + 1))
        assert beyond.value.reason == "CURSOR_EXPIRED"


@pytest.mark.faults
async def test_a_drained_gateways_watchers_resume_elsewhere(ledgers: Any, gateway: Serve) -> None:
    """F45."""
    replica = ledgers[0].replica
    owner = await replica.claim((await replica.create()).task_id)
    drained, other = [await gateway(each.replica.address) for each in ledgers]
    stream = aiter(watch(drained, owner.task.task_id))
    seen = [(await anext(stream)).entry for _ in range(3)]
    stopping = asyncio.create_task(drained.process.stop())
    with pytest.raises(Unavailable) as ended:
        await read_on(stream)
    assert ended.value.retry_after_seconds is not None
    await owner.commit(words())
    await owner.end()
    seen += await read_on(watch(other, owner.task.task_id, after=seen[-1].sequence))
    assert seen == await replica.entries(owner.task.task_id)
    assert await stopping == 0
