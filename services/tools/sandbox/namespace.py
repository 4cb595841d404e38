"""The pid namespace of a run, seen from outside: what bubblewrap reports about it, and its pid 1."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress

_STATUS_BYTES = 16 << 10


class StatusReport:
    """What bubblewrap reports: the pid of the namespace's pid 1 when it is made, the program's exit code at the end.

    `started` is set with the pid, or when bubblewrap ended without one.
    """

    def __init__(self, fd: int, found_init: Callable[[int], None]) -> None:
        self.started = asyncio.Event()
        self.init_pid: int | None = None
        self.exit_code: int | None = None
        self.mount_namespace: int | None = None
        self._fd = fd
        self._found_init = found_init
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self.read)

    def read(self) -> None:
        """Take in what has been reported by now."""
        try:
            portion = os.read(self._fd, _STATUS_BYTES)
        except BlockingIOError:
            return
        *lines, self._text = (self._text + portion).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not portion:
            self._loop.remove_reader(self._fd)
            self.started.set()

    def _take(self, facts: dict[str, int]) -> None:
        if "child-pid" in facts:
            self.init_pid = facts["child-pid"]
            self.mount_namespace = facts.get("mnt-namespace")
            self._found_init(self.init_pid)
            self.started.set()
        self.exit_code = facts.get("exit-code", self.exit_code)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class NamespaceInit:
    """The namespace's pid 1, held by a descriptor: its pid outside may be somebody else's by now.

    `protect` is given that descriptor, before the process may do anything.
    """

    def __init__(self, protect: Callable[[int], None]) -> None:
        self._protect = protect
        self._fd: int | None = None
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def found(self, pid: int) -> None:
        """Hold on to it."""
        with suppress(ProcessLookupError):  # gone already
            self._fd = os.pidfd_open(pid)
            self._protect(self._fd)
            self._loop.add_reader(self._fd, self._died)

    def kill(self) -> bool:
        """False when there is nothing to kill."""
        if self._fd is None:
            return False
        with suppress(ProcessLookupError):  # gone already
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        return True

    async def gone(self) -> None:
        """Wait for its death, and with it that of all in the namespace."""
        if self._fd is not None:
            await self._gone.wait()

    def _died(self) -> None:
        """When its parent died first it is inherited by the nearest reaper.

        That may be this service, as pid 1 of a container: then it is reaped here.
        """
        assert self._fd is not None
        self._loop.remove_reader(self._fd)
        with suppress(ChildProcessError):  # its parent's or another reaper's to reap
            os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        self._gone.set()

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
