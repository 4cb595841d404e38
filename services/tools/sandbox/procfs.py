"""Reads /proc about other processes, which may end at any moment, and names what a service process creates."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

_PF_EXITING = 0x4


def stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat from field 3 (the state) on; None when there is no such process.

    The command name in field 2 may contain blanks and brackets, so the fields are counted from its last bracket.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot, or None. Pid and start identify a process."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields is not None else None


def is_ending(pid: int) -> bool:
    """Whether a process or thread has begun to end, or has ended."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def children_of(parent: int) -> list[int]:
    """Returns the pids of the process's present children."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if (fields := stat_fields(pid)) is not None and int(fields[1]) == parent]


def count_private_files(pid: int, path: str) -> int:
    """Returns the number of files in the file system that a process sees at `path`.

    Returns 0 while that file system is the host's, and when the process has ended.
    """
    for thread in threads_of(pid):  # the main thread may have ended; then its /proc entry has no root
        seen = Path(f"/proc/{pid}/task/{thread}/root{path}")
        try:
            if Path(path).exists() and seen.stat().st_dev == Path(path).stat().st_dev:
                return 0
            status = os.statvfs(seen)
        except OSError:
            continue
        return status.f_files - status.f_ffree
    return 0


def threads_of(pid: int) -> list[str]:
    """Returns the thread ids of a process as text; an empty list when the process has ended."""
    try:
        return [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


# The names of the cgroups and directories that a service process creates. They say whether the process is still alive.

PREFIX = "tenure-sandbox"
_NAME = re.compile(rf"{PREFIX}-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<started>\d+)(?:-.+)?")
_next_number = itertools.count(1)


def instance_name() -> str:
    """Returns the name of this process, which stays the same as long as it lives."""
    pid = os.getpid()
    return f"{PREFIX}-{_pid_namespace()}-{pid}-{start_ticks(pid)}"


def next_name() -> str:
    """Returns a new name that belongs to this process."""
    return f"{instance_name()}-{next(_next_number)}"


def is_orphan(name: str) -> bool:
    """Whether `name` belongs to a process of this pid namespace that has ended."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["namespace"]) != _pid_namespace():
        return False
    return start_ticks(int(match["pid"])) != int(match["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
