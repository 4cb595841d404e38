"""Forks a process for each request on a socket: `forked` returns in the child, with its imports done.

A request is one message: JSON, and four file descriptors: the child's stdin, stdout and stderr, and a pipe that
receives its exit code, as subprocess counts it (negative: the signal). The answer is the child's pid in 8 bytes, or 0
for a refusal. The server has one thread and never calls gRPC, so a fork of it is safe. It ends when the other end
closes the socket, and its children die with it. forks.py is the other end.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

EXIT_CODE_BYTES: Final = 8
PID_BYTES: Final = 8
LARGEST_REQUEST_BYTES: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def forked(sock: socket.socket, may_fork: Callable[[Any], bool] = lambda _request: True) -> Any:
    """Serves until the other end closes the socket, then ends the process. Returns the request in each child.

    may_fork: called with the request before each fork; False: the request is refused.
    """
    exits: dict[int, tuple[int, int]] = {}  # pidfd → pid, pipe for the exit code
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    gc.freeze()  # a collection in a child would copy every page of the imports
    while True:
        for fd, _ in poll.poll():
            if fd != sock.fileno():
                poll.unregister(fd)
                _report(fd, *exits.pop(fd))
                continue
            data, fds, _flags, _address = socket.recv_fds(sock, LARGEST_REQUEST_BYTES, 4)
            if not data:
                os._exit(0)  # whatever the program does at its end is for its workers
            request = json.loads(data)
            if not may_fork(request):
                _close_all(fds)
                sock.send(bytes(PID_BYTES))
                continue
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if not pid:
                sock.close()
                _close_all([*exits, *(pipe for _pid, pipe in exits.values()), fds[3]])
                _take_streams(fds[:3])
                return request
            _close_all(fds[:3])
            pidfd = os.pidfd_open(pid)
            exits[pidfd] = pid, fds[3]
            poll.register(pidfd, select.POLLIN)
            sock.send(pid.to_bytes(PID_BYTES, "little"))


def _report(pidfd: int, pid: int, pipe: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # the starter of this process is gone
        os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(EXIT_CODE_BYTES, "little", signed=True))
    _close_all([pidfd, pipe])


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() == 1:
        sys.exit("the server of forks is gone")


def _take_streams(fds: list[int]) -> None:
    """Makes this child a session of its own, which dies with the server and has the streams of the request."""
    die_with_parent()
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)


def run_program(request: Any, ending: Ending) -> None:
    """Runs `python -P -m MODULE ARGUMENT…` in this fork, as its request says."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:0] = request.get("path", [])
    gc.enable()
    sys.argv[:] = [request["module"], *request["arguments"]]
    sys.modules.pop(request["module"], None)  # runpy warns of a program that is imported already
    with ending:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


class Ending:
    """Ends a fork as the interpreter does, but lets the kernel take the imported modules. Create it before the imports.

    The interpreter deletes them one by one, and each write copies a page of the server: 0.2 s of processor time.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self.leave)  # before all others, so that it runs after them

    def __enter__(self) -> None:
        self._code = 0

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        match error:
            case SystemExit(code=None) | None:
                return
            case SystemExit(code=int(code)):
                self._code = code
            case KeyboardInterrupt():
                self._code = None  # the interpreter ends itself by the signal
            case _:
                self._code = 1

    def leave(self) -> None:
        if self._code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)
