"""`tenure admin`: what operators do."""

from __future__ import annotations

import click

from tenure.cli.aging import aging
from tenure.cli.intervene import close_out, drain, grant_budget, requeue, transfer
from tenure.cli.prune import prune
from tenure.cli.verify import verify


@click.group(short_help="For operators: aging, requeue, grant-budget, close-out, transfer, drain, prune, verify.")
def admin() -> None:
    """Look after an installation, and intervene: the ledger of a task keeps who did what to it, and why."""


for command in (aging, requeue, grant_budget, close_out, transfer, drain, prune, verify):
    admin.add_command(command)
