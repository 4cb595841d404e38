"""Prepares deploy/secrets for deploy/compose.yaml: keys, certificates, passwords, and their owners.

    python -m deploy.prepare create deploy/secrets --host tenure.example.com
    python -m deploy.prepare renew deploy/secrets --host tenure.example.com

`create` makes what is missing and never replaces a file. `renew` replaces the certificates. Each container gets a
directory of its own, and `public`; the directories of the authorities are for no container.
"""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.runtime.security.certificates import open_authority, store_certificates, write_certificate
from tenure.runtime.security.secret_box import add_encryption_key
from tenure.runtime.security.signing import write_key_pair

SERVICE_UID: Final = 10001
"""The user of Tenure's image."""
POSTGRES_UID: Final = 999
"""The user `postgres` of the image `postgres`."""
ROOT_UID: Final = 0
"""The user of the image of etcd, which has no other; the container has no capability."""
GRAFANA_UID: Final = 472
"""The user `grafana` of the image of Grafana."""

OWNERS: Final = {
    "public": SERVICE_UID,
    **{role.lower(): SERVICE_UID for role in Role if role is not Role.OPERATOR},
    "migrate-checkpoint": SERVICE_UID,
    "migrate-tools": SERVICE_UID,
    "migrate-models": SERVICE_UID,
    "postgres": POSTGRES_UID,
    "etcd": ROOT_UID,
    "grafana": GRAFANA_UID,
    "authority": ROOT_UID,
    "stores-authority": ROOT_UID,
}
"""The directories, with the user of the container that gets each."""
DATABASE_ROLES: Final = {
    "ledger_owner": "migrate-checkpoint",
    "ledger_service": "checkpoint",
    "tools_owner": "migrate-tools",
    "tools_service": "tools",
    "models_owner": "migrate-models",
    "models_service": "models",
}
"""The roles of deploy/postgres/roles.sql, with the container that connects as each."""
STORES_CA: Final = "/run/tenure/public/stores-ca.pem"
DSN: Final = f"postgresql://{{role}}:{{password}}@postgres/tenure?sslmode=verify-full&sslrootcert={STORES_CA}"
MODEL_KEYS: Final = ("anthropic-api-key", "openai-api-key")
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Secrets:
    """The directory of all secrets. `owns` False leaves the files to the caller instead of the containers' users."""

    root: Path
    owns: bool = True

    def directories(self) -> None:
        """Makes the directories. Only the owner may read those with secrets."""
        self.root.mkdir(parents=True, exist_ok=True)
        for name in OWNERS:
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name).chmod(0o755 if name == "public" else 0o700)

    def keys(self) -> None:
        """Makes the key pair of fencing tokens, and the key that encrypts secrets in the database."""
        signing, public = self.root / "coordinator" / "signing.json", self.root / "public" / "verifying.json"
        if not signing.exists():
            write_key_pair(signing, public, key_id=uuid.uuid4().hex[:8])
        link = signing.with_name(public.name)  # `tenure keys rotate` takes both from one directory
        if not link.is_symlink():
            link.symlink_to(Path("..", "public", public.name))
        encryption = self.root / "checkpoint" / "encryption.json"
        if not encryption.exists():
            add_encryption_key(encryption, uuid.uuid4().hex[:8])

    def passwords(self) -> None:
        """Makes the passwords of the database's roles, each for Postgres and in the DSN of its container; and of the
        administrator of Grafana.
        """
        write_once(self.root / "grafana" / "password", secrets.token_urlsafe(32))
        write_once(self.root / "postgres" / "superuser", secrets.token_urlsafe(32))
        for role, container in DATABASE_ROLES.items():
            password = self.root / "postgres" / role
            write_once(password, secrets.token_urlsafe(32))
            write_once(self.root / container / "dsn", DSN.format(role=role, password=password.read_text()))

    def certificates(self, hosts: Sequence[str], days: float, *, renews: bool) -> None:
        """Makes the certificates of the services and of the stores. `hosts`: where clients reach the gateway."""
        services = open_authority(self.root / "authority", DEFAULT_INSTALLATION)
        for role in (Role.GATEWAY, Role.COORDINATOR, Role.CHECKPOINT, Role.TOOLS, Role.WORKER, Role.MODELS):
            directory, name = self.root / role.lower(), "certificate"
            if renews or not (directory / f"{name}.pem").exists():
                reached = (*LOCAL_HOSTS, *hosts) if role is Role.GATEWAY else ()
                pair = services.issue(role, role.lower(), DEFAULT_INSTALLATION, days, reached)
                write_certificate(directory, name, *pair)
        stores = open_authority(self.root / "stores-authority", f"{DEFAULT_INSTALLATION} stores")
        directories = {"etcd": "etcd", "etcd-client": "coordinator", "postgres": "postgres"}
        for store in store_certificates(("etcd", *LOCAL_HOSTS), ("postgres",)):
            directory = self.root / directories[store.name]
            if renews or not (directory / f"{store.name}.pem").exists():
                write_certificate(directory, store.name, *stores.issue_for_store(store, days))
        for authority, copies in {
            "authority": ("public/ca.pem",),
            "stores-authority": ("public/stores-ca.pem", "etcd/ca.pem"),
        }.items():
            for copy in copies:
                write_once(self.root / copy, (self.root / authority / "ca.pem").read_text(), mode=0o644)

    def model_keys(self) -> None:
        """Asks for the key of the model provider, unless it is there. The file of the other provider is empty.

        Only the model runner gets them.
        """
        given, other = (self.root / "models" / name for name in MODEL_KEYS)
        if not given.exists():
            prompt = "API key of Anthropic (it is not shown; empty for none): "
            text = getpass.getpass(prompt) if sys.stdin.isatty() else sys.stdin.readline()
            write_once(given, text.strip())
        write_once(other, "")

    def give(self) -> None:
        """Gives the directories and their files to the users of the containers."""
        if not self.owns:
            return
        for name, uid in OWNERS.items():
            for path in (self.root / name, *(self.root / name).iterdir()):
                os.chown(path, uid, uid, follow_symlinks=False)


def write_once(path: Path, text: str, mode: int = 0o400) -> None:
    """Writes a file that only its owner may read, unless it exists."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)  # also with another umask
            file.write(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    options = _options(arguments)
    made = Secrets(options.directory, owns=not options.keep_owner)
    if made.owns and os.geteuid() != 0:
        print("run it as root, which alone can give the files to the users of the containers, or with --keep-owner")
        return 2
    if options.command == "renew" and not (made.root / "authority" / "ca.key.pem").exists():
        print(f"{made.root} has no authority: nothing to renew; use `create`")
        return 2
    before = _files(made.root)
    made.directories()
    made.certificates(options.hosts, options.days, renews=options.command == "renew")
    if options.command == "create":
        made.keys()
        made.passwords()
        made.model_keys()
    made.give()
    print(f"{made.root}: {len(_files(made.root) - before)} files made, {len(before)} were there")
    return 0


def _files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def _options(arguments: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.prepare", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("create", "renew"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", dest="hosts", action="append", default=[], help="where clients reach the gateway")
    parser.add_argument("--days", type=float, default=90.0, help="how long the certificates are valid (90)")
    parser.add_argument("--keep-owner", action="store_true", help="leave the files to the caller: a rootless engine")
    return parser.parse_args(None if arguments is None else list(arguments))


if __name__ == "__main__":
    sys.exit(main())
