"""Files that a program keeps without a name: they take up the disk, and no walk through the workspace finds them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_HELD = ("fd", "map_files")  # open, or only mapped into memory; the latter can be seen by a service that is root
_MOST_PROCESSES = 4096


def hidden_bytes(init_pid: int, device: int) -> int:
    """Disk space of nameless files on this device that the process and its descendants hold. Blocks.

    What ends meanwhile is not counted. A process that the service may not look into counts as holding nothing.
    """
    found: dict[int, int] = {}
    for pid in _descendants(init_pid):
        for held in _HELD:
            for status in _files(f"/proc/{pid}/{held}"):
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == device:
                    found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _descendants(pid: int) -> Iterator[int]:
    """The process first. Orphans are children of a namespace's first process, so that none is missing."""
    pending, seen = [pid], 0
    while pending and seen < _MOST_PROCESSES:
        current = pending.pop()
        seen += 1
        yield current
        for thread in _names(f"/proc/{current}/task"):
            with suppress(OSError):
                children = Path(f"/proc/{current}/task/{thread}/children").read_text(encoding="ascii")
                pending += map(int, children.split())


def _files(directory: str) -> Iterator[os.stat_result]:
    for name in _names(directory):
        with suppress(OSError):
            yield Path(directory, name).stat()


def _names(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []
