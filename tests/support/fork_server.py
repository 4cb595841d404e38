"""The server process of `tests.support.forked`: imports the services once, then forks a child for each program.

python -P -m tests.support.fork_server SOCKET_FD
"""

from __future__ import annotations

import gc
import os
import runpy
import socket
import sys
from importlib import import_module
from typing import Final

from tenure.runtime.http.outbound_http import http_tls_context
from tenure.testing.fork_server import forked

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
    "tenure.model_providers.chat_stream",
    "tenure.model_providers.openai_models",
    "anyio.streams.memory",
    "anyio.streams.stapled",
)


def main() -> None:
    """Serves until the other end closes the socket; in a child, runs `python -m MODULE` as its request says."""
    gc.disable()
    for name in PRELOADED:
        import_module(name)
    http_tls_context()
    request = forked(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:0] = request["path"]
    gc.unfreeze()
    gc.enable()
    sys.argv[:] = [request["module"], *request["arguments"]]
    sys.modules.pop(request["module"], None)  # runpy warns of a program that is imported already
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
