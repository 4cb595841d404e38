"""The data directory of a stack: `dev.json`, with which other programs find the running stack, and the lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from devstack.child_process import FolderBusy
from tenure.runtime.running_stack import FILE_NAME, read_addresses


def write_addresses(data_dir: Path, addresses: dict[str, str]) -> None:
    """Writes `dev.json`. The replacement is atomic: readers see the old file or the new one, never half of it."""
    path = data_dir / FILE_NAME
    new_file = path.with_suffix(".tmp")
    new_file.touch(mode=0o600)
    new_file.write_text(json.dumps({"pid": os.getpid(), **addresses}, indent=2) + "\n", encoding="utf-8")
    new_file.replace(path)


def forget_addresses(data_dir: Path) -> None:
    """Removes `dev.json`."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)


# The ports of the stack, so that it has the same ones after a restart.

PORTS_FILE_NAME: Final = "ports.json"


def write_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    """Writes the ports by the name of what listens there."""
    (data_dir / PORTS_FILE_NAME).write_text(json.dumps(ports, indent=2) + "\n", encoding="utf-8")


def read_ports(data_dir: Path) -> dict[str, int]:
    """Returns the ports of the folder's last stack; none before the first one, and none of a file that was damaged."""
    try:
        stored = json.loads((data_dir / PORTS_FILE_NAME).read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


# One stack per folder: two stacks would give the same tasks to two sets of services.

LOCK_FILE_NAME: Final = "dev.lock"


@contextmanager
def hold_folder(data_dir: Path) -> Iterator[None]:
    """Locks the folder inside the block. The lock ends with this process at the latest. Raises FolderBusy."""
    descriptor = os.open(data_dir / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusy(_busy_message(data_dir)) from error
        yield
    finally:
        os.close(descriptor)


def _busy_message(data_dir: Path) -> str:
    running = read_addresses(data_dir)
    where = f"its gateway is {running['gateway']}" if running and "gateway" in running else "it is starting or stopping"
    return f"a stack runs on {data_dir} already ({where}): use that one, or choose another folder with --data"
