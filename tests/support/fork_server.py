"""The server process of `tests.support.forked`: imports the services once, then forks a child for each program.

python -P -m tests.support.fork_server LISTENING_SOCKET_FD

All processes of a run share it. Each that connects gets a server of its own, which is a fork, too, and ends with the
connection.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from typing import Any, Final

from tenure.testing.fork_server import die_with_parent, forked
from tenure.testing.forks import MODULES

PRELOADED: Final = (
    "services.checkpoint.main",
    "services.coordinator.main",
    "services.gateway.main",
    "services.models.main",
    "services.tools.main",
    "services.worker.main",
    "devstack.simulator.simulator",
    "tenure.cli.main",
    # What services import when they first need it: up to 1.3 s of processor time a process.
    "edges.gateway",
    "edges.checkpoint",
    "edges.tools",
    "services.gateway.http.server",
    "edges.a2a.door",
    "edges.answer_links.door",
    "edges.chats.routes",
    "edges.console.door",
    "edges.mcp_server.door",
    "genai_prices.data",
    "tenure.model_providers.anthropic_models",
    "tenure.model_providers.chat_stream",
    "tenure.model_providers.openai_models",
    "openai.resources.chat",
    "anyio._backends._asyncio",
    "anyio.streams.memory",
    "anyio.streams.stapled",
)
LIBRARIES_OF_AGENTS: Final = (
    "tenure.agents.pydantic_ai.agent",
    "tenure.agents.openai_agents",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.function",
    "agents.models.openai_chatcompletions",
)
"""What most control functions import: 2 s of processor time a worker."""


def main() -> None:
    """Serves until it is killed; in a child, runs `python -m MODULE` as its request says."""
    ending = Ending()
    atexit.register(ending.leave)  # before all others, so that it runs after them
    gc.disable()
    for name in PRELOADED:
        import_module(name)
    import_module("tenure.runtime.http.outbound_http").http_tls_context()
    request = forked(accepted(socket.socket(fileno=int(sys.argv[1]))), import_libraries)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:0] = request["path"]
    gc.enable()
    sys.argv[:] = [request["module"], *request["arguments"]]
    sys.modules.pop(request["module"], None)  # runpy warns of a program that is imported already
    with ending:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


class Ending:
    """Ends a child as the interpreter does, but lets the kernel take the imported modules.

    The interpreter deletes them one by one, and each write copies a page of the server: 0.2 s of processor time.
    """

    def __init__(self) -> None:
        self._code: int | None = None

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


def accepted(listener: socket.socket) -> socket.socket:
    """Returns in a child for each connection, which dies with this process."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the end of the servers
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return connection
        connection.close()


def import_libraries(request: Any) -> bool:
    """Imports the libraries of agents before the first worker that runs control functions is forked. Returns True."""
    if request["environment"].get(MODULES):
        for name in LIBRARIES_OF_AGENTS:
            import_module(name)
        gc.freeze()
    return True


if __name__ == "__main__":
    main()
