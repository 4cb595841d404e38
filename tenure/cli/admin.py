"""`tenure admin`: what operators do."""

from __future__ import annotations

import click

from tenure.cli.verify import verify


@click.group(short_help="For operators: verify.")
def admin() -> None:
    """Look after an installation."""


admin.add_command(verify)
