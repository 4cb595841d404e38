"""One run of the server program: launched, watched until it answers, ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tenure.dev.postgres_binaries import CHILD_ENVIRONMENT
from tenure.dev.postgres_cluster import SUPERUSER, PostgresCluster
from tenure.dev.postgres_errors import EmbeddedPostgresError, PostgresStartFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tenure.dev.postgres_account import PostgresAccount

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
