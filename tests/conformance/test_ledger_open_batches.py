"""Opens that arrive together are one transaction; each has its own answer, and the fence rules stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from services.checkpoint.commit import opening
from services.checkpoint.commit.opener import LedgerOpener
from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from tenure.domain.errors import StaleEpoch, WrongState
from tenure.runtime.settings import Secret
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tenure.v1 import task_pb2
from tests.conformance.test_ledger_fairness import limit
from tests.support.fix_checkpoint import Checkpoint, kinds, reserve, words
from tests.support.one_batch import in_one_batch
from tests.support.patience import PATIENCE_SECONDS

MANY = 20


@asynccontextmanager
async def opener_of(replica: Checkpoint) -> AsyncIterator[LedgerOpener]:
    """An opener that does not run yet, so that a test decides what one batch has."""
    options = PoolOptions(max_size=3, settings=SESSION_SETTINGS)
    async with (
        open_pool(replica.dsn, service="test", schema=SCHEMA, options=options) as pool,
        LedgerOpener(Secret(replica.dsn), pool, lambda _: None) as opener,
    ):
        yield opener


async def test_opens_together_are_one_transaction(replica: Checkpoint) -> None:
    claims = [(await replica.grant((await replica.create()).task_id))[1] for _ in range(MANY)]
    async with opener_of(replica) as opener:
        opened = await in_one_batch(opener, *map(opener.open, claims))
    assert [one.header.task.epoch for one in opened] == [one.epoch for one in claims]
    assert [one.header.next_commit_number for one in opened] == [1] * MANY
    for one in opened:
        assert kinds(one.first.page.entries) == ["submitted", ">QUEUED", "QUEUED>RUNNING"]
    times = await replica.query(
        "select count(distinct recorded_at) from ledger.entries where sequence = 3 and tenant = %s", replica.tenant
    )
    assert times == [(1,)]


async def test_a_takeover_in_a_batch_fences_each_former_owner(replica: Checkpoint) -> None:
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(3)]
    for owner in owners:
        await owner.commit(reserve=reserve(input_tokens=70, output=30))
    claims = [(await replica.grant(owner.task.task_id, holder="w-2"))[1] for owner in owners]
    async with opener_of(replica) as opener:
        opened = await in_one_batch(opener, *map(opener.open, claims))
    for one in opened:
        assert kinds(one.first.page.entries)[-3:] == ["attempt_lost", "RUNNING>QUEUED", "QUEUED>RUNNING"]
        assert one.header.task.budget.reserved_tokens == 0
    for owner in owners:
        with pytest.raises(StaleEpoch):
            await owner.commit(words())


async def test_a_tenants_limit_holds_within_a_batch(replica: Checkpoint) -> None:
    await limit(replica, replica.tenant, 4)
    await replica.claim((await replica.create()).task_id)
    claims = [(await replica.grant((await replica.create()).task_id))[1] for _ in range(6)]
    async with opener_of(replica) as opener:
        opened = await in_one_batch(opener, *map(opener.open, claims))
    refused = [one for one in opened if isinstance(one, WrongState)]
    assert [one.reason for one in refused] == ["TENANT_QUOTA"] * 3
    assert await replica.query("select count(*) from ledger.tasks where holds and tenant = %s", replica.tenant) == [
        (4,)
    ]


async def test_an_open_without_a_caller_raises_no_fence(replica: Checkpoint) -> None:
    (_, gone), (_, stays) = [await replica.grant((await replica.create()).task_id) for _ in range(2)]
    async with opener_of(replica) as opener:
        cancelled = asyncio.create_task(opener.open(gone))
        await asyncio.sleep(0)
        cancelled.cancel()
        [opened] = await in_one_batch(opener, opener.open(stays))
    assert opened.header.task.state == task_pb2.TASK_STATE_RUNNING
    assert (await replica.get(gone.task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_histories_beyond_the_first_pages_are_whole(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "FIRST_PAGES_BYTES", 10_000)
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(5)]
    for owner in owners:
        await owner.commit(*[words("x" * 1000) for _ in range(30)])
    opened = await asyncio.gather(*[replica.claim(owner.task.task_id) for owner in owners])
    for one in opened:
        assert [entry.sequence for entry in one.entries] == list(range(1, one.task.sequence + 1))
        assert one.task.sequence == 3 + 30 + 2


async def test_a_locked_task_is_opened_when_its_lock_is_free(replica: Checkpoint) -> None:
    tasks = [await replica.create() for _ in range(3)]
    grants = [await replica.grant(task.task_id) for task in tasks]
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.tasks where task_id = %s for update", [tasks[1].task_id])
        opens = [asyncio.create_task(replica.open(*grant)) for grant in grants]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(opens[0], opens[2])
        assert not opens[1].done()
    assert (await opens[1]).task.state == task_pb2.TASK_STATE_RUNNING
