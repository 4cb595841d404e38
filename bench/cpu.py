"""Processor time by process, read from /proc. Without /proc (macOS) there are no figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
AVAILABLE: Final = (_PROC / "self" / "stat").exists()


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process and of all its children, live and ended, in seconds."""
    ticks = sum(sum(_ticks(process)) for process in (pid, *children(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class CpuMeter:
    """Measures the processor time of each process since the last `start`; `own` is the name of this process.

    Children count with their parent, such as those of Postgres. Children of this process do not count with it: they
    are in `pids`.
    """

    pids: Mapping[str, int]
    own: str
    _began: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Starts to count."""
        self._began = self._read()

    def used_seconds(self) -> dict[str, float]:
        """Returns the seconds by name since `start`; empty without /proc."""
        now = self._read()
        return {name: now[name] - self._began[name] for name in now}

    def _read(self) -> dict[str, float]:
        if not AVAILABLE:
            return {}
        own_times = os.times()
        return {
            self.own: own_times.user + own_times.system,
            **{name: cpu_seconds(pid) for name, pid in self.pids.items()},
        }


def _ticks(pid: int) -> tuple[int, int, int, int]:
    """Returns utime, stime, cutime and cstime of a process; zeros if it has ended.

    The name before these fields may contain spaces and brackets.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0, 0, 0
    user, system, children_user, children_system = (int(part) for part in stat.rpartition(")")[2].split()[11:15])
    return user, system, children_user, children_system


def children(pid: int) -> list[int]:
    """Returns the children that any thread of the process started."""
    children: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return children
