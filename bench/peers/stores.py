"""The stores of the engines: one Postgres for all that use it, the Restate server, Temporal's development server."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench.peers.environment import Environment
from bench.peers.peers import StoreKind
from bench.peers.program import EngineFailedError
from devstack.options import HOST, choose_address
from devstack.postgres_process import PostgresProcess
from devstack.stores import ensure_database

START_SECONDS: Final = 60.0
END_SECONDS: Final = 15.0
SQLITE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05
_WAL: Final = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True, slots=True)
class Store:
    """A store that runs. `where`: its URL or address. `pids`: its processes by name. `written_bytes`: so far.

    `admin_url`: of the Restate server, else empty.
    """

    where: str
    pids: Mapping[str, int]
    written_bytes: Callable[[], int]
    admin_url: str = ""


@dataclass(frozen=True, slots=True)
class Stores:
    """Opens stores. `postgres` serves all engines that use Postgres, each in a new database."""

    postgres: PostgresProcess
    environment: Environment

    @asynccontextmanager
    async def open(self, kind: StoreKind, folder: Path) -> AsyncIterator[Store]:
        """Yields an empty store. Raises EngineFailedError if its server does not start."""
        if kind is StoreKind.POSTGRES:
            yield await self.database(folder.name)
            return
        data = folder / "store"
        data.mkdir()
        server = _restate if kind is StoreKind.RESTATE else temporal_server
        async with server(self.environment, data) as store:
            yield store

    async def database(self, name: str) -> Store:
        """Returns a new database of the Postgres. Its bytes are those of the write-ahead log."""
        await ensure_database(self.postgres.dsn(), name)
        assert self.postgres.pid is not None, "it runs"
        return Store(self.postgres.dsn(name), {"Postgres": self.postgres.pid}, lambda: wal_bytes(self.postgres))


def wal_bytes(postgres: PostgresProcess) -> int:
    """Returns the bytes of the write-ahead log since the server was created."""
    with psycopg.connect(postgres.dsn()) as connection:
        row = connection.execute(_WAL).fetchone()
    assert row is not None, "the statement returns one row"
    return int(row[0])


def folder_bytes(folder: Path) -> int:
    """Returns the sizes of all files below a folder. Files may vanish meanwhile."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size  # noqa: PTH116, PTH118
            except FileNotFoundError:
                continue
    return total


def free_ports(count: int) -> list[int]:
    """Returns ports without a listener, below those of outgoing connections."""
    addresses: list[str] = []
    for _ in range(count):
        addresses.append(choose_address("peer", usual=False, avoid=addresses))
    return [int(address.rpartition(":")[2]) for address in addresses]


def sqlite_bytes(database: Path) -> int:
    """Returns the size of a SQLite database after its log, whose file does not grow, was written into it."""
    with closing(sqlite3.connect(database, timeout=SQLITE_SECONDS)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return database.stat().st_size


@asynccontextmanager
async def _restate(environment: Environment, folder: Path) -> AsyncIterator[Store]:
    ingress, admin, node = (f"{HOST}:{port}" for port in free_ports(3))
    variables = {
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_BIND_ADDRESS": node,
        "RESTATE_ADVERTISED_ADDRESS": f"http://{node}/",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "warn",
    }
    command = [str(environment.restate_server), "--base-dir", str(folder), "--node-name", "bench"]
    async with _server("Restate server", command, folder, variables) as process:
        await _until("Restate server", process, folder, lambda: _is_healthy(f"http://{admin}/health"))
        pids = {"restate-server": process.pid}
        yield Store(f"http://{ingress}", pids, lambda: folder_bytes(folder), f"http://{admin}")


@asynccontextmanager
async def temporal_server(environment: Environment, folder: Path) -> AsyncIterator[Store]:
    """Yields Temporal's development server, whose data is in the folder. Raises EngineFailedError."""
    (port,) = free_ports(1)
    command = [str(environment.temporal), "server", "start-dev", "--headless", "--ip", HOST, "--port", str(port)]
    command += ["--db-filename", str(folder / "temporal.db"), "--log-level", "error"]
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2"]
    async with _server("Temporal server", command, folder, {}) as process:
        await _until("Temporal server", process, folder, lambda: accepts(port))
        pids = {"temporal-server": process.pid}
        yield Store(f"{HOST}:{port}", pids, lambda: sqlite_bytes(folder / "temporal.db"))


@asynccontextmanager
async def _server(
    name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> AsyncIterator[Process]:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), **variables}
    with (folder.parent / "server.log").open("wb") as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        except OSError as error:
            raise EngineFailedError(f"The {name} does not start: {error}") from error
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until(name: str, process: Process, folder: Path, is_ready: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.returncode is None:
                if await asyncio.to_thread(is_ready):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        reason = f"within {START_SECONDS:g} s"
    else:
        reason = f"and ended with {process.returncode}"
    log = (folder.parent / "server.log").read_text(errors="replace")[-2000:]
    raise EngineFailedError(f"The {name} does not serve {reason}.\n{log}")


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def accepts(port: int) -> bool:
    """Returns whether something listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
