"""A child process of the stack with its log: start, freeze, kill, drain, restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Protocol

from devstack import watchdog
from devstack.listening import listens

# Errors of the stack.


class StackError(RuntimeError):
    """The stack cannot run, or a part died. The message says why and what to do; a note has the end of the log."""


class ServiceDied(StackError):  # noqa: N818  the name says what happened
    """A process ended before it served, or did not serve in time."""


class FolderBusy(StackError):  # noqa: N818  the name says what happened
    """Another stack runs on the data folder."""


# Freezing a child process, as an overloaded host or a debugger does.


def freeze(pid: int) -> None:
    """Sends SIGSTOP to a child process and returns when all its threads have stopped, or it has ended.

    The signal alone is not enough: on a busy machine a thread may run on for a moment, and answer a request.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    if sys.platform == "linux":
        while any(state not in "TtZX" for state in _thread_states(pid)):
            time.sleep(0.001)
    elif hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _thread_states(pid: int) -> list[str]:
    """Returns the states of all threads of a process, one letter each (proc(5))."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # this thread has ended
            continue
    return states


def open_log(path: Path) -> BinaryIO:
    """Opens a log to append to it. Only its owner may read it: it has the goals and errors of tasks."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


# Reading a child's log: why the process ended, and its warnings.

LONGEST: Final = 300


def last_output(log: str) -> str:
    """Returns the last meaningful line of a log, or "".

    For a JSON line of level WARNING or above it returns the message and the last line of the stack.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        message = _message_of(line)
        if message:
            return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    return ""


def warnings_of(log: str, logger: str) -> list[str]:
    """Returns the warnings of a logger, the oldest first."""
    records = (_record(line) for line in log.splitlines())
    return [
        str(record.get("message", ""))
        for record in records
        if record.get("level") == "WARNING" and record.get("logger") == logger
    ]


def service_state(log: str, logger: str, name: str) -> str:
    """Returns the value of the field `name` in the newest record of a logger that has it, or ""."""
    records = (_record(line) for line in reversed(log.splitlines()))
    return next((str(record[name]) for record in records if record.get("logger") == logger and name in record), "")


def _record(line: str) -> dict[str, Any]:
    """Returns the JSON object of a line, or {}."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _message_of(line: str) -> str:
    record = _record(line)
    if not record:
        return line.removeprefix("- ")
    if record.get("level") not in {"WARNING", "ERROR", "CRITICAL"}:
        return ""
    stack = [part for part in str(record.get("stack", "")).splitlines() if part.strip()]
    return ": ".join(part for part in (str(record.get("message", "")), stack[-1].strip() if stack else "") if part)


READY_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 60.0
LOG_TAIL_BYTES: Final = 4096
_POLL_SECONDS: Final = 0.05


class RunningProgram(Protocol):
    """The part of `subprocess.Popen` that the stack uses."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_process(
    command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> RunningProgram:
    """Starts a program that writes to `log` and ends with this process."""
    return watchdog.launch(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=cwd,
        start_new_session=True,  # Ctrl-C in the terminal is for us: services drain before their stores go
    )


class ChildProcess(ABC):
    """A child process at one address. Only one thread may use it. It ends with the process that started it."""

    launch: Callable[..., RunningProgram] = staticmethod(start_process)

    def __init__(
        self, name: str, command: Sequence[str], address: str, environment: Mapping[str, str], log_path: Path
    ) -> None:
        self.name, self.address, self.log_path = name, address, log_path
        self.command, self.environment = list(command), dict(environment)
        self._process: RunningProgram | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process does not run."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None if the process runs or was never started."""
        return None if self._process is None else self._process.poll()

    async def accepts_connections(self) -> bool:
        """Whether any process accepts connections at the address."""
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    @property
    def listens(self) -> bool:
        """Whether the process itself listens at its address: another stack's may answer there.

        Reads the sockets of the whole machine, so check `accepts_connections` first, which costs little.
        """
        port = int(self.address.rpartition(":")[2])
        return self._process is not None and self.exit_code is None and listens(self._process.pid, port)

    @abstractmethod
    async def serves(self) -> bool:
        """Whether the process serves now."""

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Starts the process without waiting. `extra` is added to its environment for this start only."""
        with open_log(self.log_path) as log:
            self._log_start = log.tell()
            environment = {**self.environment, **(extra or {})}
            self._process = self.launch(self.command, environment=environment, cwd=self.log_path.parent, log=log)

    async def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until the process serves. Raises ServiceDied if it ends or takes longer."""
        ends_at = time.monotonic() + timeout_seconds
        while not (await self.serves() and self.exit_code is None):
            if self.exit_code is not None:
                raise self._death(f"ended with code {self.exit_code} before it served")
            if time.monotonic() > ends_at:
                raise self._death(f"did not serve within {timeout_seconds:g} s")
            await asyncio.sleep(_POLL_SECONDS)

    def freeze(self) -> None:
        """Sends SIGSTOP: the process keeps its connections and does nothing."""
        freeze(self.pid)

    def wake(self) -> None:
        """Sends SIGCONT, after `freeze`."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Sends SIGKILL, as a crash, and returns when the process is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Sends SIGTERM, and returns at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a frozen process does not handle SIGTERM

    async def drain(self, timeout_seconds: float = DRAIN_SECONDS) -> int:
        """Sends SIGTERM and returns the exit code. Kills the process if it takes longer."""
        self.terminate()
        return await self.ended(timeout_seconds)

    async def ended(self, timeout_seconds: float = DRAIN_SECONDS) -> int:
        """Waits for the end of a process that got a signal, and returns the exit code. Kills it at the timeout."""
        if self._process is None:
            return 0
        try:
            await asyncio.to_thread(self._process.wait, timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        return int(self._process.returncode)

    async def restart(self, extra: Mapping[str, str] | None = None) -> None:
        """Restarts the process at the same address and waits until it serves."""
        await self.drain()
        self.start(extra)
        await self.wait_ready()

    def log(self) -> str:
        """Returns the log since the last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """Returns the end of the log since the last start."""
        return self.log()[-LOG_TAIL_BYTES:]

    def _death(self, what: str) -> ServiceDied:
        message = last_output(self.log_tail())
        error = ServiceDied(f"{self.name} {what}{f' ({message})' if message else ''}; its log is {self.log_path}")
        error.add_note(self.log_tail())
        return error
