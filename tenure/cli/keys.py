"""`tenure keys`: creates the keys that sign fencing tokens, and certificates for mutual TLS."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tenure.cli.api_keys import api_keys
from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, Typed
from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.server_packages import server_packages

_KEYS: Final = "`tenure keys`"
_CERTS: Final = "`tenure keys certs`"


@click.group(short_help="Create and withdraw signing keys, API keys and certificates.")
def keys() -> None:
    """Create, rotate and withdraw the keys that sign fencing tokens; API keys and certificates.

    Files on this machine, except for `api`, which asks the gateway.
    """


keys.add_command(api_keys)


@keys.command(short_help="Create the key pair that signs fencing tokens.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@pass_context
def create(context: Context, directory: Path) -> None:
    """Create a key pair in DIRECTORY: signing.json (secret, for coordinators only) and verifying.json.

    The public key is added to the keys that verifying.json already has; all services read that file.
    """
    with server_packages(_KEYS, extra="server"):
        from tenure.runtime.security.signing import write_key_pair

    with key_errors():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        private, public = key_files(directory)
        if private.exists():
            raise click.ClickException(f"{private} exists and is not overwritten; move it to another place first")
        write_key_pair(private, public, key_id=uuid.uuid4().hex[:8])
    context.say({"signing_key_file": str(private), "verifying_keys_file": str(public)}, f"{private} (secret)\n{public}")


@keys.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    help="The time that services have to read the new public key. Default: 15s.",
)
@pass_context
def rotate(context: Context, directory: Path, wait_seconds: float | None) -> None:
    """Change the signing key of running services, whose key files are in DIRECTORY.

    Adds a new public key to verifying.json, waits until the services have read it, and then replaces signing.json.
    Coordinators sign with the new key within 5 seconds, and replace the tokens of running tasks with the next renewal.
    The former key stays valid until `tenure keys withdraw`. An interrupted rotation continues where it stopped.
    """
    with server_packages(_KEYS, extra="server"):
        from tenure.runtime.security.signing import LOOK_SECONDS, Signer, Verifier, next_key_path, write_key_pair

    wait_seconds = 3 * LOOK_SECONDS if wait_seconds is None else wait_seconds
    private, public = key_files(directory)
    following = next_key_path(private)
    with key_errors():
        former = Signer.load(private).key_id
        if not following.exists():
            write_key_pair(following, public, key_id=uuid.uuid4().hex[:8])
        chosen = Signer.load(following).key_id
        if chosen not in Verifier(public).public_keys():  # the command was interrupted between the two files
            following.unlink()
            write_key_pair(following, public, key_id=chosen)
        echo(f"{former} signs until the services have read {chosen} in {public}: {wait_seconds:g} s", err=True)
        time.sleep(wait_seconds)
        following.replace(private)
    context.say(
        {"key_id": chosen, "former_key_id": former},
        f"{former} signs no longer; withdraw it when every named lease was renewed:\n"
        f"tenure keys withdraw {shlex.quote(str(directory))} {former}",
    )


@keys.command(short_help="Remove a former key: its tokens verify no longer.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("key_id")
@pass_context
def withdraw(context: Context, directory: Path, key_id: str) -> None:
    """Remove the public key KEY_ID from verifying.json in DIRECTORY: the tokens that it signed verify no longer."""
    with server_packages(_KEYS, extra="server"):
        from tenure.runtime.security.signing import LOOK_SECONDS, withdraw_key

    with key_errors():
        withdraw_key(*key_files(directory), key_id)
    context.say(
        {"key_id": key_id, "withdrawn": True},
        f"{key_id} is withdrawn; services refuse its tokens within {LOOK_SECONDS:g} s",
    )


@keys.command(short_help="Create or replace the key that encrypts secrets in the database.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--withdraw", "withdrawn", metavar="KEY", help="Remove this key instead.")
@pass_context
def encryption(context: Context, file: Path, withdrawn: str | None) -> None:
    """Create FILE with a key that encrypts the secrets in the database, or add a new key, which replaces the former.

    Checkpoint services use a new key within 5 seconds. Then `tenure serve checkpoint reencrypt` encrypts all
    secrets with it, and the former key can be withdrawn.
    """
    with server_packages(_KEYS, extra="server"):
        from tenure.runtime.security.secret_box import add_encryption_key, withdraw_encryption_key

    key_id = withdrawn or uuid.uuid4().hex[:8]
    with key_errors():
        if withdrawn is None:
            add_encryption_key(file, key_id)
        else:
            withdraw_encryption_key(file, key_id)
    context.say(
        {"key_id": key_id, "withdrawn": withdrawn is not None},
        f"{key_id} {'encrypts from now on' if withdrawn is None else 'is withdrawn'}",
    )


def key_files(directory: Path) -> tuple[Path, Path]:
    """Returns the files of the private key and of the public keys, which may be a link to where services read it."""
    public = directory / "verifying.json"
    return directory / "signing.json", public.resolve() if public.is_symlink() else public


@contextmanager
def key_errors() -> Iterator[None]:
    """Shows the errors of files of keys and certificates as errors of the command."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _process(text: str) -> tuple[Role, str]:
    """Reads ROLE or ROLE/NAME as both."""
    role, _, name = text.partition("/")
    if role.upper() not in Role.__members__:
        raise ValueError(f"{role} is not a role: use one of {', '.join(one.lower() for one in Role)}")
    return Role[role.upper()], name or role


PROCESS: Final = Typed("role[/name]", _process)


@keys.group()
def certs() -> None:
    """Create certificates for mutual TLS between the processes of an installation."""


@certs.command("create")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("processes", type=PROCESS, nargs=-1)
@click.option("--installation", default=DEFAULT_INSTALLATION, show_default=True, help="The trust domain.")
@click.option("--host", "hosts", multiple=True, help="A name or address of the servers; may be repeated.")
@click.option("--days", type=click.FloatRange(0, min_open=True), default=90.0, show_default=True)
@pass_context
def create_certificates(
    context: Context,
    directory: Path,
    processes: tuple[tuple[Role, str], ...],
    installation: str,
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Create ca.pem in DIRECTORY, unless it exists, and a certificate for each of PROCESSES: ROLE or ROLE/NAME.

    Without PROCESSES, one for each role. <name>.pem and <name>.key.pem are replaced if they exist; running processes
    use the new files without a restart. Keep ca.key.pem away from the services.
    """
    with server_packages(_CERTS, extra="server"):
        from tenure.runtime.security.certificates import make_certificates

    chosen = processes or tuple((role, role.lower()) for role in Role)
    with key_errors():
        make_certificates(directory, chosen, installation=installation, days=days, hosts=hosts or ["localhost"])
    _show_certificates(context, directory, (name for _role, name in chosen))


@certs.command("stores")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--installation", default=DEFAULT_INSTALLATION, show_default=True, help="The name in the authority.")
@click.option("--etcd-host", "etcd_hosts", multiple=True, help="A name or address of etcd; may be repeated.")
@click.option("--postgres-host", "postgres_hosts", multiple=True, help="The same of Postgres.")
@click.option("--days", type=click.FloatRange(0, min_open=True), default=90.0, show_default=True)
@pass_context
def create_store_certificates(
    context: Context,
    directory: Path,
    installation: str,
    etcd_hosts: tuple[str, ...],
    postgres_hosts: tuple[str, ...],
    days: float,
) -> None:
    """Create ca.pem in DIRECTORY, unless it exists, and etcd.pem, etcd-client.pem and postgres.pem with their keys.

    etcd admits each client with a certificate of this authority: give etcd-client.pem to coordinators only, and
    choose another DIRECTORY than that of `tenure keys certs create`. Keep ca.key.pem away from the services.
    """
    with server_packages(_CERTS, extra="server"):
        from tenure.runtime.security.certificates import make_store_certificates, store_certificates

    stores = store_certificates(etcd_hosts or ["localhost"], postgres_hosts or ["localhost"])
    with key_errors():
        make_store_certificates(directory, stores, installation=installation, days=days)
    _show_certificates(context, directory, (store.name for store in stores))


def _show_certificates(context: Context, directory: Path, names: Iterable[str]) -> None:
    """Prints the files of the new certificates."""
    for name in names:
        certificate = directory / f"{name}.pem"
        context.say({"certificate_file": str(certificate)}, str(certificate))
