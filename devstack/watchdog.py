"""Ends the programs and folders that a process started when the process ends, also by SIGKILL, on Linux and macOS.

    process = watchdog.launch(command, …)      # instead of subprocess.Popen
    watchdog.watch_process(pid)                # of a process that was started otherwise
    watchdog.watch_folder(path)                # a folder that must not outlive this process

The guard is a process of its own, one for each process that starts something. It reads a pipe whose other end only
that process has: the end of the pipe is the end of the process. The kernel's parent-death signal cannot replace it:
only Linux has it, a program loses it when it changes its account, as Postgres does, and it removes no folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

COMMAND: Final = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
END_SECONDS: Final = 5.0
"""A process has so long to end after its signal; then comes SIGKILL, and folders are removed again for so long."""
_POLL_SECONDS: Final = 0.01
_READ_BYTES: Final = 65_536


def launch(
    command: Sequence[str], *, end_signal: signal.Signals = signal.SIGKILL, **options: Any
) -> subprocess.Popen[bytes]:
    """Starts a program as `subprocess.Popen` does. If this process ends before it, it gets `end_signal`."""
    process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)
    watch_process(process.pid, end_signal)
    return process


def watch_process(pid: int, end_signal: signal.Signals = signal.SIGKILL) -> None:
    """The process gets this signal if this process ends before it."""
    _send_to_guard(f"process {pid} {end_signal:d}")


def watch_folder(folder: Path) -> None:
    """Removes the folder when this process ends, after the processes, if it still exists."""
    _send_to_guard(f"folder {folder.absolute()}")


class _Guard:
    """The guard of this process. A fork of this process gets another one."""

    def __init__(self) -> None:
        self.of_pid = os.getpid()
        reading, self._writing = os.pipe()
        with os.fdopen(reading, "rb") as pipe:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=pipe,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # a signal for this process's group is not for the guard
            )

    def send(self, message: str) -> None:
        os.write(self._writing, os.fsencode(message) + b"\0")

    def close(self) -> None:
        """Returns when everything has ended and is removed."""
        os.close(self._writing)
        self._process.wait()


_lock = threading.Lock()
_guards: list[_Guard] = []


def _send_to_guard(message: str) -> None:
    with _lock:
        if not _guards or _guards[-1].of_pid != os.getpid():
            _guards.append(_Guard())
        _guards[-1].send(message)


@atexit.register
def _close() -> None:
    with _lock:
        if _guards and _guards[-1].of_pid == os.getpid():
            _guards.pop().close()


# The guard's own process, which imports nothing but the standard library.


def _main() -> None:
    processes: dict[int, tuple[str, int]] = {}  # pid → its start: a later process with this pid has another one
    folders: list[str] = []
    rest = b""
    while data := os.read(sys.stdin.fileno(), _READ_BYTES):
        *messages, rest = (rest + data).split(b"\0")
        for kind, _, rest_of_message in (os.fsdecode(message).partition(" ") for message in messages):
            if kind == "folder":
                folders.append(rest_of_message)
            else:
                pid, number = map(int, rest_of_message.split())
                processes[pid] = _start_of(pid), number
    _end(processes)
    for folder in folders:
        _remove(folder)


def _end(processes: dict[int, tuple[str, int]]) -> None:
    alive = {pid: known for pid, known in processes.items() if _runs(pid, known[0])}
    for pid, (_, number) in alive.items():
        _send(pid, number)
        _send(pid, signal.SIGCONT)  # a frozen process handles no other signal than SIGKILL
    ends_at = time.monotonic() + END_SECONDS
    while alive := {pid: known for pid, known in alive.items() if _runs(pid, known[0])}:
        if time.monotonic() > ends_at:
            for pid in alive:
                _send(pid, signal.SIGKILL)
            return
        time.sleep(_POLL_SECONDS)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # ended since, and perhaps its pid is another account's by now
        return


def _runs(pid: int, start: str) -> bool:
    return bool(start) and _start_of(pid) == start


def _start_of(pid: int) -> str:
    """Returns when the process was started, as the system writes it; "" for a process that has ended."""
    if Path("/proc/self/stat").exists():  # Linux
        try:
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if state in "ZX" else fields[18]  # proc(5): the fields after the name; starttime is the 22nd of all
    listed = subprocess.run(
        ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start = listed.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else start


def _remove(folder: str) -> None:
    """Removes a folder, again while a program that is ending still writes to it."""
    ends_at = time.monotonic() + END_SECONDS
    while os.path.lexists(folder) and time.monotonic() < ends_at:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    _main()
