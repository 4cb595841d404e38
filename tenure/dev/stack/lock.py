"""One stack on one folder: two would give the same tasks to two sets of services."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tenure.dev.dev_file import read_addresses
from tenure.dev.stack.errors import FolderBusy

FILE_NAME: Final = "dev.lock"


@contextmanager
def hold_folder(data_dir: Path) -> Iterator[None]:
    """Ours inside the block, and no longer than this process lives. Raises FolderBusy."""
    descriptor = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusy(_sentence(data_dir)) from error
        yield
    finally:
        os.close(descriptor)


def _sentence(data_dir: Path) -> str:
    running = read_addresses(data_dir)
    where = f"its gateway is {running['gateway']}" if running and "gateway" in running else "it is starting or stopping"
    return f"a stack runs on {data_dir} already ({where}): use that one, or name another folder with --data"
