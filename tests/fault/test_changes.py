"""The one stream over all tasks, while many write by two ledgers and everything between is restarted."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from services.checkpoint.queries import MIGRATIONS
from tenure.client import Client
from tenure.domain.errors import TryLater
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, words
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.faults

WRITERS = 16
TASKS_A_WRITER = 6
WATCHERS = 4


@pytest.fixture
async def installation(fresh_database: FreshDatabase, signing_keys: Path) -> AsyncIterator[Any]:
    """Two ledgers over one database, and two gateways over both; each a process."""
    dsn = await fresh_database(MIGRATIONS)
    async with AsyncExitStack() as opened:
        settings = {
            "LISTEN": "127.0.0.1:0",
            "POSTGRES_DSN": dsn,
            "VERIFYING_KEYS_FILE": str(signing_keys / "verifying.json"),
        }
        ledgers = [await started(opened, ServiceProcess("checkpoint", settings)) for _ in range(2)]
        address = ",".join(each.address for each in ledgers)
        nowhere = {"COORDINATOR_ADDRESS": "127.0.0.1:1", "TOOLS_ADDRESS": "127.0.0.1:1"}
        settings = {"LISTEN": "127.0.0.1:0", "CHECKPOINT_ADDRESS": address, "HEARTBEAT_SECONDS": "0.5", **nowhere}
        gateways = [await started(opened, ServiceProcess("gateway", settings)) for _ in range(2)]
        channel = await opened.enter_async_context(open_channel(address.split(",")))
        yield Checkpoint(address, dsn, signing_keys, channel), ledgers, gateways


async def started(opened: Any, process: Any) -> Any:
    await process.start()
    opened.push_async_callback(process.kill)
    return process


async def until_answered(call: Any) -> Any:
    """The same again and again: everything that is called here may be repeated."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await call()
            except TryLater:
                await asyncio.sleep(0.05)


async def write(ledger: Any, dice: Any) -> None:
    """Tasks from their beginning to some end."""
    for _ in range(TASKS_A_WRITER):
        request_id = str(uuid.uuid4())
        task = await until_answered(lambda request_id=request_id: ledger.create(request_id))
        owner = await until_answered(lambda task=task: ledger.claim(task.task_id))
        if dice.random() < 0.3:
            await until_answered(lambda task=task, request_id=request_id: ledger.cancel(task.task_id, request_id))
        ending = pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER")
        for request in ({"entries": [words()]}, {"transition": ending}):
            commit = owner.request(**request)
            await until_answered(lambda owner=owner, commit=commit: owner.send(commit))


async def watch(gateways: Any, cursor: Any, last_task: Any, dice: Any) -> Any:
    """Everything up to the last task's beginning, by one client after another, each going on at the cursor before."""
    seen = []
    while True:
        patience = dice.randrange(5, 60)
        gateway = dice.choice(gateways).address if dice.random() < 0.5 else ",".join(each.address for each in gateways)
        async with Client(gateway) as client, aclosing(client.watch_tasks(after_cursor=cursor)) as events:
            async for event in events:
                cursor, patience = event.cursor, patience - 1
                if event.HasField("change"):
                    seen.append((event.change.task_id, event.change.sequence))
                if last_task.done() and seen and seen[-1][0] == last_task.result():
                    return seen
                if patience <= 0:
                    break


async def restart_all(ledgers: Any, gateways: Any) -> None:
    """One after another, and both ledgers at once, killed and drained."""
    for process in (*ledgers, *gateways):
        await process.kill()
        await process.start_again()
    for process in (*ledgers, *gateways):
        assert await process.stop() == 0
        await process.start_again()
    await asyncio.gather(*(process.kill() for process in ledgers))
    await asyncio.gather(*(process.start_again() for process in ledgers))


async def first_cursor(gateways: Any) -> Any:
    async with Client(gateways[0].address) as client, aclosing(client.watch_tasks()) as events:
        return (await anext(events)).cursor


async def test_watchers_of_all_tasks_miss_nothing_through_restarts(installation: Any) -> None:
    ledger, ledgers, gateways = installation
    cursor = await first_cursor(gateways)
    last_task = asyncio.get_running_loop().create_future()
    watchers = [
        asyncio.create_task(watch(gateways, cursor, last_task, random.Random(seed))) for seed in range(WATCHERS)
    ]
    writers = [asyncio.create_task(write(ledger, random.Random(seed))) for seed in range(WRITERS)]
    await restart_all(ledgers, gateways)
    await asyncio.gather(*writers)
    last_task.set_result((await until_answered(lambda: ledger.create("the last"))).task_id)
    written = await ledger.query("select task_id::text, sequence from ledger.changes order by task_id, sequence")
    assert len(written) > 2 * WRITERS * TASKS_A_WRITER
    async with asyncio.timeout(PATIENCE_SECONDS):
        for seen in await asyncio.gather(*watchers):
            assert sorted(seen) == written
            sequences: dict[str, int] = {}
            for task_id, sequence in seen:
                assert sequence > sequences.get(task_id, 0), "a task's changes came out of their order"
                sequences[task_id] = sequence
