"""The server process of `tests.support.forked`: imports the services once, then forks a child for each program.

python -P -m tests.support.fork_server SOCKET_FD

A request is one message of JSON with four file descriptors: stdin, stdout, stderr and a pipe that receives the exit
code of the child, as subprocess counts it (negative: the signal). The answer is the pid, 8 bytes. The server has one
thread and never calls gRPC, so a fork of it is safe. It ends when the test process closes the socket, and its children
die with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from tenure.runtime.outbound_http import http_tls_context

PRELOADED: Final = (
    "services.checkpoint.main",
    "services.coordinator.main",
    "services.gateway.main",
    "services.models.main",
    "services.tools.main",
    "services.worker.main",
    "services.models.main",
    "devstack.simulator.simulator",
    "tenure.cli.main",
    # What services import when they first need it: up to 1.3 s of processor time a process.
    "services.gateway.http.server",
    "genai_prices.data",
    "tenure.model_providers.chat_stream",
    "tenure.model_providers.openai_models",
    "anyio.streams.memory",
    "anyio.streams.stapled",
)
OF_AGENTS: Final = (
    "agents",
    "pydantic_ai.models.anthropic",
    "tenure.agents.openai_agents",
    "tenure.agents.pydantic_ai.agent",
)
"""The server imports these before the first program that needs them."""
LARGEST_REQUEST_BYTES: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main() -> None:
    """Serves until the other end closes the socket; in a child, runs the program and returns or raises as it does."""
    gc.disable()
    for name in PRELOADED:
        import_module(name)
    http_tls_context()
    gc.freeze()
    sock = socket.socket(fileno=int(sys.argv[1]))
    exits: dict[int, tuple[int, int]] = {}  # pidfd → pid, pipe for the exit code
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != sock.fileno():
                poll.unregister(fd)
                _report(fd, *exits.pop(fd))
                continue
            data, fds, _flags, _address = socket.recv_fds(sock, LARGEST_REQUEST_BYTES, 4)
            if not data:
                return
            request = json.loads(data)
            if request["with_agents"]:
                for name in OF_AGENTS:
                    import_module(name)
            pid = os.fork()
            if not pid:
                sock.close()
                _close_all([*exits, *(pipe for _pid, pipe in exits.values()), fds[3]])
                _become(request, fds[:3])
                return
            _close_all(fds[:3])
            pidfd = os.pidfd_open(pid)
            exits[pidfd] = pid, fds[3]
            poll.register(pidfd, select.POLLIN)
            sock.send(pid.to_bytes(8, "little"))


def _report(pidfd: int, pid: int, pipe: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # no test waits for this process any more
        os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))
    _close_all([pidfd, pipe])


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Makes this child what `python -m MODULE` is after its imports."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() == 1:
        sys.exit("the server of forks is gone")
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:0] = request["path"]
    gc.unfreeze()
    gc.enable()
    sys.argv[:] = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
