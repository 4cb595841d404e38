"""One process of an embedded etcd: started, waited for, paused, killed, stopped, started again over its data.

How one is found is in etcd_binary.py; the functions most callers want are in etcd_start.py.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.dev import die_with_parent
from tenure.dev.etcd_binary import environment, etcd_version
from tenure.dev.freezing import freeze

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOST = "127.0.0.1"
READY_SECONDS = 120.0
"""For a machine that is busy with all else that starts; an etcd that cannot start ends, and is not waited for."""
_POLL_SECONDS = 0.02
_LOG_TAIL_BYTES = 4_096
# Without compaction a store that is left running for weeks reaches its quota and refuses writes. Watches need
# seconds of history; an hour of it is gigabytes under load.
_ARGUMENTS = ("--auto-compaction-mode=periodic", "--auto-compaction-retention=5m", "--log-level=warn")


class EtcdStartError(RuntimeError):
    """etcd did not come up; the message ends with the tail of its log."""


class PortTakenError(EtcdStartError):
    """Somebody else has one of its ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdMember:
    """One member's place. `initial_cluster` is `name=peer URL` of all members, comma separated."""

    name: str
    data_dir: Path
    client_port: int
    peer_port: int
    initial_cluster: str


class EtcdProcess:
    """One member and its process. May be started again after it was stopped or killed, and then finds its data."""

    def __init__(self, member: EtcdMember, binary: Path, arguments: Sequence[str] = ()) -> None:
        self.member = member
        self.log_path = member.data_dir / "etcd.log"
        self._binary = binary
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.member.client_port}"

    @property
    def pid(self) -> int:
        """The process's id. Raises RuntimeError when it is not running."""
        return self._running().pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or when it was never started."""
        return None if self._process is None else self._process.poll()

    @property
    def version(self) -> str:
        """The release of the binary, such as `3.5.1`."""
        return etcd_version(self._binary)

    def start(self) -> None:
        """Start the process without waiting for it. On Linux it dies with this one, if this is the main thread."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError(f"etcd {self.member.name} is running already")
        self.member.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                die_with_parent.command(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                # A group of its own: Ctrl-C in the terminal is ours to handle, in order.
                start_new_session=True,
            )

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until it has a leader and answers reads. Raises EtcdStartError when it ends or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while not self._answers():
            if (code := self._running().poll()) is not None:
                raise self._failure(f"ended with {code}")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready in {timeout_seconds} s")
            time.sleep(_POLL_SECONDS)

    def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, and SIGKILL after the grace. Does nothing when it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        self.resume()  # a paused process does not hear the request to end
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        process = self._running()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process keeps its connections and answers nothing."""
        freeze(self._running().pid)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last few kilobytes it has logged since it was started last."""
        with self.log_path.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _failure(self, what: str) -> EtcdStartError:
        tail = self.log_tail()
        kind = PortTakenError if "address already in use" in tail else EtcdStartError
        return kind(f"etcd {self.member.name} {what}:\n{tail}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"etcd {self.member.name} was not started")
        return self._process

    @property
    def _store_argument(self) -> str:
        return f"--data-dir={self.member.data_dir.resolve() / 'store'}"

    def _command(self) -> list[str]:
        client_url, peer_url = f"http://{self.endpoint}", f"http://{HOST}:{self.member.peer_port}"
        return [
            str(self._binary),
            f"--name={self.member.name}",
            self._store_argument,
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self.member.initial_cluster}",
            *_ARGUMENTS,
            *self._arguments,
        ]

    def _answers(self) -> bool:
        # Whose answer is it? Where our port was taken by another etcd, that one answers while ours is failing.
        if self._store_argument.encode() not in self._fetch("/debug/vars"):
            return False
        # etcd says it is healthy only after a linearizable read went through.
        return b'"true"' in self._fetch("/health")

    def _fetch(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.member.client_port, timeout=5.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()
