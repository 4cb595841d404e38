"""The services of a stack as forks of one process that imports them once (tenure/serve_forks.py)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Self

from devstack import watchdog
from devstack.child_process import RunningProgram, open_log, start_process
from devstack.options import Layout, StackOptions
from tenure.runtime.forks import ForkServer

_BEFORE_MODULE: Final = 3  # python -P -m MODULE ARGUMENT…


class ServiceForks:
    """The process that imports the services. The forks end with it at the latest.

    `launch` has the signature of `start_process`.
    """

    def __init__(self, options: StackOptions, layout: Layout) -> None:
        environment = options.environment.get("*", {})
        with open_log(layout.logs / "imports.log") as log:
            command = [sys.executable, "-P", "-m", "tenure.serve_forks"]
            self._server = ForkServer(command, watchdog.launch, cwd=layout.logs, environment=environment, log=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def wait_ready(self) -> None:
        """Waits until the imports are done. If they fail, each service is a process of its own, and reports it."""
        if not self._server.is_ready():
            self._server.process.kill()  # it may never end by itself

    def launch(
        self, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: IO[bytes]
    ) -> RunningProgram:
        """Forks the program `python -P -m MODULE ARGUMENT…`; starts it, if no process of the imports serves."""
        request = {
            "module": command[_BEFORE_MODULE],
            "arguments": list(command[_BEFORE_MODULE + 1 :]),
            "environment": dict(environment),
            "cwd": str(cwd),
        }
        fork = self._server.fork(request, stdout=log.fileno(), stderr=log.fileno())
        return fork or start_process(command, environment=environment, cwd=cwd, log=log)
