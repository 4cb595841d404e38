"""The identity of a process on its machine, and whether such a process is dead. Only on Linux."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.tools.sandbox.procfs import start_ticks, stat_fields

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES: Final = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/time"))
_DEAD_STATES: Final = "ZX"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process.

    `pid` and `start_ticks` are unique within one boot and the same `namespaces`; `boot_id` identifies the boot,
    `machine_id` the machine ("": the operator did not name it).
    """

    machine_id: str
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int


def own_identity(machine_id: str = "") -> ProcessIdentity | None:
    """Returns the identity of this process, or None where it cannot be known.

    `machine_id` comes from the operator. The system's own machine id is copied with disks and images, and a living
    machine would count as an earlier boot of its clone.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        # In the /proc of another PID namespace, the same pids belong to other processes.
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return None
        namespaces = [str(link.readlink()) for link in _NAMESPACES if link.is_symlink()]
        boot_id, ticks = _BOOT_ID.read_text().strip(), start_ticks(os.getpid())
    except OSError:
        return None
    if not boot_id or ticks is None:
        return None
    return ProcessIdentity(machine_id, boot_id, " ".join(namespaces), os.getpid(), ticks)


def is_dead(pid: int, ticks: int) -> bool:
    """Whether a process of the same boot and namespaces is gone, with all its threads. A frozen process is not dead."""
    try:
        with suppress(PermissionError):  # another user's process has this pid: this one, or a later one
            os.kill(pid, 0)  # before /proc, which may hide the processes of other users
    except ProcessLookupError:
        return True
    fields = stat_fields(pid)
    if fields is None:
        return False
    return int(fields[19]) != ticks or (fields[0] in _DEAD_STATES and not _has_live_threads(pid))


def uptime_seconds() -> float:
    """Returns the seconds since this boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _has_live_threads(pid: int) -> bool:
    """Whether a zombie has live threads: a thread inside a write dies only when the kernel has finished it."""
    for stat in Path(f"/proc/{pid}/task").glob("[0-9]*/stat"):
        with suppress(OSError):  # the thread has ended
            if stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] not in _DEAD_STATES:
                return True
    return False
