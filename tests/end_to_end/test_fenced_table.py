"""examples/fenced_table: a holder that was frozen, and replaced, writes nothing when it wakes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.fix_coordinator import Fleet
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.faults]
SCRIPT = Path(__file__).parents[2] / "examples" / "fenced_table" / "fenced_table.py"


@asynccontextmanager
async def writer(holder: str, address: str, dsn: str) -> AsyncIterator[Process]:
    arguments = (holder, "--gateway", address, "--dsn", dsn, "--ttl", "2")
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, *arguments, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: Process) -> dict[str, Any]:
    """The next line it prints."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = await process.stdout.readline()
    assert line, "it ended"
    value: dict[str, Any] = json.loads(line)
    return value


def ask(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


async def test_a_write_of_a_frozen_holder_that_arrives_late_is_refused(
    fleet: Fleet, fresh_database: FreshDatabase
) -> None:
    """Coordinators are dialled directly here: LeaseService is the same at the gateway."""
    dsn, coordinator = await fresh_database(), await fleet.coordinator()
    async with AsyncExitStack() as stack:
        anna = await stack.enter_async_context(writer("anna", coordinator.address, dsn))
        first = await read_line(anna)
        assert first["after"] == "FIRST"
        ask(anna, "bolts 40")
        assert (await read_line(anna))["wrote"] == "bolts"

        anna.send_signal(signal.SIGSTOP)
        ask(anna, "bolts 41")  # it is on its way already
        bert = await stack.enter_async_context(writer("bert", coordinator.address, dsn))
        second = await read_line(bert)
        assert (second["after"], second["epoch"] > first["epoch"]) == ("LEASE_EXPIRED", True)
        ask(bert, "bolts 30")
        assert (await read_line(bert))["wrote"] == "bolts"

        anna.send_signal(signal.SIGCONT)
        assert await read_line(anna) == {"holder": "anna", "refused": "bolts", "epoch": first["epoch"]}
    assert await amount_of(dsn, "bolts") == 30


async def amount_of(dsn: str, item: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn) as postgres:
        row = await (await postgres.execute("select amount from stock where item = %s", [item])).fetchone()
    assert row is not None
    value: int = row[0]
    return value
