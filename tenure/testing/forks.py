"""Workers that start without importing: forked from a process that has run the user's program up to its worker.

The start of a worker with an agent takes seconds of processor time for imports alone, and each test starts a worker.
tenure/testing/worker_program.py is the forked process, and says when it cannot be forked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tenure.runtime.forks import CAN_FORK, ForkServer

if TYPE_CHECKING:
    from devstack.child_process import RunningProgram

MODULES: Final = "TENURE_WORKER_CONTROL_MODULES"
OF_ONE_WORKER: Final = frozenset(
    {
        *("TENURE_WORKER_ID", "TENURE_WORKER_LISTEN", "TENURE_WORKER_AGENT_TENANTS", "TENURE_FAILPOINTS"),
        # Those of a replay.
        *("TENURE_WORKER_LOOPS", "TENURE_WORKER_QUEUES"),
        *("TENURE_WORKER_RECORDED_CALLS_FILE", "TENURE_WORKER_REPLAY_MODEL"),
    }
)
OF_TENURE: Final = "TENURE_"
PROGRAM_AND_SCRIPT: Final = 2
MOST_SERVERS: Final = 3
"""Each keeps the imports of its program in memory."""


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
        key = seen_before_the_fork(program, environment)
        streams = {"stdout": log.fileno(), "stderr": log.fileno()}
        server = self._servers.pop(key, None)
        worker = server.fork(dict(environment), **streams) if server else None
        if server is None or worker is None:
            self._former += [server] if server else []
            server_command = [sys.executable, "-P", "-m", "tenure.testing.worker_program", program]
            from devstack import watchdog

            server = ForkServer(server_command, watchdog.launch, cwd=cwd, environment=environment, log=log)
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


def seen_before_the_fork(program: str, environment: Mapping[str, str]) -> str:
    """Returns what a worker can have seen before it was forked: the program and its environment.

    Tenure itself reads its settings behind the fork, so they count only where code of the user may read them.
    """
    has_code = bool(program or environment.get(MODULES))
    unseen = OF_ONE_WORKER | ({MODULES} if program else set())  # a program imports its functions itself
    seen = {
        name: value
        for name, value in sorted(environment.items())
        if name not in unseen and (has_code or not name.startswith(OF_TENURE))
    }
    return json.dumps([program, seen])
