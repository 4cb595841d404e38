"""What was acknowledged is there, what was not may be, and nothing is there twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devstack.postgres_process import PostgresProcess
from edges.notifications.notifier import PeopleNotifier
from services.checkpoint.main import CheckpointSettings, assemble
from services.checkpoint.queries import MIGRATIONS, SCHEMA, fetch_one
from services.checkpoint.webhooks.sending import WebhookSettings
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.errors import Unavailable
from tenure.runtime import failpoints
from tenure.runtime.process import Process
from tenure.runtime.service import CommonSettings
from tenure.runtime.settings import Address, ConfigurationError, Secret
from tenure.runtime.store.postgres import in_transaction, open_pool, pool_connection
from tenure.runtime.store.sql import migrate
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, MakeCheckpoint, MakeCheckpointProcess, kinds, reserve, words
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def armed() -> Iterator[Any]:
    """Failpoints of this process."""
    yield failpoints.arm
    failpoints.disarm()


async def test_a_kill_before_the_answer_loses_and_repeats_nothing(
    checkpoint_process: MakeCheckpointProcess, checkpoint: MakeCheckpoint
) -> None:
    doomed = await checkpoint_process(failpoints="checkpoint.after_commit=kill9")
    replica = doomed.replica
    owner = await replica.claim((await replica.create()).task_id)
    request = owner.request(words(), reserve=reserve())
    with pytest.raises(Unavailable):
        await owner.send(request)
    assert await doomed.wait_until_dead() == -signal.SIGKILL
    next_replica = await checkpoint(dsn=replica.dsn)
    answered = await next_replica.stub.Commit(request, timeout=TIMEOUT_SECONDS)
    assert answered.sequence == 5
    assert answered.reserve.granted.reserved_tokens == 200
    entries = await next_replica.entries(owner.task.task_id)
    assert kinds(entries) == ["submitted", ">QUEUED", "QUEUED>RUNNING", "user_message", "model_attempt"]


async def test_a_kill_before_the_commit_writes_nothing(
    checkpoint_process: MakeCheckpointProcess, checkpoint: MakeCheckpoint
) -> None:
    doomed = await checkpoint_process(failpoints="checkpoint.before_commit=kill9")
    owner = await doomed.replica.claim((await doomed.replica.create()).task_id)
    request = owner.request(words())
    with pytest.raises(Unavailable):
        await owner.send(request)
    await doomed.wait_until_dead()
    next_replica = await checkpoint(dsn=doomed.replica.dsn)
    assert (await next_replica.get(owner.task.task_id)).sequence == 3
    assert (await next_replica.stub.Commit(request, timeout=TIMEOUT_SECONDS)).sequence == 4


async def test_a_kill_after_the_open_leaves_a_claim_that_opens_again(
    checkpoint_process: MakeCheckpointProcess, checkpoint: MakeCheckpoint
) -> None:
    doomed = await checkpoint_process(failpoints="checkpoint.after_open=kill9")
    token, claims = await doomed.replica.grant((await doomed.replica.create()).task_id)
    with pytest.raises(Unavailable):
        await doomed.replica.open(token, claims)
    next_replica = await checkpoint(dsn=doomed.replica.dsn)
    owner = await next_replica.open(token, claims)
    assert (owner.task.claim_count, owner.next_number) == (1, 1)


async def test_an_answer_that_failed_after_the_commit_is_given_again(checkpoint: MakeCheckpoint, armed: Any) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    request = owner.request(words())
    armed("checkpoint.after_commit=1#error(UNAVAILABLE)")
    assert (await owner.send(request)).sequence == 4
    assert (await replica.get(owner.task.task_id)).sequence == 4


async def test_sigterm_drains_and_exits_in_order(checkpoint_process: MakeCheckpointProcess) -> None:
    running = await checkpoint_process()
    owner = await running.replica.claim((await running.replica.create()).task_id)
    stream = running.replica.stub.WatchEntries(
        pb.WatchEntriesRequest(task_id=owner.task.task_id), timeout=PATIENCE_SECONDS
    )
    await stream.read()
    running.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await running.wait_until_dead() == 0
    with pytest.raises(Unavailable):
        await stream.read()


async def test_without_postgres_nothing_is_acknowledged(
    checkpoint: MakeCheckpoint, own_postgres: PostgresProcess
) -> None:
    await migrate(own_postgres.dsn(), MIGRATIONS)
    replica = await checkpoint(dsn=own_postgres.dsn())
    owner = await replica.claim((await replica.create()).task_id)
    request = owner.request(words())
    await asyncio.to_thread(own_postgres.kill)
    with pytest.raises(Unavailable):
        await owner.send(request)
    with pytest.raises(Unavailable):
        await replica.get(owner.task.task_id)
    await asyncio.to_thread(own_postgres.start)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                assert (await owner.send(request)).sequence == 4
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    assert (await replica.get(owner.task.task_id)).sequence == 4


async def test_a_read_only_postgres_is_unavailable(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    name = (await replica.query("select current_database()"))[0][0]
    await replica.query(f"alter database {name} set default_transaction_read_only = on")
    await replica.query(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name like 'tenure-%%' and datname = current_database()"
    )
    with pytest.raises(Unavailable) as refused:
        await owner.commit(words())
    assert refused.value.reason == "READ_ONLY"


async def test_a_faulty_statement_is_an_internal_error(checkpoint: MakeCheckpoint) -> None:
    """Of all data that Postgres refuses, only text with impossible characters is blamed on the caller's text."""
    replica = await checkpoint()
    async with open_pool(replica.dsn, schema=SCHEMA) as pool:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await in_transaction(pool, lambda connection: fetch_one(connection, b"select 1 / 0", {}))
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with pool_connection(pool) as connection:
                await fetch_one(connection, b"select 1 / 0", {})


async def test_a_full_disk_is_reported_and_the_ledger_recovers(
    checkpoint: MakeCheckpoint,
) -> None:
    """The error of a full disk, raised where the write would meet it."""
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    await replica.query(
        "create function public.full() returns trigger language plpgsql as "
        "$$ begin raise exception 'No space left on device' using errcode = '53100'; end $$"
    )
    await replica.query("create trigger full_disk before insert on ledger.entries execute function public.full()")
    request = owner.request(words())
    with pytest.raises(Unavailable) as refused:
        await owner.send(request)
    assert refused.value.reason == "STORAGE_FULL"
    await replica.query("drop trigger full_disk on ledger.entries")
    assert (await owner.send(request)).sequence == 4


async def test_an_unsafe_postgres_is_refused_at_start_unless_allowed(
    fresh_database: FreshDatabase, signing_keys: Path
) -> None:
    dsn = await fresh_database(MIGRATIONS)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        name = postgres.info.dbname
        await postgres.execute(f"alter database {name} set synchronous_commit = off".encode())
    wanted = settings_for(dsn, signing_keys)
    refused = Process()
    with pytest.raises(ConfigurationError):
        await assemble(refused, CheckpointSettings(**wanted), PeopleNotifier)
    await refused.close()
    allowed = Process()
    await assemble(allowed, CheckpointSettings(**wanted, allow_unsafe_postgres=True), PeopleNotifier)
    await allowed.close()


def settings_for(dsn: Any, keys: Any) -> Any:
    return {
        "listen": Address("127.0.0.1:0"),
        "postgres_dsn": Secret(dsn),
        "verifying_keys_file": keys / "verifying.json",
        "webhook": WebhookSettings(),
        "smtp": SmtpSettings(),
        "common": CommonSettings(),
    }


async def test_an_old_schema_is_refused_unless_it_may_be_migrated(
    fresh_database: FreshDatabase, signing_keys: Path
) -> None:
    wanted = settings_for(await fresh_database(), signing_keys)
    refused = Process()
    with pytest.raises(ConfigurationError):
        await assemble(refused, CheckpointSettings(**wanted), PeopleNotifier)
    await refused.close()
    allowed = Process()
    await assemble(allowed, CheckpointSettings(**wanted, migrate="auto"), PeopleNotifier)
    await allowed.close()
