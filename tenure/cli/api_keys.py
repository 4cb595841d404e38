"""`tenure keys api`: the API keys of clients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.formatting import ago, make_list
from tenure.cli.parameters import DURATION
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.v1 import api_key_service_pb2 as pb
from tenure.wire.access import PERMISSIONS
from tenure.wire.common import moment, timestamp

_NAMES: Final = {permission.value.lower().replace("_", "-"): permission for permission in Permission}


@click.group("api", short_help="Create, list and revoke API keys.")
def api_keys() -> None:
    """Create, list and revoke API keys, with which clients identify themselves to the gateway."""


@api_keys.command()
@click.argument("name")
@click.option(
    "--permission",
    "permissions",
    type=click.Choice(list(_NAMES)),
    multiple=True,
    required=True,
    help="What the key may do; may be repeated.",
)
@click.option("--expires-in", type=DURATION, default=None, help="How long the key is valid. Default: for ever.")
@click.option("--any-tenant", is_flag=True, help="A key for every tenant, for operators.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the key to this new file, not to the screen.",
)
@pass_context
def create(
    context: Context,
    name: str,
    permissions: tuple[str, ...],
    expires_in: float | None,
    any_tenant: bool,
    output: Path | None,
) -> None:
    """Create the key NAME of the tenant. It is shown once and cannot be read again."""
    if output is not None and output.exists():
        raise click.ClickException(f"{output} exists and is not overwritten")
    expires_at = None if expires_in is None else datetime.now(UTC) + timedelta(seconds=expires_in)
    request = pb.CreateApiKeyRequest(
        name=name,
        permissions=[PERMISSIONS.to_wire(_NAMES[permission]) for permission in permissions],
        any_tenant=any_tenant,
        expire_time=None if expires_at is None else timestamp(expires_at),
    )

    with _key_file(output) as descriptor:
        created = context.run(lambda client: client.api_keys.CreateApiKey(request))
        if descriptor is not None:
            write_secret(descriptor, created)
            created.secret = ""
    context.say(created, created.secret or f"{created.api_key.key_id} is in {output}")


@api_keys.command("list")
@click.option("--all", "every", is_flag=True, help="Also revoked and expired keys.")
@with_client
async def list_keys(context: Context, client: Client, every: bool) -> None:
    """List the keys of the tenant, newest first; for operators, of all tenants."""
    keys = client.items(client.api_keys.ListApiKeys, pb.ListApiKeysRequest(all=every), lambda page: page.api_keys)
    await context.show_each(keys, _show_all, none="no keys")


def _show_all(context: Context, keys: Iterable[pb.ApiKey]) -> None:
    now = datetime.now(UTC)
    table = make_list("KEY", "NAME", "TENANT", "MAY", "CREATED", "STATE")
    for key in keys:
        may = ", ".join(PERMISSIONS.to_domain(one).lower().replace("_", "-") for one in key.permissions)
        created = ago(key.create_time)
        table.add_row(key.key_id, key.name, key.tenant or "(any)", may, created, _state(key, now))
    context.console.print(table)


@api_keys.command()
@click.argument("key_id", metavar="KEY")
@with_client
async def revoke(context: Context, client: Client, key_id: str) -> None:
    """Revoke KEY for good: the 12 characters after tnr_. Its clients are refused within 5 s."""
    revoked = (await client.api_keys.RevokeApiKey(pb.RevokeApiKeyRequest(key_id=key_id))).api_key
    context.say(revoked, f"{revoked.key_id} ({revoked.name}) is revoked")


def _state(key: pb.ApiKey, now: datetime) -> str:
    if key.HasField("revoke_time"):
        return f"revoked {ago(key.revoke_time)}"
    if not key.HasField("expire_time"):
        return "valid"
    expires_at = moment(key.expire_time)
    return "expired" if expires_at <= now else f"until {expires_at:%Y-%m-%d %H:%M}"


@contextmanager
def _key_file(path: Path | None) -> Iterator[int | None]:
    """Yields the descriptor of a new file that only its owner can read; None without a path.

    Removes the file if the block fails.
    The file is made before the key, which can be read only once. Raises ClickException if it cannot be made.
    """
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be made: {error.strerror or error}; no key was created") from error
    try:
        yield descriptor
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write_secret(descriptor: int, created: pb.CreateApiKeyResponse) -> None:
    """Writes the key. Raises ClickException if it cannot be written."""
    line = f"{created.secret}\n".encode("ascii")
    try:
        is_whole = os.write(descriptor, line) == len(line)
        reason = "the disk is full"
    except OSError as error:
        is_whole, reason = False, error.strerror or str(error)
    if not is_whole:
        advice = f"it cannot be read again, so revoke it: tenure keys api revoke {created.api_key.key_id}"
        raise click.ClickException(f"the key cannot be written: {reason}; {advice}")
