"""Worker: a whole worker process that runs your agents and functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from tenure.agents.dev_stack import advice_without_stack, dev_settings, stack_of_another_folder
from tenure.agents.functions import function_table
from tenure.server_packages import server_packages

PREFIX: Final = "TENURE_WORKER_"


class Worker:
    """Runs tasks of these agents and functions, with the settings of `tenure serve worker`.

        Worker([agent, month_end]).run()

    An omitted argument has the value of its environment variable, which `tenure serve worker --help` lists: addresses
    (`TENURE_WORKER_COORDINATOR_ADDRESS`, …), TLS (`TENURE_TLS_…`), logs (`TENURE_LOG_FORMAT`). If no address is given
    and a `tenure dev` runs on the data directory here (`TENURE_DATA`, else `.tenure`), the worker joins it, and without
    a key of a model its agents talk to the simulator.

    coordinators, checkpoints, tools: addresses, host:port. queues: the queues to take tasks from. slots: the most tasks
    at a time. build: of the code, such as a commit's hash or an image's tag: tasks are pinned to the revisions of this
    code (docs/versions.md). tenants: in whose registries the agents go; "default" without any. settings: further
    variables. Raises TypeError and ValueError for items that no worker can run.
    """

    def __init__(
        self,
        items: Iterable[Any],
        *,
        coordinators: Sequence[str] = (),
        checkpoints: Sequence[str] = (),
        tools: Sequence[str] = (),
        queues: Sequence[str] = (),
        slots: int | None = None,
        build: str = "",
        tenants: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.functions = function_table(items)
        if not self.functions:
            raise ValueError("a worker needs agents or functions to run: Worker([agent])")
        given = {
            "COORDINATOR_ADDRESS": ",".join(coordinators),
            "CHECKPOINT_ADDRESS": ",".join(checkpoints),
            "TOOLS_ADDRESS": ",".join(tools),
            "QUEUES": ",".join(queues),
            "SLOTS": "" if slots is None else str(slots),
            "BUILD": build,
            "AGENT_TENANTS": ",".join(tenants),
        }
        self._settings = {f"{PREFIX}{name}": value for name, value in given.items() if value} | dict(settings or {})

    def run(self) -> None:
        """Runs the worker until SIGTERM or SIGINT; it then gives its tasks back to other workers.

        Raises SystemExit when it fails, for example for a wrong setting, and MissingExtra without `tenure[agents]`.
        """
        with server_packages("tenure.agents.Worker", extra="agents"):
            program = import_module("services.worker.main")
        environment = {**os.environ, **self._settings}
        if advice := advice_without_stack(environment):
            if folder := stack_of_another_folder():
                sys.exit(f"tenure: {advice}. The stack at these ports is that of {folder}")
            print(f"tenure: {advice}", file=sys.stderr)  # noqa: T201  for a person at a terminal; logs are not set up yet
        os.environ.update(dev_settings(environment))  # the agents' own model clients read it
        code = program.run_with(self.functions, self._settings)
        if code:
            sys.exit(code)
