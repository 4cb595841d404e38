"""Measures unlinked files that a program keeps open or mapped. They use the disk, but a directory walk misses them."""

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
"""The most descriptors and mappings that one scan reads, of all threads: more than 32 threads with 256 files have."""
_MAX_PROCESSES: Final = 4096
_IN_FLIGHT: Final = "scm_fds:"


@dataclass(frozen=True, slots=True)
class UnlinkedFiles:
    """The result of a scan.

    `disk_bytes`: the disk space of the unlinked files. `in_flight`: the number of descriptors in the queues of sockets.
    The kernel does not report what these descriptors refer to; they may be sockets with further descriptors in their
    queues. `complete`: the scan saw every process, descriptor and mapping.
    """

    disk_bytes: int
    in_flight: int
    complete: bool


NO_UNLINKED_FILES: Final = UnlinkedFiles(0, 0, complete=True)


def unlinked_files_of(init_pid: int, device: int) -> UnlinkedFiles:
    """Measures the unlinked files on this device that the process and its descendants hold. Blocks.

    Does not count a process that ends during the scan. The scan is incomplete when it reaches MAX_UNLINKED, or when a
    process denies access to a service that is not root: the process asked the kernel for that (PR_SET_DUMPABLE), or it
    runs a program file without read permission.
    """
    scan = _Scan(device)
    for pid in _descendants(init_pid):
        scan.add_process(pid)
        if scan.remaining <= 0:
            break
    complete = scan.remaining > 0 and not scan.was_denied
    return UnlinkedFiles(sum(scan.files.values()), sum(scan.in_flight.values()), complete)


class _Scan:
    def __init__(self, device: int) -> None:
        self._device = device
        self.remaining = MAX_UNLINKED
        self.was_denied = False
        self.files: dict[int, int] = {}
        self.in_flight: dict[int, int] = {}

    def add_process(self, pid: int) -> None:
        """Adds the files of a process.

        Reads each thread: a thread may have a descriptor table of its own, and a first thread that has exited shows no
        descriptors and no mappings.
        """
        threads = _names(f"/proc/{pid}/task")
        for thread in threads:
            self._add_entries(thread, "fd")
        if os.geteuid() == 0:  # only root can read map_files
            # All threads share one memory, so the first thread that shows mappings is enough.
            any(self._add_entries(thread, "map_files") for thread in threads)

    def _add_entries(self, thread: str, kind: str) -> int:
        """Adds the descriptors or mappings of a thread and returns their number."""
        before = self.remaining
        try:
            for name in _names(f"/proc/{thread}/{kind}", self.remaining):
                self.remaining -= 1
                self._add_entry(thread, kind, name)
        except PermissionError:
            # Not a denial: the kernel hides an exiting thread from every process, and a container may withhold the
            # capability from root.
            self.was_denied |= os.geteuid() != 0 and not is_ending(int(thread))
        return before - self.remaining

    def _add_entry(self, thread: str, kind: str, name: str) -> None:
        with _ignoring_vanished():
            status = Path(f"/proc/{thread}/{kind}/{name}").stat()
            if stat.S_ISSOCK(status.st_mode):
                self.in_flight[status.st_ino] = _in_flight(thread, name)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == self._device:
                self.files[status.st_ino] = status.st_blocks * 512


def _in_flight(thread: str, descriptor: str) -> int:
    """Returns the number of descriptors in a socket's queue; 0 before Linux 5.6, which does not report it."""
    lines = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return next((int(line.removeprefix(_IN_FLIGHT)) for line in lines if line.startswith(_IN_FLIGHT)), 0)


def _descendants(pid: int) -> Iterator[int]:
    """Yields the process, then its descendants; orphans are included as children of the namespace's first process."""
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
    """Returns up to `most` names in the directory; none when the directory no longer exists. Raises PermissionError."""
    names: list[str] = []
    with _ignoring_vanished(), os.scandir(directory) as entries:
        names += [entry.name for entry in islice(entries, most)]
    return names


@contextmanager
def _ignoring_vanished() -> Iterator[None]:
    """Ignores OSError: the descriptor was closed or the process ended meanwhile. Raises PermissionError, a denial."""
    try:
        yield
    except PermissionError:
        raise
    except OSError:
        return
