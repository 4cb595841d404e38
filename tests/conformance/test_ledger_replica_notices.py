"""Notifications between replicas of the ledger: sent while another replica listens, and only then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import psycopg
import pytest

from services.checkpoint.watch.notifications import CHANNEL, POLL_INTERVAL_SECONDS
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint
from tests.support.patience import PATIENCE_SECONDS

QUIET_SECONDS = 1.0
"""Longer than a notification of a replica takes."""


class Listener:
    """Listens beside the replicas, under another name, so that they do not count it."""

    def __init__(self, postgres: psycopg.AsyncConnection) -> None:
        self._postgres = postgres

    async def moved(self, seconds: float) -> set[str]:
        """Returns the tasks that notifications of this time name."""
        heard = [json.loads(one.payload) async for one in self._postgres.notifies(timeout=seconds)]
        return {task_id for payload in heard for task_id in payload["moved"]}


@pytest.fixture
async def alone(checkpoint: MakeCheckpoint) -> AsyncIterator[tuple[Checkpoint, Listener]]:
    replica = await checkpoint()
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute(f"listen {CHANNEL}".encode())
        yield replica, Listener(postgres)


async def until_quiet(replica: Checkpoint, listener: Listener) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await replica.create()).task_id in await listener.moved(QUIET_SECONDS):
            pass


async def test_a_single_replica_sends_no_notification(alone: tuple[Checkpoint, Listener]) -> None:
    replica, listener = alone
    await until_quiet(replica, listener)
    for _ in range(5):
        await replica.create()
    assert await listener.moved(2 * POLL_INTERVAL_SECONDS) == set()


async def test_a_new_replica_is_notified_at_once(
    alone: tuple[Checkpoint, Listener], checkpoint: MakeCheckpoint
) -> None:
    replica, listener = alone
    await until_quiet(replica, listener)
    await checkpoint(dsn=replica.dsn)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await replica.create()).task_id not in await listener.moved(QUIET_SECONDS):
            pass
    tasks = {(await replica.create()).task_id for _ in range(5)}
    heard: set[str] = set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not tasks <= heard:
            heard |= await listener.moved(POLL_INTERVAL_SECONDS)
