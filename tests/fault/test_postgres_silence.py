"""A client of Postgres that falls silent in the middle of a transaction, and the locks that it holds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.fix_network import Network, reason_for_proxies
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

REPOSITORY: Final = Path(__file__).parents[2]
HOLD_A_LOCK: Final = """
import asyncio, sys
from tenure.runtime.store.dedicated_connection import DedicatedConnection

async def main():
    async with DedicatedConnection(sys.argv[1], service="test").transaction() as postgres:
        cursor = await postgres.execute(b"select n from t for update")
        await cursor.fetchone()
        print("locked", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
"""Postgres has carried out the statement and waits for the rest of the transaction."""


async def test_a_silent_client_keeps_no_lock(network: Network, fresh_database: FreshDatabase) -> None:
    if reason := reason_for_proxies():
        pytest.skip(f"a proxy loses no packets: {reason}")
    dsn = await fresh_database()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("create table t as select 1 as n")
        host = network.host()
        server = urlsplit(dsn).netloc.rpartition("@")[2]
        line = await host.reach("postgres", server)
        command = host.command([sys.executable, "-c", HOLD_A_LOCK, dsn.replace(server, line)])
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True) as holder:
            try:
                assert holder.stdout is not None
                assert await asyncio.to_thread(holder.stdout.readline) == b"locked\n"
                host.cut("postgres")
                await postgres.execute(f"set lock_timeout to '{PATIENCE_SECONDS:g}s'")
                await postgres.execute("select n from t for update")  # fails after the time that the lock may take
                assert holder.poll() is None, "the client still waits for Postgres"
            finally:
                os.killpg(holder.pid, signal.SIGKILL)
