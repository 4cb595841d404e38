"""The spool of a client: what it keeps while the gateway is away becomes one task each, and nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure import Client, InvalidRequest, LimitReached, Spool, SpooledSubmit, SyncSpool, Unavailable
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.fix_proxy import Lost, MakeProxy, TcpProxy
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server

AWAY = "127.0.0.1:1"


@pytest.fixture
async def ledger(checkpoint: MakeCheckpoint) -> Checkpoint:
    return await checkpoint()


@pytest.fixture
async def path_to_gateway(ledger: Checkpoint, gateway: Serve, tcp_proxy: MakeProxy) -> TcpProxy:
    stub = await gateway(ledger.address)
    host, _, port = stub.process.address.rpartition(":")
    return await tcp_proxy(host, int(port))


async def until_empty(spool: Spool) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await spool.kept():
            await asyncio.sleep(0.02)


async def submitted(ledger: Checkpoint) -> int:
    ((count,),) = await ledger.query("select count(*) from ledger.tasks")
    return int(count)


async def test_kept_submits_become_one_task_each(ledger: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path) -> None:
    """One of them had arrived, and only its answer was lost."""
    async with Client(path_to_gateway.address) as client, Spool(client, tmp_path / "spool", wait_seconds=1.0) as spool:
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
    assert await submitted(ledger) == 4


async def test_next_process_sends_what_a_killed_one_kept(
    ledger: Checkpoint, path_to_gateway: TcpProxy, tmp_path: Path
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
    async with Client(path_to_gateway.address) as client, Spool(client, tmp_path / "spool") as spool:
        await until_empty(spool)
    assert await submitted(ledger) == 1


async def test_refused_submit_is_named_and_stays(path_to_gateway: TcpProxy, tmp_path: Path) -> None:
    async with Client(path_to_gateway.address) as client:
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
