"""Postgres crashes, refuses to write, has no room: nothing acknowledged is lost, no task suffers, all goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from devstack import StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.stack import Stack
from tenure.domain import entries as facts
from tenure.wire.common import state_name
from tests.fault.acknowledged import acknowledged_writes
from tests.support.fix_worker import WorkerBench
from tests.support.partition import check_whole, logged
from tests.support.patience import PATIENCE_SECONDS
from tests.support.small_disk import SmallDisk
from tests.support.store_folder import store_folder

RECOVERY_SECONDS = 45.0
"""Some 5 on a machine with nothing else to do."""
PACED_STEPS = 6
SMALL = {"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "32MB"}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The disk of Postgres; None where none can be mounted, and then its errors are raised in Postgres."""
    with SmallDisk.mounted(tmp_path_factory.mktemp("small-disk"), size_mib=400) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def postgres(disk: Any) -> Iterator[Any]:
    """The module's own, to be broken. In memory: a busy disk can make a recovery take minutes."""
    place = nullcontext(disk.folder) if disk else store_folder()
    with place as folder, PostgresProcess(folder / "data", settings=SMALL) as server:
        yield server


@pytest_asyncio.fixture(autouse=True)
async def answering_postgres(postgres: Any) -> AsyncIterator[None]:
    """Each test begins once Postgres answers, whatever the test before it left; a failed test shows Postgres' log."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(psycopg.OperationalError):
                await execute(postgres, "select 1")
                break
            await asyncio.sleep(0.1)
    log = postgres.cluster.log_path
    start = log.stat().st_size
    yield
    sys.stdout.write(log.read_bytes()[start:].decode("utf-8", "replace")[-20_000:])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(tmp_path_factory: pytest.TempPathFactory, postgres: Any) -> AsyncIterator[Any]:
    """In the place of the one over the server that all tests share."""
    folder = tmp_path_factory.mktemp("storage-stack")
    async with Stack(StackOptions(data_dir=folder, workers=0, postgres_dsn=postgres.dsn())) as stack:
        yield stack


async def execute(postgres: Any, statement: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(postgres.dsn(), autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchone() if cursor.description else None


async def until(condition: Any, what: Any) -> None:
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends_at, f"never: {what}"
        await asyncio.sleep(0.05)


async def start_again(postgres: Any) -> None:
    """Once it has ended."""
    await until(lambda: postgres.pid is None, "Postgres ends")
    await asyncio.to_thread(postgres.start)


def no_bug_reported(bench: Any) -> None:
    """No service took what happened for a bug of its own."""
    for name, service in bench.stack.services.items():
        for line in service.log().splitlines():
            assert "unexpected error" not in line, f"{name}: {line}"


async def ended_well(bench: Any, task_id: Any, writes: Any) -> None:
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    await check_whole(bench, task_id, PACED_STEPS)
    assert await writes.in_the_ledger() == writes.acknowledged
    no_bug_reported(bench)


@pytest.mark.faults
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGQUIT], ids=["crash", "immediate"])
async def test_a_restart_of_postgres_loses_nothing_acknowledged(bench: WorkerBench, postgres: Any, by: Any) -> None:
    """F32."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    async with acknowledged_writes(bench) as writes:
        os.kill(postgres.pid, by)
        await writes.refused("POSTGRES_UNAVAILABLE")
        await start_again(postgres)
        assert await writes.go_on() < RECOVERY_SECONDS
    await ended_well(bench, task_id, writes)


@pytest.mark.faults
async def test_a_read_only_postgres_acknowledges_nothing(bench: WorkerBench, postgres: Any) -> None:
    """F33."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    async with acknowledged_writes(bench) as writes:
        await execute(postgres, "alter system set default_transaction_read_only = on")
        await execute(postgres, "select pg_reload_conf()")
        await writes.refused("READ_ONLY")
        await asyncio.sleep(0.5)  # earlier writers have ended
        acknowledged = {task_id: list(texts) for task_id, texts in writes.acknowledged.items()}
        assert await writes.in_the_ledger() == acknowledged
        assert writes.acknowledged == acknowledged
        await execute(postgres, "alter system reset default_transaction_read_only")
        await execute(postgres, "select pg_reload_conf()")
        assert await writes.go_on() < RECOVERY_SECONDS
    await ended_well(bench, task_id, writes)


async def take_all_room(postgres: Any, disk: Any) -> None:
    """A disk filled to its last byte, or its error raised where a write would meet it."""
    if disk:
        disk.fill()
        return
    await execute(
        postgres,
        "create function public.full() returns trigger language plpgsql as "
        "$$ begin raise exception 'No space left on device' using errcode = '53100'; end $$",
    )
    await execute(postgres, "create trigger full_disk before insert on ledger.entries execute function public.full()")


async def give_room(postgres: Any, disk: Any) -> None:
    if disk:
        disk.free()
    else:
        await execute(postgres, "drop function public.full() cascade")
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not await answers(postgres):
        assert time.monotonic() < ends_at, "never: Postgres answers"
        if postgres.pid is None:  # it could not write its log ahead either, maybe only in its recovery
            await asyncio.to_thread(postgres.start)


async def answers(postgres: Any) -> bool:
    """Whether it takes connections. It does not while it recovers, or is about to end."""
    try:
        await execute(postgres, "select 1")
    except psycopg.OperationalError:
        await asyncio.sleep(0.05)
        return False
    return True


@pytest.mark.faults
async def test_a_full_disk_fails_no_task(bench: WorkerBench, postgres: Any, disk: Any) -> None:
    """F34."""
    worker = await bench.start_worker()
    task_id = await bench.submit("sim-worker-bulky")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    async with acknowledged_writes(bench) as writes:
        await take_all_room(postgres, disk)
        await writes.refused("STORAGE_FULL")
        await logged(worker, "the claim is released")
        calls = len(bench.model_calls(task_id))
        await writes.refused("STORAGE_FULL", "POSTGRES_UNAVAILABLE")
        assert len(bench.model_calls(task_id)) <= calls + 1, "it pays for no answer that it cannot write down"
        await give_room(postgres, disk)
        assert await writes.go_on() < RECOVERY_SECONDS
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    assert await writes.in_the_ledger() == writes.acknowledged
    no_bug_reported(bench)


@pytest.mark.faults
async def test_no_room_for_the_log_ahead_is_a_crash_like_any_other(
    bench: WorkerBench, postgres: Any, disk: Any
) -> None:
    """F34: Postgres panics. Where no disk can be filled one of its processes is killed, which it answers alike."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    async with acknowledged_writes(bench) as writes:
        if disk:
            disk.fill()
            with suppress(psycopg.OperationalError):
                for _ in range(64):
                    await execute(postgres, "select pg_logical_emit_message(true, 'fill', repeat('x', 1000000))")
            await writes.refused("POSTGRES_UNAVAILABLE")
            await give_room(postgres, disk)
        else:
            backend = await execute(postgres, "select pid from pg_stat_activity where application_name like 'tenure-%'")
            os.kill(backend[0], signal.SIGKILL)
        assert await writes.go_on() < RECOVERY_SECONDS
    await ended_well(bench, task_id, writes)


@pytest.mark.faults
async def test_rolled_back_transactions_are_repeated_silently(bench: WorkerBench, postgres: Any) -> None:
    """F36: of the transactions that write to a ledger one in ten is undone, mostly twice in a row."""
    await bench.start_worker()
    await execute(postgres, "create sequence public.hits")
    await execute(postgres, "grant usage on sequence public.hits to public")
    await execute(
        postgres,
        "create function public.conflict() returns trigger language plpgsql as $$ begin "
        "if nextval('public.hits') % 20 in (1, 2) then raise exception 'injected' using errcode = "
        "(array['40001', '40P01'])[1 + currval('public.hits') % 2]; end if; return null; end $$",
    )
    await execute(
        postgres,
        "create trigger conflict before insert on ledger.entries for each statement execute function public.conflict()",
    )
    try:
        task_id = await bench.submit("sim-worker-paced")
        async with acknowledged_writes(bench) as writes:
            await bench.ended(task_id)
        assert not writes.refusals
        assert (await bench.task(task_id)).claim_count == 1
        await ended_well(bench, task_id, writes)
    finally:
        await execute(postgres, "drop function public.conflict() cascade")
        await execute(postgres, "drop sequence public.hits")


@pytest.mark.faults
async def test_a_deadlock_that_others_cause_is_survived(bench: WorkerBench, postgres: Any) -> None:
    """F36, by a session that locks in the wrong order."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    async with await psycopg.AsyncConnection.connect(postgres.dsn()) as other:
        await other.execute("set deadlock_timeout = '60s'")  # so that it is the ledger which is undone
        await other.execute("select 1 from ledger.budgets where root_task_id = %s for update", [task_id])
        await waits_for_a_lock(postgres)
        await other.execute("select 1 from ledger.tasks where task_id = %s for update", [task_id])
        await other.rollback()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    await check_whole(bench, task_id, PACED_STEPS)
    (deadlocks,) = await execute(postgres, "select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks >= 1
    no_bug_reported(bench)


async def waits_for_a_lock(postgres: Any) -> None:
    """Until the ledger does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        waiting = (
            "select count(*) from pg_stat_activity where application_name like 'tenure-%' and wait_event_type = 'Lock'"
        )
        while not (await execute(postgres, waiting))[0]:
            await asyncio.sleep(0.02)
