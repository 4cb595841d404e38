"""Starts again what dies, as a supervisor would, and writes down who died and whether that was wanted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from devstack.child_process import ChildProcess, ServiceDied

LOOK_SECONDS: Final = 0.05
AGAIN_SECONDS: Final = 0.5
READY_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """`armed`: the failpoints it was running with. `served`: it had got so far."""

    name: str
    exit_code: int
    armed: str
    served: bool
    was_intended: bool

    @property
    def by_failpoint(self) -> bool:
        return not self.was_intended and self.exit_code == -signal.SIGKILL and "kill9" in self.armed

    @property
    def surprising(self) -> bool:
        """It ended by itself while it should have worked: with a code, or by a signal of another process."""
        return self.served and not self.was_intended and not self.by_failpoint

    def __str__(self) -> str:
        return f"{self.name} ended with {self.exit_code}" + (f", armed with {self.armed}" if self.armed else "")


@dataclass(slots=True)
class _Kept:
    process: ChildProcess
    armed: str = ""
    arm_next: str = ""
    down_until: float = 0.0
    was_intended: bool = False
    served: bool = True


@dataclass(slots=True)
class Keeper:
    """`run` is its duty. A fault that ends a process says so before, by `expect_death`."""

    processes: Mapping[str, ChildProcess]
    deaths: list[ProcessExit] = field(default_factory=list)
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = {name: _Kept(process) for name, process in self.processes.items()}

    def expect_death(self, name: str, *, down_seconds: float = 0.0, armed: str = "") -> ChildProcess:
        """The next death of this one is ours; it comes back after a while, with these failpoints."""
        kept = self._kept[name]
        kept.was_intended, kept.down_until, kept.arm_next = True, time.monotonic() + down_seconds, armed
        return kept.process

    async def died_armed(self, name: str, armed: str, since: int, within_seconds: float) -> bool:
        """Waits until it died at one of these failpoints, after the first `since` deaths; whether it did."""
        ends_at = time.monotonic() + within_seconds
        while time.monotonic() < ends_at:
            if any(one.name == name and one.armed == armed and one.by_failpoint for one in self.deaths[since:]):
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def serves_or_died(self, name: str, since: int, within_seconds: float = READY_SECONDS) -> None:
        """Waits until this one, ended and started again, either serves or has ended once more; or for so long."""
        kept, ends_at = self._kept[name], time.monotonic() + within_seconds
        while time.monotonic() < ends_at:
            deaths = [one for one in self.deaths[since:] if one.name == name]
            if len(deaths) > 1 or (deaths and kept.served):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def armed(self) -> list[str]:
        """Those that still run with failpoints, or are about to."""
        return [name for name, kept in self._kept.items() if kept.armed or kept.arm_next]

    def hasten(self) -> None:
        """All stopped processes are started now, with no failpoints."""
        for kept in self._kept.values():
            kept.down_until, kept.arm_next = 0.0, ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as keepers:
            for name, kept in self._kept.items():
                keepers.create_task(self._keep(name, kept))

    async def all_serve(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Waits until every process answers. Raises TimeoutError, naming who does not."""
        ends_at = time.monotonic() + timeout_seconds
        waiting = dict(self._kept)
        while waiting:
            for name, kept in list(waiting.items()):
                if kept.process.exit_code is None and kept.served and await kept.process.serves():
                    del waiting[name]
            if waiting and time.monotonic() > ends_at:
                raise TimeoutError(f"{', '.join(waiting)}: not serving {timeout_seconds:g} s after all was mended")
            await asyncio.sleep(LOOK_SECONDS)

    async def _keep(self, name: str, kept: _Kept) -> None:
        while True:
            if kept.process.exit_code is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            self.deaths.append(ProcessExit(name, kept.process.exit_code, kept.armed, kept.served, kept.was_intended))
            if not kept.served and not kept.was_intended:
                await asyncio.sleep(AGAIN_SECONDS)  # what it needs is away just now
            while time.monotonic() < kept.down_until:
                await asyncio.sleep(LOOK_SECONDS)
            kept.armed, kept.arm_next, kept.was_intended, kept.served = kept.arm_next, "", False, False
            kept.process.start({"TENURE_FAILPOINTS": kept.armed} if kept.armed else None)
            kept.served = await self._came_up(kept)

    async def _came_up(self, kept: _Kept) -> bool:
        """False: it has ended again, which is seen next."""
        while kept.process.exit_code is None:
            try:
                await kept.process.wait_ready(READY_SECONDS)
            except ServiceDied:
                continue  # it ended, or is slow because what it needs is away
            return True
        return False
