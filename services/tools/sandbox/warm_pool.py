"""Which places have a sandbox waiting in them, and making new ones when there is room.

A waiting sandbox belongs to a place and has its uid, so it is given to the next run in that place or to none: a place
in which a program runs has no sandbox waiting. One is made at a time, and not in the moment in which a program begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from services.tools.sandbox.limits import SandboxLimits, SandboxUnavailable
from services.tools.sandbox.mount_helper_client import MountHelperClient
from services.tools.sandbox.placement import Stage
from services.tools.sandbox.supervision import SandboxedProgram, WarmSandbox

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 60.0
# What is installed on the machine may change under an interpreter that waits.
_MAX_AGE_SECONDS = 900.0

Make = Callable[[int, SandboxLimits], Awaitable[WarmSandbox]]


def shape(limits: SandboxLimits) -> SandboxLimits:
    """What of the limits is decided when a sandbox is made; the rest is watched from outside while it runs."""
    usual = SandboxLimits()
    return replace(
        limits,
        wall_seconds=usual.wall_seconds,
        output_bytes=usual.output_bytes,
        workspace_bytes=usual.workspace_bytes,
        workspace_files=usual.workspace_files,
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`limits`: what it was made for. `until`: how long it is good, in the loop's time."""

    limits: SandboxLimits
    warm: WarmSandbox
    until: float


class WarmPool:
    """Keeps `count` sandboxes waiting, in free ones of `places`, made for the limits that the last run had.

    `make(place, limits)` starts one. A run with other limits than the one before starts cold.
    """

    def __init__(self, count: int, places: int, make: Make) -> None:
        self._count, self._make = min(count, places), make
        self._limits = shape(SandboxLimits())
        self._free = list(reversed(range(places)))  # the one that was left last is at the end
        self._occupied: Counter[int] = Counter()
        self._waiting: dict[int, _Waiting] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._changed, self._tried = asyncio.Event(), asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._failures = 0
        self.last_failure = ""

    def start(self, limits: SandboxLimits | None = None) -> None:
        """Begin to make them, for programs with these limits."""
        self._limits = shape(limits) if limits is not None else self._limits
        if self._count and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="keep sandboxes waiting")
            self._keeping.add_done_callback(_tell_failure)

    async def is_full(self) -> bool:
        """Wait until as many are waiting as may; False when the last attempt to make one failed (`last_failure`)."""
        while len(self._waiting) < self._count:
            if self._failures:
                return False
            self._tried.clear()
            await self._tried.wait()
        return True

    async def close(self) -> None:
        """End all that wait, and make no more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
            self._keeping = None
        if self._making is not None:
            await asyncio.wait({self._making})
        for place in list(self._waiting):
            self._end(place)
        self._count = 0
        if self._ending:
            await asyncio.wait(self._ending)

    def preferred(self, former: int | None) -> int | None:
        """The place to ask for: one with a sandbox waiting, best the `former` one of the same workspace."""
        if former in self._waiting or not self._waiting:
            return former
        return next(place for place in reversed(self._free) if place in self._waiting)

    def occupy(self, place: int, limits: SandboxLimits) -> WarmSandbox | None:
        """A run begins in this place; the sandbox that waited for it, which is the run's to close or release."""
        self._limits = shape(limits)
        self._occupied[place] += 1
        if place in self._free:
            self._free.remove(place)
        self._changed.set()
        if place not in self._waiting or self._is_useless(place):
            self._end(place)
            return None
        return self._waiting.pop(place).warm

    def vacate(self, place: int, *, retired: bool) -> None:
        """A run's end. Nothing is ever made in a retired place again."""
        self._occupied[place] -= 1
        if not self._occupied[place]:
            del self._occupied[place]
            if not retired:
                self._free.append(place)
                self._changed.set()

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            for useless in [place for place in self._waiting if self._is_useless(place)]:
                self._end(useless)
            place = self._next_place()
            if place is None:
                await self._until_something_changes()
                continue
            await asyncio.sleep(min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 4**self._failures))
            if place in self._free:
                # Not to be cancelled: a process that is just being started would be left to itself.
                self._making = asyncio.create_task(self._fill(place), name="start a sandbox ahead")
                await asyncio.shield(self._making)
                self._tried.set()

    async def _until_something_changes(self) -> None:
        """A place, the limits wanted, a sandbox that died or is too old."""
        oldest = min((waiting.until for waiting in self._waiting.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(oldest):
                await self._changed.wait()

    def _next_place(self) -> int | None:
        if len(self._waiting) >= self._count:
            return None
        return next((place for place in reversed(self._free) if place not in self._waiting), None)

    async def _fill(self, place: int) -> None:
        limits = self._limits
        try:
            warm = await self._make(place, limits)
        except (OSError, SandboxUnavailable) as error:
            self._failures += 1
            self.last_failure = str(error) or type(error).__name__
            log.warning("no sandbox could be started ahead of its program: %s", self.last_failure)
            return
        self._failures = 0
        self._waiting[place] = _Waiting(limits, warm, asyncio.get_running_loop().time() + _MAX_AGE_SECONDS)
        if place not in self._free:
            self._end(place)  # a run began there meanwhile
        else:
            warm.on_death(self._changed.set)

    def _is_useless(self, place: int) -> bool:
        waiting = self._waiting[place]
        is_old = asyncio.get_running_loop().time() >= waiting.until
        return is_old or waiting.limits != self._limits or not waiting.warm.is_alive

    def _end(self, place: int) -> None:
        """In a task of its own, which nobody cancels."""
        if place in self._waiting:
            ending = asyncio.create_task(self._waiting.pop(place).warm.close(), name="end a waiting sandbox")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


def _tell_failure(keeping: asyncio.Task[None]) -> None:
    """What nobody foresaw. Programs start cold from then on."""
    if not keeping.cancelled() and (error := keeping.exception()) is not None:
        log.error("no more sandboxes are started ahead of their programs", exc_info=error)


# Sandboxes that wait for programs: whose they are, what they are made with, and whether that works here.

ProgramOf = Callable[[int, SandboxLimits], SandboxedProgram]


class WarmStart:
    """The pool, the mount helper and the directory of the programs' files, made when they are first needed.

    `program_of(place, limits)` says how a program in this place is confined.
    """

    def __init__(self, count: int, places: int, program_of: ProgramOf, *, is_root: bool) -> None:
        self.pool = WarmPool(count, places, self._start_one)
        self._program_of, self._is_root = program_of, is_root
        self._mount_helper: MountHelperClient | None = None
        self._stage: Stage | None = None

    async def start(self, limits: SandboxLimits | None = None) -> str:
        """Begin, and wait until as many wait as shall; empty, or why there can be none here.

        `limits`: of the program that is to come, when they are known.
        """
        self.pool.start(limits)
        return "" if await self.pool.is_full() else self.pool.last_failure

    async def _start_one(self, place: int, limits: SandboxLimits) -> WarmSandbox:
        if self._stage is None:
            self._stage = Stage(names=())
        if self._mount_helper is not None and not self._mount_helper.is_alive:
            await self._dismiss_mount_helper()
        if self._mount_helper is None:
            self._mount_helper = await MountHelperClient.start(own_namespaces=not self._is_root)
        return await WarmSandbox.start(self._program_of(place, limits), self._mount_helper, self._stage.path)

    async def _dismiss_mount_helper(self) -> None:
        mount_helper, self._mount_helper = self._mount_helper, None
        if mount_helper is not None:
            await mount_helper.close()

    async def close(self) -> None:
        """End what waits, then what it was made with."""
        async with AsyncExitStack() as owned:
            if self._stage is not None:
                owned.callback(self._stage.remove)
                self._stage = None
            owned.push_async_callback(self._dismiss_mount_helper)
            owned.push_async_callback(self.pool.close)
