"""Processor time and memory of processes, read from /proc. Without /proc (macOS) there are no figures."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devstack import Stack

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


def memory_kib(pid: int) -> int:
    """Returns the proportional set size of a process and its children in KiB: a shared page counts once in all.

    0 for a process that has ended.
    """
    return sum(_proportional_kib(process) for process in (pid, *children(pid)))


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


SAMPLE_SECONDS: Final = 1.0


def pids_by_kind(stack: Stack) -> dict[str, list[int]]:
    """Returns the ids of the running processes: of `worker` (all together), of each service, and of the stores."""
    pids: dict[str, list[int]] = defaultdict(list)
    for child in stack.children():
        if child.exit_code is None:
            pids["worker" if child in stack.workers else child.name].append(child.pid)
    if stack.postgres is not None and stack.postgres.pid is not None:
        pids["Postgres"].append(stack.postgres.pid)
    if stack.etcd is not None:
        pids["etcd"].append(stack.etcd.pid)
    return pids


def memory_by_kind(stack: Stack) -> dict[str, int]:
    """Returns the memory by kind in KiB; empty without /proc."""
    if not AVAILABLE:
        return {}
    return {kind: sum(map(memory_kib, pids)) for kind, pids in pids_by_kind(stack).items()}


@dataclass(slots=True)
class ProcessUse:
    """Samples the processor time each second, because a killed process cannot be asked afterwards.

    So up to a second of each killed process is missing. A process that starts later counts from its start.
    """

    stack: Stack
    _first: dict[tuple[str, int], float] = field(default_factory=dict)
    _last: dict[tuple[str, int], float] = field(default_factory=dict)

    def start(self) -> None:
        """Begins to count."""
        self._first = self._last = self._read()

    async def sample(self) -> None:
        """Samples until it is cancelled."""
        while True:
            self._last = {**self._last, **self._read()}
            await asyncio.sleep(SAMPLE_SECONDS)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds by kind since `start`."""
        self._last = {**self._last, **self._read()}
        used: dict[str, float] = defaultdict(float)
        for (kind, pid), value in self._last.items():
            used[kind] += value - self._first.get((kind, pid), 0.0)
        return used

    def _read(self) -> dict[tuple[str, int], float]:
        if not AVAILABLE:
            return {}
        return {(kind, pid): cpu_seconds(pid) for kind, pids in pids_by_kind(self.stack).items() for pid in pids}
