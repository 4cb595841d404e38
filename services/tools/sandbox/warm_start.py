"""Sandboxes that wait for programs: whose they are, what they are made with, and whether that works here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from services.tools.sandbox.attaching import Attacher
from services.tools.sandbox.limits import SandboxLimits
from services.tools.sandbox.placement import Stage
from services.tools.sandbox.supervision import Program
from services.tools.sandbox.warm import WarmSandbox
from services.tools.sandbox.warm_pool import WarmPool

ProgramOf = Callable[[int, SandboxLimits], Program]


class WarmStart:
    """The pool, the attacher and the directory of the programs' files, made when they are first needed.

    `program_of(place, limits)` says how a program in this place is confined.
    """

    def __init__(self, count: int, places: int, program_of: ProgramOf, *, is_root: bool) -> None:
        self.pool = WarmPool(count, places, self._start_one)
        self._program_of, self._is_root = program_of, is_root
        self._attacher: Attacher | None = None
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
        if self._attacher is not None and not self._attacher.is_alive:
            await self._dismiss_attacher()
        if self._attacher is None:
            self._attacher = await Attacher.start(own_namespaces=not self._is_root)
        return await WarmSandbox.start(self._program_of(place, limits), self._attacher, self._stage.path)

    async def _dismiss_attacher(self) -> None:
        attacher, self._attacher = self._attacher, None
        if attacher is not None:
            await attacher.close()

    async def close(self) -> None:
        """End what waits, then what it was made with."""
        async with AsyncExitStack() as owned:
            if self._stage is not None:
                owned.callback(self._stage.remove)
                self._stage = None
            owned.push_async_callback(self._dismiss_attacher)
            owned.push_async_callback(self.pool.close)
