"""Reads at a hot standby: a list says how old it is, entries are never stale, and the primary serves without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest

from devstack.postgres_process import PostgresProcess
from services.checkpoint import standby as module
from services.checkpoint.queries import MIGRATIONS
from services.checkpoint.standby import CATCH_UP_ENTRIES, StandbySettings
from tenure.runtime.observability import metrics
from tenure.runtime.settings import Secret
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, words
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.postgres_backup import make_standby
from tests.support.shared_stores import POSTGRES_SETTINGS
from tests.support.store_folder import store_folder

pytestmark = pytest.mark.server

PATIENT: Final = 60.0
"""A lag that no busy machine reaches by itself."""


class StandbyLedger:
    """A ledger with a standby in the hands of the test."""

    def __init__(self, replica: Checkpoint, standby: PostgresProcess, database: str) -> None:
        self.replica, self.standby, self._database = replica, standby, database

    async def listed(self, *, fresh: bool = False) -> tuple[set[str], datetime | None]:
        """The tasks of a list, and the moment of its data if it is that of the standby."""
        request = tasks_pb.ListTasksRequest(fresh=fresh)
        page = await self.replica.stub.ListTasks(request, timeout=CALL_SECONDS)
        as_of = page.as_of_time.ToDatetime(tzinfo=UTC) if page.HasField("as_of_time") else None
        return {task.task_id for task in page.tasks}, as_of

    async def until(self, holds: Callable[[set[str], datetime | None], bool]) -> tuple[set[str], datetime | None]:
        """The first list of which this holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(*(listed := await self.listed())):
                await asyncio.sleep(0.05)
        return listed

    async def used(self) -> None:
        """Waits until the standby answers lists."""
        await self.until(lambda _, as_of: as_of is not None)

    @asynccontextmanager
    async def stopped_replay(self) -> AsyncIterator[None]:
        """Inside, the standby receives the log and applies nothing."""
        await self._execute("select pg_wal_replay_pause()")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._execute("select pg_get_wal_replay_pause_state()") != [("paused",)]:
                await asyncio.sleep(0.05)
        try:
            yield
        finally:
            await self._execute("select pg_wal_replay_resume()")

    async def _execute(self, statement: str) -> list[Any]:
        return await execute(self.standby.dsn(self._database), statement)


async def execute(dsn: str, statement: str) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def standby_server(postgres_server: PostgresProcess, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A hot standby of the session's server, by streaming replication."""
    with store_folder() as folder:
        server = asyncio.run(make_standby(postgres_server, folder / "standby", POSTGRES_SETTINGS))
        with server:
            yield server


@pytest.fixture
async def make_ledger(
    fresh_database: FreshDatabase,
    checkpoint: MakeCheckpoint,
    standby_server: PostgresProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr(module, "CONNECT_AGAIN_SECONDS", 0.2)

    async def make(*, max_lag_seconds: float = PATIENT, dsn: str = "") -> StandbyLedger:
        primary = await fresh_database(MIGRATIONS)
        database = primary.rpartition("/")[2]
        settings = StandbySettings(
            dsn=Secret(dsn or standby_server.dsn(database)), max_lag_seconds=max_lag_seconds, pool_size=2
        )
        return StandbyLedger(await checkpoint(dsn=primary, standby=settings), standby_server, database)

    yield make
    await standby_server.start_async()


def reads(kind: str, source: str = "standby") -> float:
    return metrics.cell("tenure_standby_reads_total", kind=kind, source=source).value


async def test_a_list_of_the_standby_has_its_moment(make_ledger: Any) -> None:
    ledger = await make_ledger()
    task = await ledger.replica.create()
    created = datetime.now(UTC)
    tasks, as_of = await ledger.until(lambda _, as_of: as_of is not None and as_of >= created)
    assert tasks == {task.task_id}, "a list has everything up to its moment; it may have more"
    assert as_of is not None
    assert as_of <= datetime.now(UTC)
    assert await ledger.listed(fresh=True) == ({task.task_id}, None)


async def test_a_stale_list_has_its_true_moment(make_ledger: Any) -> None:
    """What was created after the moment that it names may be missing, and nothing of before."""
    ledger = await make_ledger()
    early = (await ledger.replica.create()).task_id
    await ledger.until(lambda tasks, as_of: as_of is not None and early in tasks)
    async with ledger.stopped_replay():
        late = await ledger.replica.create()
        await asyncio.sleep(4 * module.LOOK_SECONDS)  # the duty looks meanwhile, and must not call this age new
        tasks, as_of = await ledger.listed()
        assert tasks == {early}
        assert as_of < late.create_time.ToDatetime(tzinfo=UTC)
        assert await ledger.listed(fresh=True) == ({early, late.task_id}, None)
        assert (await ledger.replica.get(late.task_id)).task_id == late.task_id
    await ledger.until(lambda tasks, as_of: as_of is not None and late.task_id in tasks)


@pytest.mark.faults
async def test_a_standby_that_lags_too_far_is_not_used(make_ledger: Any) -> None:
    ledger = await make_ledger(max_lag_seconds=2.0)
    await ledger.used()
    async with ledger.stopped_replay():
        late = (await ledger.replica.create()).task_id
        assert await ledger.until(lambda _, as_of: as_of is None) == ({late}, None)
    await ledger.until(lambda tasks, as_of: as_of is not None and late in tasks)


async def test_entries_are_complete_on_both_servers(make_ledger: Any) -> None:
    ledger = await make_ledger()
    await ledger.used()
    owner = await ledger.replica.claim((await ledger.replica.create()).task_id)
    task_id = owner.task.task_id
    for number in range(CATCH_UP_ENTRIES):
        await owner.commit(words(str(number)))
    last = owner.known_sequence
    before = reads("entries")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while reads("entries") == before:
            assert [one.sequence for one in await ledger.replica.entries(task_id)] == list(range(1, last + 1))
    async with ledger.stopped_replay():
        await owner.commit(words("the standby does not have it"))
        at_standby = reads("entries")
        assert [one.sequence for one in await ledger.replica.entries(task_id)] == list(range(1, last + 2))
        assert [one.sequence for one in await watched(ledger, task_id, last + 1)] == list(range(1, last + 2))
        assert reads("entries") == at_standby


async def watched(ledger: StandbyLedger, task_id: str, until: int) -> list[Any]:
    entries: list[Any] = []
    stream = ledger.replica.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task_id), timeout=CALL_SECONDS)
    async for answer in stream:
        entries += answer.entries
        if entries and entries[-1].sequence >= until:
            stream.cancel()
            return entries
    return entries


async def test_the_primary_answers_while_the_standby_is_down(make_ledger: Any) -> None:
    ledger = await make_ledger()
    await ledger.used()
    task_id = (await ledger.replica.create()).task_id
    ledger.standby.kill()
    for _ in range(3):
        tasks, _ = await ledger.listed()
        assert task_id in tasks
    assert (await ledger.until(lambda _, as_of: as_of is None))[0] == {task_id}
    await ledger.standby.start_async()
    await ledger.until(lambda tasks, as_of: as_of is not None and task_id in tasks)


@pytest.mark.faults
async def test_a_service_starts_without_its_standby(make_ledger: Any) -> None:
    ledger = await make_ledger(dsn="postgresql://tenure@127.0.0.1:9/nowhere")
    task_id = (await ledger.replica.create()).task_id
    assert await ledger.listed() == ({task_id}, None)


@pytest.mark.faults
async def test_a_server_that_is_not_a_standby_is_never_used(
    make_ledger: Any, postgres_server: PostgresProcess, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = await make_ledger(dsn=postgres_server.dsn())
    task_id = (await ledger.replica.create()).task_id
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "the standby is not used" not in caplog.text:
            await asyncio.sleep(0.05)
    assert "not a standby of the ledger's database" in str([vars(record).get("reason") for record in caplog.records])
    assert await ledger.listed() == ({task_id}, None)


@pytest.mark.faults
async def test_a_standby_of_a_former_primary_is_not_used(
    fresh_database: FreshDatabase,
    checkpoint: MakeCheckpoint,
    postgres_server: PostgresProcess,
    standby_server: PostgresProcess,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another standby became the primary: this one follows the former primary, and has writes that are lost."""
    database = (await fresh_database(MIGRATIONS)).rpartition("/")[2]
    patient = {**POSTGRES_SETTINGS, "max_standby_streaming_delay": "-1"}  # a replayed vacuum cancels no statement
    with store_folder() as folder:
        async with await make_standby(postgres_server, folder / "promoted", patient) as promoted:
            await execute(promoted.dsn(database), "select pg_promote()")
            await execute(postgres_server.dsn(database), "create table lost ()")
            await execute(postgres_server.dsn(database), "select pg_switch_wal()")
            settings = StandbySettings(dsn=Secret(standby_server.dsn(database)), max_lag_seconds=PATIENT, pool_size=2)
            replica = await checkpoint(dsn=promoted.dsn(database), standby=settings)
            ledger = StandbyLedger(replica, standby_server, database)
            task_id = (await replica.create()).task_id
            async with asyncio.timeout(PATIENCE_SECONDS):
                while "timeline" not in str([vars(record).get("reason") for record in caplog.records]):
                    assert await ledger.listed() == ({task_id}, None)
                    await asyncio.sleep(0.05)
            assert await ledger.listed() == ({task_id}, None)


SLOW: Final = """
create schema slow;
create table slow.reads (at timestamptz);
create function slow.pg_current_wal_flush_lsn() returns pg_lsn language plpgsql as $$
declare read_lsn pg_lsn := pg_catalog.pg_current_wal_flush_lsn();
begin
  insert into slow.reads values (clock_timestamp());
  perform pg_sleep(0.2);
  return read_lsn;
end $$;
set search_path = slow, pg_catalog;
"""


async def test_the_noted_moment_is_not_after_its_position(fresh_database: FreshDatabase) -> None:
    """A commit that is acknowledged after the log was read must not count as a part of it."""
    async with await psycopg.AsyncConnection.connect(await fresh_database(), autocommit=True) as primary:
        await primary.execute(SLOW)
        row = await (await primary.execute(module.STATEMENTS.primary_position)).fetchone()
        read = await (await primary.execute("select at from slow.reads")).fetchone()
    assert row is not None
    assert read is not None
    assert row[1] <= read[0]
