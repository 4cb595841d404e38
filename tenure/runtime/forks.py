"""Programs that start without importing, as forks of a process that has imported them: see fork_server.py."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from tenure.runtime.fork_server import EXIT_CODE_BYTES, PID_BYTES

CAN_FORK: Final = hasattr(os, "pidfd_open")
READY: Final = b"ready"
READY_SECONDS: Final = 120.0


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
    """The other end of `fork_server.forked`, at a socket of a server that runs."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fork(self, request: Any, *, stdout: int, stderr: int, stdin: int | None = None) -> ForkedProgram | None:
        """Forks a child, with an empty stdin if none is given.

        Returns None if the server refuses, has ended, was not ready, or if no message can carry the request.
        """
        exit_fd, theirs = os.pipe()
        with Path(os.devnull).open("rb") as empty, os.fdopen(theirs, "wb"):
            inherited = [empty.fileno() if stdin is None else stdin, stdout, stderr, theirs]
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], inherited)
                pid = int.from_bytes(self._socket.recv(PID_BYTES), "little")
            except OSError:
                pid = 0
        if pid:
            return ForkedProgram(pid, exit_fd)
        os.close(exit_fd)
        return None

    def close(self) -> None:
        """Ends the server, and with it the programs that still run."""
        self._socket.close()


class ForkServer(ForkClient):
    """A server of its own.

    `command`: runs it, and gets the socket's number. `launch`: starts it, as `subprocess.Popen`. `process`: the server.
    """

    def __init__(
        self,
        command: Sequence[str],
        launch: Callable[..., subprocess.Popen[bytes]],
        *,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            self.process = launch(
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
