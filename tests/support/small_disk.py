"""A disk of a few MiB that can be filled up: a tmpfs, for root on Linux. Unmounted at the end, or by the next one.

with SmallDisk.mounted(folder, size_mib=400) as disk:      # None where nothing can be mounted
    disk.fill(); …; disk.free()
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import CALL_SECONDS

NAME = "tenure-test-disk-"
CHUNK = b"\0" * (1024 * 1024)


class SmallDisk:
    """A small disk whose free space a test can fill and free again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """To the last byte."""
        size = len(CHUNK)
        with self._filler.open("ab", buffering=0) as filler:
            while size:
                try:
                    filler.write(CHUNK[:size])
                except OSError:
                    size //= 2

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    @classmethod
    @contextmanager
    def mounted(cls, folder: Path, size_mib: int) -> Iterator[SmallDisk | None]:
        """None where this process may not mount."""
        if sys.platform != "linux" or os.geteuid() != 0:
            yield None
            return
        _sweep()
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size_mib}m,mode=0755"
        mount = ["mount", "-t", "tmpfs", "-o", options, f"{NAME}{os.getpid()}", str(folder)]
        if subprocess.run(mount, capture_output=True, timeout=CALL_SECONDS, check=False).returncode != 0:
            yield None  # in a container without the right to
            return
        try:
            yield cls(folder)
        finally:
            _unmount(folder)


def _sweep() -> None:
    """Disks of test runs that were killed."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, folder, *_ = line.split()
        if source.startswith(NAME) and not Path("/proc", source.removeprefix(NAME)).exists():
            _unmount(Path(folder))


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], timeout=CALL_SECONDS, check=False)
