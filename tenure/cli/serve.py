"""`tenure serve`: this process becomes a service."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import click

from tenure.serve import command_line

_SHORT_HELP: Final = {
    "gateway": "Run the public API.",
    "coordinator": "Run a coordinator: claims, leases and fencing tokens.",
    "checkpoint": "Run a checkpoint service: the ledger.",
    "tools": "Run a tool service.",
    "worker": "Run a worker.",
    "models": "Run a model runner: model calls that outlive their worker.",
    "all": "Run one of each service on this machine.",
    "simulator": "Run the model simulator.",
}


@click.group(short_help="Run a service, with your Postgres and etcd.")
def serve() -> None:
    """Run a service in this process, with its settings in the environment.

    `tenure serve NAME --help` prints the further commands of a service, such as `migrate`, and its settings. Needs the
    extra: pip install 'tenure[server]'. `tenure dev` runs all services and the stores, for development.
    """


def _command(name: str) -> click.Command:
    """Returns the command of a program. The program itself reads all arguments, `--help` too."""

    def run(arguments: Sequence[str]) -> None:
        command = command_line(name, *arguments)
        os.execv(command[0], command)

    return click.Command(
        name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        short_help=_SHORT_HELP[name],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )


for _name in _SHORT_HELP:
    serve.add_command(_command(_name))
