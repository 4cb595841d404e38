"""The server process of `tests.support.forked`: imports the services once, then forks a child for each program.

python -P -m tests.support.fork_server LISTENING_SOCKET_FD [agents]

All processes of a run share it. Each that connects gets a server of its own, which is a fork, too, and ends with the
connection. `agents`: several will connect, so their libraries are imported once, before.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from importlib import import_module
from typing import Any, Final

import click

from devstack.simulator.scenario import shipped_scenarios
from tenure.runtime.fork_server import die_with_parent, forked, run_program
from tenure.serve_forks import import_programs
from tenure.testing.answer_schemas import build_answer_schemas
from tenure.testing.forks import MODULES

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
    ending = import_programs()
    import_commands(import_module("tenure.cli.main").cli)
    shipped_scenarios()
    if "agents" in sys.argv[2:]:
        import_agents()
    run_program(forked(accepted(socket.socket(fileno=int(sys.argv[1]))), import_libraries), ending)


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


def import_commands(group: click.Group) -> None:
    """Imports the modules of all commands, each of which a command of a user imports when it runs."""
    for command in list(group.commands.values()):
        if isinstance(command, click.Group):
            import_commands(command)


def import_libraries(request: Any) -> bool:
    """Imports the libraries of agents before the first worker that runs control functions is forked. Returns True."""
    if request["environment"].get(MODULES):
        import_agents()
        gc.freeze()
    return True


def import_agents() -> None:
    """Imports the libraries of agents, and builds what they put off until the first answer of a model."""
    for name in LIBRARIES_OF_AGENTS:
        import_module(name)
    build_answer_schemas()


if __name__ == "__main__":
    main()
