"""Finds the gateway for a caller who names none: that of the development stack of the caller's folder.

A stack keeps the file `dev.json` with its addresses in its data directory, and the lock `dev.lock` while it runs.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tenure.runtime.security.tls import ClientTls
from tenure.runtime.settings import FILE_SUFFIX

FILE_NAME: Final = "dev.json"
LOCK_FILE_NAME: Final = "dev.lock"
CERTIFICATES: Final = "certificates"
"""The key of the certificates' folder in dev.json, for a stack with TLS."""
SIMULATOR: Final = "simulator"
"""The key of the simulator's URL in dev.json, for a stack whose model is simulated."""

DEFAULT_ADDRESS: Final = "127.0.0.1:8470"
"""The usual address of a gateway on this machine."""
DEFAULT_DATA_DIR: Final = Path(".tenure")
"""The data directory of a stack, in the folder where `tenure dev` was started."""


_VENDOR_VARIABLES: Final = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
)


def given_vendors(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables with a value that give a model provider. Without any, a simulator plays the models.

    A key may be in the file that the variable with `_FILE` at its end names.
    """
    given = {name for name, value in environment.items() if value.strip()}
    return [name for name in _VENDOR_VARIABLES if name in given or f"{name}{FILE_SUFFIX}" in given]


class FoundGateway(NamedTuple):
    """A gateway. `tls`: the certificates of its stack, if it has some.

    `is_guessed`: it is at the usual address, so it may be that of another folder's stack.
    """

    address: str
    tls: ClientTls | None = None
    is_guessed: bool = False


def find_gateway(data_dir: Path = DEFAULT_DATA_DIR) -> FoundGateway:
    """Returns the gateway of the stack that `find_addresses` finds, else the one at the usual address."""
    addresses = find_addresses(data_dir) or {}
    if gateway := addresses.get("gateway"):
        return FoundGateway(gateway, _tls_of(addresses))
    return FoundGateway(DEFAULT_ADDRESS, is_guessed=True)


def find_addresses(data_dir: Path = DEFAULT_DATA_DIR) -> dict[str, str] | None:
    """Returns the addresses of the stack that runs on `data_dir`, or None if none runs.

    The default is searched for in the working directory and its parents, the nearest first; in parents only a directory
    of this user, because another user may write to a folder above, such as /tmp.
    """
    parents = Path.cwd().parents if data_dir == DEFAULT_DATA_DIR else ()
    candidates = (data_dir, *filter(_is_own, (parent / data_dir for parent in parents)))
    return next((addresses for each in candidates if (addresses := read_addresses(each)) is not None), None)


def _is_own(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == os.getuid()
    except OSError:
        return False


def _tls_of(addresses: dict[str, str]) -> ClientTls | None:
    if CERTIFICATES not in addresses:
        return None
    folder = Path(addresses[CERTIFICATES])
    return ClientTls(folder / "ca.pem", folder / "operator.pem", folder / "operator.key.pem")


def read_addresses(data_dir: Path) -> dict[str, str] | None:
    """Returns the addresses of the stack that runs on this folder, or None if none runs.

    A stack that was killed leaves its file behind, but not its lock.
    """
    try:
        stored = json.loads((data_dir / FILE_NAME).read_text(encoding="utf-8"))
        addresses = {str(name): str(address) for name, address in stored.items()}
    except (OSError, ValueError, AttributeError):
        return None
    return addresses if _is_locked(data_dir / LOCK_FILE_NAME) else None


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
