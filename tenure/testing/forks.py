"""Workers that start without importing: forked from a process that has run the user's program up to its worker.

The start of a worker with an agent takes seconds of processor time for imports alone, and each test starts a worker.
tenure/testing/worker_program.py is the forked process, and says when it cannot be forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tenure.testing.fork_server import EXIT_CODE_BYTES, PID_BYTES

if TYPE_CHECKING:
    from devstack.child_process import RunningProgram

CAN_FORK: Final = hasattr(os, "pidfd_open")
MODULES: Final = "TENURE_WORKER_CONTROL_MODULES"
OF_ONE_WORKER: Final = frozenset({"TENURE_WORKER_ID", "TENURE_WORKER_LISTEN", "TENURE_FAILPOINTS"})
OF_TENURE: Final = "TENURE_"
PROGRAM_AND_SCRIPT: Final = 2
READY: Final = b"ready"
READY_SECONDS: Final = 120.0
MOST_SERVERS: Final = 3
"""Each keeps the imports of its program in memory."""


class ForkedProgram:
    """A forked program, with the part of `subprocess.Popen` that the stack uses."""

    def __init__(self, pid: int, exit_fd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.exit_fd = exit_fd

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        if self.returncode is None and select.select([self.exit_fd], [], [], 0)[0]:
            data = os.read(self.exit_fd, EXIT_CODE_BYTES)
            os.close(self.exit_fd)
            # Without a code the server was killed, and its children with it.
            self.returncode = int.from_bytes(data, "little", signed=True) if data else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not select.select([self.exit_fd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the server has waited for it, and has not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkClient:
    """The other end of `tenure.testing.fork_server.forked`, at a socket of a server that runs."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fork(self, request: Any, *, stdout: int, stderr: int, stdin: int | None = None) -> ForkedProgram | None:
        """Forks a child, with an empty stdin if none is given. Returns None if the server refuses, or has ended."""
        exit_fd, theirs = os.pipe()
        with Path(os.devnull).open("rb") as empty, os.fdopen(theirs, "wb"):
            inherited = [empty.fileno() if stdin is None else stdin, stdout, stderr, theirs]
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], inherited)
                pid = int.from_bytes(self._socket.recv(PID_BYTES), "little")
            except ConnectionError:
                pid = 0
        if pid:
            return ForkedProgram(pid, exit_fd)
        os.close(exit_fd)
        return None

    def close(self) -> None:
        """Ends the server, and with it the programs that still run."""
        self._socket.close()


class ForkServer(ForkClient):
    """A server of its own. `command`: runs it, and gets the socket's number. `process`: the server."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        from devstack import watchdog

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            self.process = watchdog.launch(
                [*command, str(theirs.fileno())],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Waits until the server says that it serves. Returns False if it does not: then it gets no requests."""
        self._socket.settimeout(READY_SECONDS)
        try:
            is_ready = self._socket.recv(len(READY)) == READY
        except (ConnectionError, TimeoutError):
            is_ready = False
        self._socket.settimeout(None)
        if not is_ready:
            self._socket.close()
        return is_ready

    def close(self) -> None:
        """Ends the server, and with it the programs that still run."""
        super().close()
        self.process.wait()


class WorkerForks:
    """Starts the workers of a stack. `launch` has the signature of devstack's `start_process`."""

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}
        self._former: list[ForkServer] = []

    def launch(
        self, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: IO[bytes]
    ) -> RunningProgram:
        """Starts a worker: `command` runs a program of the user, or `tenure serve worker`.

        The first worker of a program starts its server, which is the worker itself if it cannot be forked. A server
        refuses when its program has changed.
        """
        if not CAN_FORK:
            from devstack.child_process import start_process

            return start_process(command, environment=environment, cwd=cwd, log=log)
        program = command[1] if len(command) == PROGRAM_AND_SCRIPT else ""
        key = _seen_before_the_fork(program, environment)
        streams = {"stdout": log.fileno(), "stderr": log.fileno()}
        server = self._servers.pop(key, None)
        worker = server.fork(dict(environment), **streams) if server else None
        if server is None or worker is None:
            self._former += [server] if server else []
            arguments = ["-P", "-m", "tenure.testing.worker_program", program]
            server = ForkServer([sys.executable, *arguments], cwd=cwd, environment=environment, log=log)
            worker = server.fork(dict(environment), **streams) if server.is_ready() else None
        if worker is None:
            return server.process
        self._servers[key] = server
        return worker

    def trim(self, most: int = MOST_SERVERS) -> None:
        """Ends all servers but the newest, and with them the workers that still run."""
        for key in list(self._servers)[: max(0, len(self._servers) - most)]:
            self._former.append(self._servers.pop(key))
        while self._former:
            self._former.pop().close()


def _seen_before_the_fork(program: str, environment: Mapping[str, str]) -> str:
    """Returns what a worker can have seen before it was forked: the program and its environment.

    Tenure itself reads its settings behind the fork, so they count only where code of the user may read them.
    """
    has_code = bool(program or environment.get(MODULES))
    seen = {
        name: value
        for name, value in sorted(environment.items())
        if name not in OF_ONE_WORKER and (has_code or not name.startswith(OF_TENURE))
    }
    return json.dumps([program, seen])
