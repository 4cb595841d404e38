"""The embedded Postgres of the development stack: a real server, durable, on loopback only, started and stopped by us.

with PostgresProcess(data_directory) as postgres:
    psycopg.connect(postgres.dsn())
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import quote

from devstack.postgres_cluster import (
    CHILD_ENVIRONMENT,
    SUPERUSER,
    EmbeddedPostgresError,
    PostgresCluster,
    PostgresStartFailed,
    find_postgres_binaries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from devstack.postgres_cluster import PostgresAccount


# One run of the server program: launched, watched until it answers, ended.

HOST = "127.0.0.1"
POLL_SECONDS = 0.02
PROBE_TIMEOUT_SECONDS = 10.0
IMMEDIATE_STOP_SECONDS = 5.0
LOG_TAIL_BYTES = 4000
LOG_KEPT_BYTES = 32 * 1024 * 1024
SOCKET_PREFIX = "tenure-pg-"
# unix(7) allows 108 bytes for a socket's path, and $TMPDIR of macOS is half of that.
SOCKET_ROOT = "/tmp"  # noqa: S108  the directory below it is made by mkdtemp, private and unpredictable


class PostgresServer:
    """A server that was launched as our child. It may have ended since."""

    def __init__(self, cluster: PostgresCluster, account: PostgresAccount, settings: Mapping[str, str]) -> None:
        """Launch it over an initialized cluster; `settings` holds at least its port."""
        self._cluster = cluster
        self._account = account
        self._port = settings["port"]
        command = [cluster.binaries.path("postgres"), "-D", str(cluster.directory)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _open_log(cluster.log_path, account) as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                account.command(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # the caller's directory may be closed to the account
                env=CHILD_ENVIRONMENT,
                start_new_session=True,  # the terminal's Ctrl-C is for us: services drain before their database goes
                **account.popen_options,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until_ready(self, deadline: float) -> bool:
        """True once it accepts connections, False when it ended. Raises PostgresStartFailed at the deadline."""
        while not self.has_ended():
            postmaster = self._cluster.read_postmaster_file()
            if postmaster is not None and postmaster.pid == self.pid and postmaster.ready:
                return True
            if time.monotonic() > deadline:
                raise PostgresStartFailed("PostgreSQL was not ready in time", self.log_tail())
            time.sleep(POLL_SECONDS)
        return False

    def probe(self, deadline: float) -> None:
        """One query over TCP with the password: what every client will do. Raises PostgresStartFailed."""
        command = [self._cluster.binaries.path("psql"), "-XAt", "-h", HOST, "-p", self._port, "-U", SUPERUSER]
        try:
            done = subprocess.run(
                self._account.command([*command, "-d", "postgres", "-c", "select 1"]),
                capture_output=True,
                text=True,
                check=False,
                timeout=max(1.0, min(PROBE_TIMEOUT_SECONDS, deadline - time.monotonic())),
                cwd="/",
                env={**CHILD_ENVIRONMENT, "PGPASSWORD": self._cluster.password()},
                **self._account.popen_options,
            )
        except subprocess.TimeoutExpired as error:
            raise PostgresStartFailed("PostgreSQL started but does not answer a query", self.log_tail()) from error
        if done.stdout.strip() != "1":
            raise PostgresStartFailed("PostgreSQL started but refuses a query", done.stderr.strip())

    def log_tail(self) -> str:
        """The last lines of this run."""
        with self._cluster.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip()

    def end(self, timeout_seconds: float) -> None:
        end_server(self.pid, self.has_ended, timeout_seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def end_server(pid: int, has_ended: Callable[[], bool], timeout_seconds: float) -> None:
    """Fast shutdown (sessions are ended, everything is written), then immediate, then SIGKILL. Returns when it is over.

    Raises EmbeddedPostgresError for a process that outlives all three (one stuck in the kernel).
    """
    patience = {signal.SIGINT: timeout_seconds, signal.SIGQUIT: IMMEDIATE_STOP_SECONDS, signal.SIGKILL: 5.0}
    for signal_number, seconds in patience.items():
        if has_ended():
            return
        os.kill(pid, signal_number)
        deadline = time.monotonic() + seconds
        while not has_ended():
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    if not has_ended():
        raise EmbeddedPostgresError(f"The PostgreSQL server with pid {pid} does not end")


def free_port() -> int:
    """A port that was free a moment ago: whoever binds it later has to expect that it is taken."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def make_socket_directory(account: PostgresAccount) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=SOCKET_ROOT))
    account.own(directory)
    return directory


def remove_socket_directory(directory: Path | None) -> None:
    """Remove what `make_socket_directory` made, in whatever run; any other directory is left alone."""
    if directory is not None and directory.parent == Path(SOCKET_ROOT) and directory.name.startswith(SOCKET_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)


def _open_log(path: Path, account: PostgresAccount) -> BinaryIO:
    if path.exists() and path.stat().st_size > LOG_KEPT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    log = path.open("ab")
    account.own(path)
    return log


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
