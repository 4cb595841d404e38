"""One service as a process: started, waited for, frozen, killed, drained, started again at the same address."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.dev import die_with_parent

READY_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 20.0
LOG_TAIL_BYTES: Final = 4096
_POLL_SECONDS: Final = 0.05
_INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")


class ServiceDied(RuntimeError):  # noqa: N818  what happened, as it is told
    """A service ended before it served; the message has the end of its log."""


class ServiceProcess:
    """`name` tells it apart (worker-1), `module` is what runs (services.worker), `address` is where it answers."""

    def __init__(self, name: str, module: str, address: str, environment: Mapping[str, str], log_path: Path) -> None:
        self.name, self.module, self.address, self.log_path = name, module, address, log_path
        self.environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """RuntimeError when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or when it was never started."""
        return None if self._process is None else self._process.poll()

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Starts it without waiting; `extra` is added to its environment this once. It dies with us (Linux)."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                die_with_parent.command([sys.executable, "-m", self.module]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited, **self.environment, **(extra or {})},
                start_new_session=True,
            )

    async def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until its health says SERVING; ServiceDied when it ends or takes longer."""
        ends_at = time.monotonic() + timeout_seconds
        async with grpc.aio.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not await _serving(health):
                if self.exit_code is not None:
                    raise ServiceDied(f"{self.name} ended with code {self.exit_code}:\n{self.log_tail()}")
                if time.monotonic() > ends_at:
                    raise ServiceDied(f"{self.name} did not serve within {timeout_seconds:g} s:\n{self.log_tail()}")
                await asyncio.sleep(_POLL_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, it does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, as a crash; returns when it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    async def drain(self, timeout_seconds: float = DRAIN_SECONDS) -> int:
        """SIGTERM; its exit code. Killed when it takes longer."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a frozen process does not hear the request to end
            try:
                await asyncio.to_thread(self._process.wait, timeout_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self._process.returncode)

    async def restart(self, extra: Mapping[str, str] | None = None) -> None:
        """Starts it again, at the same address, and waits until it serves."""
        await self.drain()
        self.start(extra)
        await self.wait_ready()

    def log(self) -> str:
        """All it has logged since it was last started."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The end of that."""
        return self.log()[-LOG_TAIL_BYTES:]


async def _serving(health: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
