"""The programs of the server as forks of one process that imports them once: `python -P -m tenure.serve_forks FD`.

`tenure dev` starts so: its services share the memory of their imports, and none waits for imports of its own.
tenure/runtime/forks.py is the other end of the socket.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from tenure.runtime.fork_server import Ending, forked, run_program
from tenure.runtime.forks import READY
from tenure.serve import PROGRAMS
from tenure.server_packages import server_packages

IMPORTED_LATER: Final = (
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
"""What services import when they first need it: up to 1.3 s of processor time a process."""
LONGEST_NAME: Final = 15
"""Bytes of a process's name in the lists of `ps` and `top` (proc(5), comm)."""


def import_programs() -> Ending:
    """Imports what the programs need. Each fork ends through the returned object."""
    ending = Ending()
    gc.disable()
    with server_packages("`tenure dev`", extra="dev"):
        for name in (*PROGRAMS.values(), *IMPORTED_LATER):
            import_module(name)
        import_module("tenure.runtime.http.outbound_http").http_tls_context()
    return ending


def main() -> None:
    """Serves until the other end closes the socket; in a fork, runs the program of its request."""
    ending = import_programs()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    sock.send(READY)
    request = forked(sock)
    with suppress(OSError):  # the name is for people only
        Path("/proc/self/comm").write_text(f"tenure {request['arguments'][0]}"[:LONGEST_NAME])
    run_program(request, ending)


if __name__ == "__main__":
    main()
