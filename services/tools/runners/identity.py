"""Who a process is on its machine, and whether another one there is dead: as Linux tells it. Elsewhere nobody knows."""

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
    """`pid` and `start_ticks` tell processes apart within one boot and the same `namespaces`, boots are told apart by
    `boot_id`, machines by `machine_id` ("": nobody said it).
    """

    machine_id: str
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int


def own_identity(machine_id: str = "") -> ProcessIdentity | None:
    """Of this process; None where that cannot be known.

    `machine_id`: as the operator says it. What the system says is copied with disks and images, and a living machine
    would count as an earlier boot of its clone.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        # Another namespace's /proc would tell of other processes under our numbers.
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
    """Whether that process of the same boot and namespaces is gone, with all its threads. One that is frozen is not."""
    try:
        with suppress(PermissionError):  # somebody else's: it is there, or another one is by now
            os.kill(pid, 0)  # asked first: /proc may hide the processes of others
    except ProcessLookupError:
        return True
    fields = stat_fields(pid)
    if fields is None:
        return False
    return int(fields[19]) != ticks or (fields[0] in _DEAD_STATES and not _has_live_threads(pid))


def uptime_seconds() -> float:
    """Since this boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _has_live_threads(pid: int) -> bool:
    """Of a zombie: a thread in the middle of a write dies when the kernel is done with it, and not before."""
    for stat in Path(f"/proc/{pid}/task").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] not in _DEAD_STATES:
                return True
    return False
