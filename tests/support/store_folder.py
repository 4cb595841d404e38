"""A folder for the files of stores whose durability no test is about.

Tests make and drop hundreds of databases, and every one of them waits for the disk several times: it is in memory where
there is room. A process that is killed and started again finds its files there as it would on a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from devstack import watchdog

MEMORY: Final = Path("/dev/shm")  # Linux alone has it
ROOM_BYTES: Final = 4 * 1024**3
PREFIX: Final = "tenure-tests-"


@contextmanager
def store_folder() -> Iterator[Path]:
    """Removed at the end, also of a killed run; every account may enter it, as Postgres has an account of its own."""
    in_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY if in_memory else None))
    watchdog.watch_folder(folder)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
