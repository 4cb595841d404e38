"""A process of the stack, and its log: started, frozen, killed, drained, started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tenure.dev import die_with_parent
from tenure.dev.freezing import freeze
from tenure.dev.stack.errors import ServiceDied
from tenure.dev.stack.last_words import last_words

READY_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 60.0
LOG_TAIL_BYTES: Final = 4096
_POLL_SECONDS: Final = 0.05


class ChildProcess(ABC):
    """One program at one address. Not for use by two threads; on Linux it dies with the process that started it."""

    def __init__(
        self, name: str, command: Sequence[str], address: str, environment: Mapping[str, str], log_path: Path
    ) -> None:
        self.name, self.address, self.log_path = name, address, log_path
        self.command, self.environment = list(command), dict(environment)
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

    @abstractmethod
    async def serves(self) -> bool:
        """Whether it does its work now."""

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Starts it without waiting; `extra` is added to its environment this once."""
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                die_with_parent.command(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(extra or {})},
                cwd=self.log_path.parent,
                start_new_session=True,  # Ctrl-C in the terminal is for us: services drain before their stores go
            )

    async def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until it serves; ServiceDied when it ends or takes longer."""
        ends_at = time.monotonic() + timeout_seconds
        while not (await self.serves() and self.exit_code is None):
            if self.exit_code is not None:
                raise self._death(f"ended with code {self.exit_code} before it served")
            if time.monotonic() > ends_at:
                raise self._death(f"did not serve within {timeout_seconds:g} s")
            await asyncio.sleep(_POLL_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, it does nothing."""
        freeze(self.pid)

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

    def _death(self, what: str) -> ServiceDied:
        words = last_words(self.log_tail())
        error = ServiceDied(f"{self.name} {what}{f' ({words})' if words else ''}; its log is {self.log_path}")
        error.add_note(self.log_tail())
        return error
