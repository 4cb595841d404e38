"""Reading what /proc says about other processes, any of which may be gone the next moment."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

_PF_EXITING = 0x4


def stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat from field 3 (the state) on; None when there is no such process.

    The command name before it may itself hold blanks and brackets, so fields are counted from its end.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """When a process was started: with its pid, its identity."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields is not None else None


def is_ending(pid: int) -> bool:
    """Whether a process or thread has begun to end, or is gone."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def children_of(parent: int) -> list[int]:
    """The processes whose parent it is now."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if (fields := stat_fields(pid)) is not None and int(fields[1]) == parent]


def count_private_files(pid: int, place: str) -> int:
    """How many files the file system holds that a process sees at `place`; 0 while that is the host's own."""
    for thread in threads_of(pid):  # the first one may have ended, and then has no root any more
        seen = Path(f"/proc/{pid}/task/{thread}/root{place}")
        try:
            if Path(place).exists() and seen.stat().st_dev == Path(place).stat().st_dev:
                return 0
            counted = os.statvfs(seen)
        except OSError:
            continue
        return counted.f_files - counted.f_ffree
    return 0


def threads_of(pid: int) -> list[str]:
    """Their numbers; none when the process is gone."""
    try:
        return [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


# The name under which a service process leaves things on the machine, and whether that process is still alive.

PREFIX = "tenure-sandbox"
_NAME = re.compile(rf"{PREFIX}-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<started>\d+)(?:-.+)?")
_numbers = itertools.count(1)


def instance_name() -> str:
    """The name of this process, the same for its whole life."""
    pid = os.getpid()
    return f"{PREFIX}-{_pid_namespace()}-{pid}-{start_ticks(pid)}"


def next_name() -> str:
    """A fresh name that belongs to this process."""
    return f"{instance_name()}-{next(_numbers)}"


def is_orphan(name: str) -> bool:
    """Whether `name` was given by a process of this pid namespace that is gone."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["namespace"]) != _pid_namespace():
        return False
    return start_ticks(int(match["pid"])) != int(match["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
