"""`tenure keys`: the keys that fencing tokens are signed with."""

from __future__ import annotations

import uuid
from pathlib import Path

import click

from tenure.cli.output import echo
from tenure.runtime.signing import write_key_pair


@click.group()
def keys() -> None:
    """Make the keys that fencing tokens are signed with."""


@keys.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def create(directory: Path) -> None:
    """Write signing.json (for coordinators only) and add its public half to verifying.json (for all services).

    To rotate: create a new pair, hand verifying.json out first, then restart the coordinators with the new
    signing.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    private, public = directory / "signing.json", directory / "verifying.json"
    if private.exists():
        raise click.ClickException(f"{private} is there already; move it away first: nothing is overwritten")
    write_key_pair(private, public, key_id=uuid.uuid4().hex[:8])
    echo(f"{private} (secret)\n{public}")
