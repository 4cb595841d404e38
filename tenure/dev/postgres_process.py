"""The embedded Postgres of the development stack: a real server, durable, on loopback only, started and stopped by us.

with PostgresProcess(data_directory) as postgres:
    psycopg.connect(postgres.dsn())
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from tenure.dev.postgres_binaries import find_postgres_binaries
from tenure.dev.postgres_cluster import SUPERUSER, PostgresCluster
from tenure.dev.postgres_errors import EmbeddedPostgresError, PostgresStartFailed
from tenure.dev.postgres_server import (
    HOST,
    POLL_SECONDS,
    PostgresServer,
    end_server,
    free_port,
    make_socket_directory,
    remove_socket_directory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from tenure.dev.postgres_account import PostgresAccount

# A killed server's children hold its shared memory for a moment after it.
TRY_AGAIN_SIGN = "pre-existing shared memory block"
PORT_TAKEN_SIGN = "could not create any TCP/IP sockets"

# The promise of a commit is only as good as the first two; the sizes are those the performance was measured with.
SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "200",
    "listen_addresses": HOST,
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresProcess:
    """One Postgres over one data directory. May be started, stopped and killed many times; keeps its port.

    Not for use by two threads at once. Every wait is bounded by `start_timeout_seconds` or `stop_timeout_seconds`.
    """

    def __init__(
        self,
        data_directory: Path,
        *,
        port: int | None = None,
        binaries_directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 120.0,
        stop_timeout_seconds: float = 15.0,
    ) -> None:
        """Looks for the binaries at once: raises PostgresMissing. Without `port` the first start takes a free one."""
        self.cluster = PostgresCluster(data_directory, find_postgres_binaries(binaries_directory))
        self._port = port
        self._port_is_given = port is not None
        self._settings = {**SETTINGS, **(settings or {})}
        self._start_timeout_seconds = start_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._server: PostgresServer | None = None
        self._socket_directory: Path | None = None

    @property
    def version(self) -> str:
        """The server's, such as `18.6`."""
        return self.cluster.binaries.version

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedPostgresError("The server has not been started yet: it has no port")
        return self._port

    @property
    def pid(self) -> int | None:
        """None unless the server runs as our child."""
        return None if self._server is None or self._server.has_ended() else self._server.pid

    def dsn(self, database: str = "postgres") -> str:
        """A URI of the server over TCP, password included, as a superuser. The same after a restart."""
        password = quote(self.cluster.password(), safe="")
        return f"postgresql://{SUPERUSER}:{password}@{HOST}:{self.port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Return once the server answers a query. The first start makes the cluster; a later one recovers it.

        A server that an earlier process of ours left behind on this data is stopped first.
        Raises DataDirectoryRefused, PostgresMissing or PostgresStartFailed; nothing is left running then.
        """
        if self.pid is not None:
            return self
        deadline = time.monotonic() + self._start_timeout_seconds
        self._release()
        self.cluster.lock()
        try:
            account = self.cluster.account()
            self._socket_directory = make_socket_directory(account)
            self.cluster.ensure_initialized(account, self._socket_directory)
            self._end_leftover()
            self._launch_until_ready(account, deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Fast shutdown, immediate when that takes longer than `stop_timeout_seconds`. May be repeated."""
        try:
            if self._server is not None:
                self._server.end(self._stop_timeout_seconds)
        finally:
            self._release()

    def kill(self) -> None:
        """SIGKILL to the server, as a crash would end it. `start` then recovers from the write-ahead log."""
        if self._server is not None:
            self._server.kill()
        self._release()

    async def start_async(self) -> Self:
        """`start` without blocking the loop. Cancelled, it waits for the start to end and stops what it started."""
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            await asyncio.to_thread(self.stop)
            raise

    async def stop_async(self) -> None:
        """`stop` without blocking the loop. Cancelled, it still goes on to its end."""
        stopping = asyncio.ensure_future(asyncio.to_thread(self.stop))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await asyncio.wait([stopping])
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self.start_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop_async()

    def _end_leftover(self) -> None:
        """The lock is ours, so a server on this data is an orphan: its parent was killed. Its sockets are left too."""
        leftover = self.cluster.read_postmaster_file()
        pid = self.cluster.running_pid()
        if pid is not None:
            end_server(pid, lambda: self.cluster.running_pid() is None, self._stop_timeout_seconds)
        self.cluster.forget_dead_server()
        remove_socket_directory(leftover.socket_directory if leftover is not None else None)

    def _launch_until_ready(self, account: PostgresAccount, deadline: float) -> None:
        while True:
            if self._port is None:
                self._port = free_port()
            run = {"port": str(self._port), "unix_socket_directories": str(self._socket_directory)}
            self._server = PostgresServer(self.cluster, account, {**self._settings, **run})
            if self._server.wait_until_ready(deadline):
                return self._server.probe(deadline)
            self._consider_another_try(self._server.log_tail(), deadline)

    def _consider_another_try(self, log_tail: str, deadline: float) -> None:
        """Return when launching again may help: another port, or the same after a moment. Else raise."""
        if time.monotonic() > deadline:
            raise PostgresStartFailed(f"PostgreSQL did not start within {self._start_timeout_seconds} s", log_tail)
        if PORT_TAKEN_SIGN in log_tail and not self._port_is_given:
            self._port = None
        elif TRY_AGAIN_SIGN not in log_tail:
            raise PostgresStartFailed(f"PostgreSQL did not start on {self.cluster.directory}", log_tail)
        time.sleep(POLL_SECONDS)

    def _release(self) -> None:
        self._server = None
        remove_socket_directory(self._socket_directory)
        self._socket_directory = None
        self.cluster.unlock()
