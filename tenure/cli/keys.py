"""`tenure keys`: creates the keys that sign fencing tokens."""

from __future__ import annotations

import uuid
from pathlib import Path

import click

from tenure.cli.output import echo
from tenure.runtime.signing import write_key_pair


@click.group()
def keys() -> None:
    """Create the keys that sign fencing tokens."""


@keys.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def create(directory: Path) -> None:
    """Create a key pair in DIRECTORY: signing.json (secret, for coordinators only) and verifying.json.

    The public key is added to the keys that verifying.json already has; all services read that file.

    To rotate the key: move the old signing.json away, create a new pair, give verifying.json to all services first,
    then restart the coordinators with the new signing.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    private, public = directory / "signing.json", directory / "verifying.json"
    if private.exists():
        raise click.ClickException(f"{private} exists and is not overwritten; move it to another place first")
    write_key_pair(private, public, key_id=uuid.uuid4().hex[:8])
    echo(f"{private} (secret)\n{public}")
