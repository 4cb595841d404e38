"""Runs one program of the server in this process: `python -P -m tenure.serve NAME [ARGUMENT…]`.

`tenure serve NAME` becomes this process. The module imports no part of the command, so a service starts without it.
-P keeps folders of the working directory from shadowing packages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from tenure.runtime.fast_start import imports_kept
from tenure.server_packages import MissingExtra, server_packages

SERVICES: Final = ("gateway", "coordinator", "checkpoint", "tools", "models", "worker")
"""The services of an installation. `models` is the model runner."""
PROGRAMS: Final = {
    **{name: f"services.{name}.main" for name in SERVICES},
    "gateway": "edges.gateway",
    "checkpoint": "edges.checkpoint",
    "tools": "edges.tools",
    "all": "devstack.all_services",
    "simulator": "devstack.simulator.__main__",
}
"""The programs, each with the module whose `main()` runs it and returns the exit code."""
_WRONG_COMMAND: Final = 2


def command_line(name: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a program in a process of its own."""
    return [sys.executable, "-P", "-m", "tenure.serve", name, *arguments]


def main(arguments: Sequence[str]) -> int:
    """Runs the program that `arguments` name, with the rest as its own arguments, and returns its exit code."""
    name = arguments[0] if arguments else ""
    if name not in PROGRAMS:
        sys.stderr.write(f"usage: tenure serve {'|'.join(PROGRAMS)} [ARGUMENT…]\n")
        return _WRONG_COMMAND
    try:
        with imports_kept(), server_packages(f"`tenure serve {name}`", extra="server"):
            program = import_module(PROGRAMS[name])
    except MissingExtra as error:
        sys.stderr.write(f"tenure: {error}\n")
        return _WRONG_COMMAND
    sys.argv[:] = [f"tenure serve {name}", *arguments[1:]]
    code: int = program.main()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
