"""Processor time by process, read from /proc. Where there is none (macOS), nothing is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
AVAILABLE: Final = (_PROC / "self" / "stat").exists()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its children that live, and of those that have ended."""
    ticks = sum(sum(_ticks(one)) for one in (pid, *_children(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class CpuMeter:
    """What each process used since the last `start`, and what we used ourselves under the name `own`.

    Children count with their parent, as those of Postgres; our own are in the list.
    """

    pids: Mapping[str, int]
    own: str
    _began: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Count from here."""
        self._began = self._read()

    def used_seconds(self) -> dict[str, float]:
        """By name, since `start`; empty where it cannot be known."""
        now = self._read()
        return {name: now[name] - self._began[name] for name in now}

    def _read(self) -> dict[str, float]:
        if not AVAILABLE:
            return {}
        ours = os.times()
        return {self.own: ours.user + ours.system, **{name: cpu_seconds(pid) for name, pid in self.pids.items()}}


def _ticks(pid: int) -> tuple[int, int, int, int]:
    """utime, stime, cutime, cstime; zeros when it is gone. The name before them may hold spaces and brackets."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0, 0, 0
    user, system, children_user, children_system = (int(part) for part in stat.rpartition(")")[2].split()[11:15])
    return user, system, children_user, children_system


def _children(pid: int) -> list[int]:
    """Those of all its threads."""
    children: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return children
