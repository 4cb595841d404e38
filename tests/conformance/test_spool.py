"""The spool of a client: what it keeps while the gateway is away becomes one task each, and nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tenure import (
    AlreadyExists,
    Client,
    InvalidRequest,
    LimitReached,
    Source,
    SourceKind,
    Spool,
    SpooledSubmit,
    SyncSpool,
    Unavailable,
)
from tenure.sdk.spool_file import SpoolFile
from tests.support.fix_checkpoint import Checkpoint
from tests.support.fix_proxy import Lost, TcpProxy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.service_process import ServiceProcess
from tests.support.sweeps import first

pytestmark = pytest.mark.server

AWAY = "127.0.0.1:1"


@pytest_asyncio.fixture(loop_scope="module")
async def path_to_gateway(shared_gateway_process: ServiceProcess) -> AsyncIterator[TcpProxy]:
    host, _, port = shared_gateway_process.address.rpartition(":")
    proxy = TcpProxy(host, int(port))
    await proxy.start()
    yield proxy
    await proxy.stop()


async def until_empty(spool: Spool) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await spool.kept():
            await asyncio.sleep(0.02)


async def until(file: Path, condition: str) -> None:
    """Returns when a row of the file meets the condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not rows(file, f"select 1 from submits where {condition}"):
            await asyncio.sleep(0.02)


def rows(file: Path, statement: str, *values: Any) -> list[Any]:
    with sqlite3.connect(file, timeout=PATIENCE_SECONDS) as spool:
        return spool.execute(statement, values).fetchall()


async def kept_away(file: Path, goal: str, request_id: str, **options: Any) -> None:
    """Keeps a submit while the gateway is away. Nobody sends it until a test begins to."""
    async with Client(AWAY) as away:
        kept = await Spool(away, file, wait_seconds=0.05).submit(goal, request_id=request_id, **options)
    assert kept == SpooledSubmit(request_id)


async def submitted(replica: Checkpoint) -> int:
    ((count,),) = await replica.query("select count(*) from ledger.tasks where tenant = %s", replica.tenant)
    return int(count)


async def test_kept_submits_become_one_task_each(
    replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
) -> None:
    """One of them had arrived, and only its answer was lost."""
    async with (
        Client(path_to_gateway.address, tenant=replica.tenant) as client,
        Spool(client, tmp_path / "spool", wait_seconds=1.0) as spool,
    ):
        sent = await spool.submit("sent at once", request_id="spool-0")
        assert isinstance(sent, str)
        path_to_gateway.deaf(Lost.ANSWERS)
        for number in range(1, 4):
            kept = await spool.submit(f"number {number}", request_id=f"spool-{number}", queue="none")
            assert kept == SpooledSubmit(f"spool-{number}")
        assert [one.request_id for one in await spool.kept()] == ["spool-1", "spool-2", "spool-3"]
        await path_to_gateway.reset()
        path_to_gateway.observe()
        await until_empty(spool)
    assert await submitted(replica) == 4


async def test_next_process_sends_what_a_killed_one_kept(
    replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
) -> None:
    program = (
        "import os, sys\n"
        "from tenure import SyncSpool\n"
        "spool = SyncSpool(sys.argv[1], sys.argv[2], wait_seconds=0.2).__enter__()\n"
        "print(spool.submit('do it', request_id='spool-killed', queue='none'), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "spool"), AWAY]
    killed = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=False)
    assert killed.stdout == "SpooledSubmit(request_id='spool-killed', refusal='')\n", killed.stderr
    async with (
        Client(path_to_gateway.address, tenant=replica.tenant) as client,
        Spool(client, tmp_path / "spool") as spool,
    ):
        await until_empty(spool)
    assert await submitted(replica) == 1


async def test_refused_submit_is_named_and_stays(
    replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
) -> None:
    async with Client(path_to_gateway.address, tenant=replica.tenant) as client:
        async with Spool(client, tmp_path / "spool") as spool:
            with pytest.raises(InvalidRequest):
                await spool.submit("do it", queue="No Such Name")
            assert await spool.kept() == []
        async with Client(AWAY) as away:
            first = Spool(away, tmp_path / "spool", wait_seconds=0.2)
            await first.submit("do it", request_id="bad", queue="No Such Name")
        async with Spool(client, tmp_path / "spool") as spool, asyncio.timeout(PATIENCE_SECONDS):
            while not (kept := await spool.kept())[0].refusal:
                await asyncio.sleep(0.02)
            assert "queue" in kept[0].refusal
            await spool.forget("bad")
            assert await spool.kept() == []


@pytest.mark.parametrize("bounds", [{"max_submits": 2}, {"max_bytes": 30}])
async def test_full_spool_refuses(tmp_path: Path, bounds: Any) -> None:
    async with Client(AWAY) as client:
        spool = Spool(client, tmp_path / "spool", wait_seconds=0.05, **bounds)
        for number in range(2):
            await spool.submit("do it", request_id=str(number))
        with pytest.raises(LimitReached, match="is full") as refused:
            await spool.submit("do it", request_id="third")
        assert refused.value.reason == "SPOOL_FULL"
        await spool.forget("0")
        await spool.submit("do it", request_id="third")


async def test_unusable_file_is_an_error(tmp_path: Path) -> None:
    async with Client(AWAY) as client:
        with pytest.raises(Unavailable, match="cannot be used"):
            Spool(client, tmp_path / "missing" / "spool")
        (tmp_path / "text").write_text("no database " * 100)
        with pytest.raises(Unavailable, match="cannot be used"):
            Spool(client, tmp_path / "text")


async def test_spool_is_on_disk_before_submit_returns(tmp_path: Path) -> None:
    async with Client(AWAY) as client:
        await Spool(client, tmp_path / "spool", wait_seconds=0.05).submit("do it", request_id="kept")
    with sqlite3.connect(tmp_path / "spool") as spool:
        assert spool.execute("pragma journal_mode").fetchone() == ("wal",)
        assert spool.execute("select request_id from submits").fetchall() == [("kept",)]


def test_synchronous_spool_keeps_and_lists(tmp_path: Path) -> None:
    with SyncSpool(tmp_path / "spool", AWAY, wait_seconds=0.05) as spool:
        assert spool.submit("do it", request_id="a") == SpooledSubmit("a")
        assert spool.submit_function("month_end", {"month": 1}, request_id="b") == SpooledSubmit("b")
        assert [one.request_id for one in spool.kept()] == ["a", "b"]
        spool.forget("a")
        assert [one.request_id for one in spool.kept()] == ["b"]


class Key:
    """The key of a client, which cannot be read until `is_there`."""

    def __init__(self, error: Exception) -> None:
        self._error, self.is_there = error, False

    def __call__(self) -> str:
        if not self.is_there:
            raise self._error
        return "tnr_key"


UNREADABLE = [
    FileNotFoundError(2, "No such file", "key"),
    UnicodeDecodeError("ascii", b"\xff", 0, 1, "not ASCII"),
    RuntimeError("the vault is sealed"),
]


class TestSender:
    """The sender ends with its spool only, whatever fails."""

    @pytest.mark.parametrize("error", first(UNREADABLE), ids=lambda error: type(error).__name__)
    async def test_key_that_cannot_be_read_is_a_gateway_that_is_away(
        self, replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path, error: Exception
    ) -> None:
        key, file = Key(error), tmp_path / "spool"
        client = Client(path_to_gateway.address, api_key=key, tenant=replica.tenant)
        async with client, Spool(client, file, wait_seconds=0.05) as spool:
            assert await spool.submit("do it", request_id="a", queue="none") == SpooledSubmit("a")
            await until(file, "attempts > 0")
            key.is_there = True
            await until_empty(spool)
        assert await submitted(replica) == 1

    async def test_unreadable_submit_is_refused_and_others_are_sent(
        self, replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
    ) -> None:
        file = tmp_path / "spool"
        await kept_away(file, "do it", "good", queue="none")
        for request_id, request in (("bytes", b"\xff\xff"), ("text", "not bytes")):
            rows(file, "insert into submits (request_id, request, kept_at) values (?, ?, 0)", request_id, request)
        async with Client(path_to_gateway.address, tenant=replica.tenant) as client, Spool(client, file) as spool:
            await until(file, "refusal <> '' and not exists (select 1 from submits where refusal = '')")
            kept = await spool.kept()
        assert {one.request_id: "damaged" in one.refusal for one in kept} == {"bytes": True, "text": True}
        assert await submitted(replica) == 1

    async def test_sender_outlives_any_error(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Here of a client that somebody closed."""
        file = tmp_path / "spool"
        await kept_away(file, "do it", "a")
        async with Client(AWAY) as client, Spool(client, file):
            await client.close()
            await until(file, "attempts > 1")
        assert "the client is closed" in caplog.text

    def test_synchronous_spool_closes_after_such_errors(self, tmp_path: Path) -> None:
        key = Key(RuntimeError("the vault is sealed"))
        with SyncSpool(tmp_path / "spool", AWAY, api_key=key, wait_seconds=0.05) as spool:
            assert spool.submit("do it", request_id="a") == SpooledSubmit("a")
            asyncio.run(until(tmp_path / "spool", "attempts > 0"))

    async def test_kept_submit_waits_for_its_busy_source(
        self, replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
    ) -> None:
        file, talk = tmp_path / "spool", Source(SourceKind.CONVERSATION, "c-1", exclusive=True)
        await kept_away(file, "second", "second", source=talk, queue="none")
        async with Client(path_to_gateway.address, tenant=replica.tenant) as client:
            first = await client.submit("first", source=talk, queue="none")
            async with Spool(client, file) as spool:
                with pytest.raises(AlreadyExists, match="has not ended"):
                    await spool.submit("third", source=talk, queue="none")
                await until(file, "attempts > 0 or refusal <> ''")
                assert await spool.kept() == [SpooledSubmit("second")]
                await replica.cancel(first.id)
                await until_empty(spool)
        assert await submitted(replica) == 2

    async def test_pause_of_a_clock_that_was_ahead_is_over(
        self, replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
    ) -> None:
        file = tmp_path / "spool"
        await kept_away(file, "do it", "a", queue="none")
        rows(file, "update submits set next_attempt_at = ?", time.time() + 1e8)
        async with Client(path_to_gateway.address, tenant=replica.tenant) as client, Spool(client, file) as spool:
            await until_empty(spool)
        assert await submitted(replica) == 1


class TestRepeat:
    """What a submit with the request id of a kept one means."""

    async def test_repeat_changes_nothing_also_when_the_spool_is_full(self, tmp_path: Path) -> None:
        labels = {f"label-{number}": "x" for number in range(20)}
        async with Client(AWAY) as client:
            spool = Spool(client, tmp_path / "spool", wait_seconds=0.05, max_submits=1)
            for order in (labels, dict(reversed(labels.items()))):
                assert await spool.submit("do it", request_id="a", labels=order) == SpooledSubmit("a")
        assert rows(tmp_path / "spool", "select count(*) from submits") == [(1,)]

    async def test_request_id_of_another_kept_submit_is_refused(self, tmp_path: Path) -> None:
        await kept_away(tmp_path / "spool", "do it", "a")
        async with Client(AWAY) as client:
            with pytest.raises(AlreadyExists, match="request id a") as refused:
                await Spool(client, tmp_path / "spool", wait_seconds=0.05).submit("do else", request_id="a")
        assert refused.value.reason == "REQUEST_ID_REUSED"

    @pytest.mark.parametrize("goal", first(["corrected", "refused"]))
    async def test_refused_submit_is_replaced_and_sent(
        self, replica: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path, goal: str
    ) -> None:
        """Also the same one, whose cause may be gone."""
        file = tmp_path / "spool"
        await kept_away(file, "refused", "a", queue="none")
        rows(file, "update submits set refusal = 'no such agent', attempts = 7, next_attempt_at = ?", time.time() + 60)
        async with Client(AWAY) as client:
            spool = Spool(client, file, wait_seconds=0.05, max_submits=1)
            assert await spool.submit(goal, request_id="a", queue="none") == SpooledSubmit("a")
            assert await spool.kept() == [SpooledSubmit("a")]
        async with Client(path_to_gateway.address, tenant=replica.tenant) as client, Spool(client, file) as spool:
            await until_empty(spool)
            [task] = [task async for task in client.tasks()]
            assert task.info.goal == goal

    async def test_verdict_on_an_earlier_request_is_not_of_its_successor(self, tmp_path: Path) -> None:
        """As of a process that sent the refused one, and was slow to write it."""
        file = SpoolFile(tmp_path / "spool")
        await kept_away(tmp_path / "spool", "refused", "a")
        [sent] = file.due(1)
        file.refuse(sent, "no such agent")
        await kept_away(tmp_path / "spool", "corrected", "a")
        verdicts: list[Callable[[], None]] = [
            lambda: file.refuse(sent, "no such agent"),
            lambda: file.put_off(sent, 60.0),
            lambda: file.sent(sent),
        ]
        for verdict in verdicts:
            verdict()
            [kept] = file.due(1)
            assert (kept.request_id, kept.attempts) == ("a", 0)
            assert kept.request != sent.request


def test_file_of_a_spool_is_of_its_owner_only(tmp_path: Path) -> None:
    """It has goals and inputs."""
    file = SpoolFile(tmp_path / "spool")
    reader = sqlite3.connect(tmp_path / "spool")
    reader.execute("select * from submits")
    assert file.listed() == []
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    reader.close()
    assert modes == dict.fromkeys(("spool", "spool-wal", "spool-shm"), 0o600)
