"""The embedded Postgres of the development stack: a real and durable server on the loopback interface.

    with PostgresProcess(data_directory) as postgres:
        psycopg.connect(postgres.dsn())

`PostgresProcess` may be started, stopped and killed many times; `PostgresServer` is one run of the server program.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import quote

from devstack import watchdog
from devstack.child_process import open_log
from devstack.postgres_cluster import (
    CHILD_ENVIRONMENT,
    SUPERUSER,
    EmbeddedPostgresError,
    PostgresAccount,
    PostgresCluster,
    PostgresStartFailed,
    find_postgres_binaries,
)

# One run of the server program.

HOST = "127.0.0.1"
POLL_SECONDS = 0.02
PROBE_TIMEOUT_SECONDS = 10.0
IMMEDIATE_STOP_SECONDS = 5.0
LOG_TAIL_BYTES = 4000
LOG_KEPT_BYTES = 32 * 1024 * 1024
SOCKET_PREFIX = "tenure-pg-"
# unix(7) limits the path of a socket to 108 bytes, and $TMPDIR of macOS takes half of them.
SOCKET_ROOT = "/tmp"  # noqa: S108  mkdtemp creates a private, unpredictable directory in it


class PostgresServer:
    """A server that this process launched. It may have ended since."""

    def __init__(self, cluster: PostgresCluster, account: PostgresAccount, settings: Mapping[str, str]) -> None:
        """Launches the server with an initialized cluster. `settings` has at least `port`."""
        self._cluster = cluster
        self._account = account
        self._port = settings["port"]
        command = [cluster.binaries.path("postgres"), "-D", str(cluster.directory)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _open_log(cluster.log_path, account) as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = watchdog.launch(
                account.command(command),
                end_signal=signal.SIGQUIT,  # an immediate shutdown, which leaves no shared memory behind
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # the account may not be able to enter the caller's directory
                env=CHILD_ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the stack: services drain before the stores stop
                **account.popen_options,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until_ready(self, deadline: float) -> bool:
        """Waits until the server accepts connections. Returns False if it ended. Raises PostgresStartFailed at
        `deadline`.

        `deadline`: monotonic seconds.
        """
        while not self.has_ended():
            postmaster = self._cluster.read_postmaster_file()
            if postmaster is not None and postmaster.pid == self.pid and postmaster.ready:
                return True
            if time.monotonic() > deadline:
                raise PostgresStartFailed("PostgreSQL was not ready in time", self.log_tail())
            time.sleep(POLL_SECONDS)
        return False

    def probe(self, deadline: float) -> None:
        """Makes one query over TCP with the password, as every client does. Raises PostgresStartFailed."""
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
        """Returns the end of this run's log."""
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
    """Ends a server and returns when it has ended.

    It tries a fast shutdown (ends sessions and writes all data), then an immediate one, then SIGKILL.
    Raises EmbeddedPostgresError for a process that survives all three, because it hangs in the kernel.
    """
    timeouts = {signal.SIGINT: timeout_seconds, signal.SIGQUIT: IMMEDIATE_STOP_SECONDS, signal.SIGKILL: 5.0}
    for signal_number, seconds in timeouts.items():
        if has_ended():
            return
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal_number)
        deadline = time.monotonic() + seconds
        while not has_ended():
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    if not has_ended():
        raise EmbeddedPostgresError(f"The PostgreSQL server with pid {pid} does not end")


def free_port() -> int:
    """Returns a port that is free now. Another process may take it before the caller binds it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def make_socket_directory(account: PostgresAccount) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=SOCKET_ROOT))
    watchdog.watch_folder(directory)
    account.own(directory)
    return directory


def remove_socket_directory(directory: Path | None) -> None:
    """Removes a directory that `make_socket_directory` created in any run. Leaves any other directory alone."""
    if directory is not None and directory.parent == Path(SOCKET_ROOT) and directory.name.startswith(SOCKET_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)


def _open_log(path: Path, account: PostgresAccount) -> BinaryIO:
    if path.exists() and path.stat().st_size > LOG_KEPT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    log = open_log(path)
    account.own(path)
    return log


# In the log when children of a killed server still hold its shared memory; a later start succeeds.
TRY_AGAIN_SIGN = "pre-existing shared memory block"
PORT_TAKEN_SIGN = "could not create any TCP/IP sockets"

# The durability of commits depends on the first two. The sizes are those of the performance measurements.
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
    """A Postgres with one data directory. It may be started, stopped and killed many times, and keeps its port.

    Only one thread may use it at a time. `start_timeout_seconds` and `stop_timeout_seconds` bound every wait.
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
        """Finds the binaries; raises PostgresMissing. Without `port`, the first start takes a free port."""
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
        """The server's version, such as `18.6`."""
        return self.cluster.binaries.version

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedPostgresError("The PostgreSQL server has no port before its first start")
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it does not run as a child of this process."""
        return None if self._server is None or self._server.has_ended() else self._server.pid

    def dsn(self, database: str = "postgres") -> str:
        """Returns the TCP URI of a superuser, with the password. It stays the same after a restart."""
        password = quote(self.cluster.password(), safe="")
        return f"postgresql://{SUPERUSER}:{password}@{HOST}:{self.port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Starts the server and returns when it answers a query.

        The first start creates the cluster, and a later one recovers it. A server that an earlier process left running
        on this data is stopped first. Raises DataDirectoryRefused, PostgresMissing or PostgresStartFailed, and then no
        server runs.
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
        """Stops the server: a fast shutdown, then an immediate one after `stop_timeout_seconds`. Repeatable."""
        try:
            if self._server is not None:
                self._server.end(self._stop_timeout_seconds)
        finally:
            self._release()

    def kill(self) -> None:
        """Sends SIGKILL to the server, as a crash. The next `start` recovers from the write-ahead log."""
        if self._server is not None:
            self._server.kill()
        self._release()

    async def start_async(self) -> Self:
        """Runs `start` in a thread. When cancelled, it waits for the end of the start and stops the server."""
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            await asyncio.to_thread(self.stop)
            raise

    async def stop_async(self) -> None:
        """Runs `stop` in a thread. When cancelled, it still completes the stop."""
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
        """Ends a server that an earlier process left running, and removes its sockets.

        This process has the lock, so such a server is an orphan whose parent was killed.
        """
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
            run_settings = {"port": str(self._port), "unix_socket_directories": str(self._socket_directory)}
            self._server = PostgresServer(self.cluster, account, {**self._settings, **run_settings})
            if self._server.wait_until_ready(deadline):
                return self._server.probe(deadline)
            self._raise_unless_retryable(self._server.log_tail(), deadline)

    def _raise_unless_retryable(self, log_tail: str, deadline: float) -> None:
        """Returns if another launch may succeed: with another port, or with the same port later.

        Otherwise raises PostgresStartFailed.
        """
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
