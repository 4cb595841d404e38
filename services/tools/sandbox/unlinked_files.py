"""Files that a program keeps without a name: they take up the disk, and no walk through the workspace finds them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from services.tools.sandbox.procfs import is_ending

MAX_UNLINKED: Final = 20_000
"""Descriptors and mappings of all threads that one look takes in: more than 32 threads of 256 files each have."""
_MAX_PROCESSES: Final = 4096
_IN_FLIGHT: Final = "scm_fds:"


@dataclass(frozen=True, slots=True)
class UnlinkedFiles:
    """`in_flight`: descriptors on their way through a socket; of what, nobody can tell: they may be sockets on whose
    way are more. `complete`: all was seen.
    """

    disk_bytes: int
    in_flight: int
    complete: bool


NO_UNLINKED_FILES: Final = UnlinkedFiles(0, 0, complete=True)


def unlinked_files_of(init_pid: int, device: int) -> UnlinkedFiles:
    """What the process and its descendants hold of nameless files on this device. Blocks.

    What ends meanwhile is not counted. All was not seen where a process keeps the service, which is no root, from
    looking into it: it asked the kernel for that, or runs a program that nobody may read.
    """
    look = _Look(device)
    for pid in _descendants(init_pid):
        look.process(pid)
        if look.left <= 0:
            break
    complete = look.left > 0 and not look.is_kept_out
    return UnlinkedFiles(sum(look.files.values()), sum(look.in_flight.values()), complete)


class _Look:
    def __init__(self, device: int) -> None:
        self._device = device
        self.left = MAX_UNLINKED
        self.is_kept_out = False
        self.files: dict[int, int] = {}
        self.in_flight: dict[int, int] = {}

    def process(self, pid: int) -> None:
        """By its threads: each may have a table of its own, and a first thread that ended has nothing any more."""
        threads = _names(f"/proc/{pid}/task")
        for thread in threads:
            self._entries(thread, "fd")
        if os.geteuid() == 0:  # nobody else can look at what is mapped only
            any(self._entries(thread, "map_files") for thread in threads)  # one that is left has the memory of all

    def _entries(self, thread: str, kind: str) -> int:
        before = self.left
        try:
            for name in _names(f"/proc/{thread}/{kind}", self.left):
                self.left -= 1
                self._entry(thread, kind, name)
        except PermissionError:
            # Nobody sees into a thread that ends, and root into none where a container withholds the right to.
            self.is_kept_out |= os.geteuid() != 0 and not is_ending(int(thread))
        return before - self.left

    def _entry(self, thread: str, kind: str, name: str) -> None:
        with _what_may_be_gone():
            status = Path(f"/proc/{thread}/{kind}/{name}").stat()
            if stat.S_ISSOCK(status.st_mode):
                self.in_flight[status.st_ino] = _in_flight(thread, name)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == self._device:
                self.files[status.st_ino] = status.st_blocks * 512


def _in_flight(thread: str, descriptor: str) -> int:
    """Descriptors in a socket's queue; a kernel that does not say so (before Linux 5.6) counts none."""
    lines = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return next((int(line.removeprefix(_IN_FLIGHT)) for line in lines if line.startswith(_IN_FLIGHT)), 0)


def _descendants(pid: int) -> Iterator[int]:
    """The process first. Orphans are children of a namespace's first process, so that none is missing."""
    pending, seen = [pid], 0
    while pending and seen < _MAX_PROCESSES:
        current = pending.pop()
        seen += 1
        yield current
        for thread in _names(f"/proc/{current}/task"):
            with suppress(OSError):
                children = Path(f"/proc/{current}/task/{thread}/children").read_text(encoding="ascii")
                pending += map(int, children.split())


def _names(directory: str, most: int | None = None) -> list[str]:
    """None when it is gone. Raises PermissionError."""
    names: list[str] = []
    with _what_may_be_gone(), os.scandir(directory) as entries:
        names += [entry.name for entry in islice(entries, most)]
    return names


@contextmanager
def _what_may_be_gone() -> Iterator[None]:
    """Closed, or ended, meanwhile. Raises PermissionError, which tells something else."""
    try:
        yield
    except PermissionError:
        raise
    except OSError:
        return
