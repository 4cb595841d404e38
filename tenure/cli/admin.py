"""`tenure admin`: what operators do."""

from __future__ import annotations

import click

from tenure.cli.intervene import close_out, requeue
from tenure.cli.verify import verify


@click.group(short_help="For operators: requeue, close-out, verify.")
def admin() -> None:
    """Look after an installation, and intervene: the ledger of a task keeps who did what to it, and why."""


for command in (requeue, close_out, verify):
    admin.add_command(command)
