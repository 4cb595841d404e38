"""Processor time and memory of a stack's processes by kind, while some of them are killed and replaced."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from bench.cpu import AVAILABLE, cpu_seconds
from bench.memory import memory_kib
from devstack import Stack

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
