"""The pool of warm sandboxes: sandboxes that start before their programs are known.

A warm sandbox belongs to a slot and has the slot's uid. The pool therefore gives it to the next run in that slot or
ends it: a slot in which a program runs has no warm sandbox. The pool starts one sandbox at a time, after a short pause,
so that the start does not compete with the start of a program.
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
# The files of the interpreter on this machine may change while a warm sandbox waits, for example by an update.
_MAX_AGE_SECONDS = 900.0

StartSandbox = Callable[[int, SandboxLimits], Awaitable[WarmSandbox]]


def shape(limits: SandboxLimits) -> SandboxLimits:
    """Returns the limits that a sandbox fixes at its start; the other limits have their default values.

    The service enforces these other limits from outside while the program runs, so a warm sandbox fits any of them.
    """
    defaults = SandboxLimits()
    return replace(
        limits,
        wall_seconds=defaults.wall_seconds,
        output_bytes=defaults.output_bytes,
        workspace_bytes=defaults.workspace_bytes,
        workspace_files=defaults.workspace_files,
    )


@dataclass(frozen=True, slots=True)
class _PooledSandbox:
    """A warm sandbox with the limits that it was started for. `expires_at`: in seconds of the event loop's clock."""

    limits: SandboxLimits
    warm: WarmSandbox
    expires_at: float


class WarmPool:
    """Keeps `count` warm sandboxes in free slots, started for the limits of the last run.

    The slots are 0 to `slot_count - 1`. `start_sandbox(slot, limits)` starts a sandbox. A run whose limits differ from
    those of the previous run starts cold.
    """

    def __init__(self, count: int, slot_count: int, start_sandbox: StartSandbox) -> None:
        self._count, self._start_sandbox = min(count, slot_count), start_sandbox
        self._limits = shape(SandboxLimits())
        self._free = list(reversed(range(slot_count)))  # the slot that became free last is at the end
        self._occupied: Counter[int] = Counter()
        self._pooled: dict[int, _PooledSandbox] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._changed, self._start_tried = asyncio.Event(), asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._failures = 0
        self.last_failure = ""

    def start(self, limits: SandboxLimits | None = None) -> None:
        """Begins to fill the pool in the background. Idempotent.

        `limits`: of the next program. None: the limits of the last run, or the default ones before the first run.
        """
        self._limits = shape(limits) if limits is not None else self._limits
        if self._count and self._filling is None:
            self._filling = asyncio.create_task(self._keep_full(), name="keep sandboxes waiting")
            self._filling.add_done_callback(_log_failure)

    async def is_full(self) -> bool:
        """Waits until the pool is full. Returns False when the last start of a sandbox failed; see `last_failure`."""
        while len(self._pooled) < self._count:
            if self._failures:
                return False
            self._start_tried.clear()
            await self._start_tried.wait()
        return True

    async def close(self) -> None:
        """Ends all warm sandboxes, and starts no more."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})
            self._filling = None
        if self._starting is not None:
            await asyncio.wait({self._starting})
        for slot in list(self._pooled):
            self._end(slot)
        self._count = 0
        if self._ending:
            await asyncio.wait(self._ending)

    def preferred(self, former: int | None) -> int | None:
        """Returns a slot with a warm sandbox, if possible `former`, the slot whose uid owns the run's workspace.

        Returns `former` when there is no warm sandbox.
        """
        if former in self._pooled or not self._pooled:
            return former
        return next(slot for slot in reversed(self._free) if slot in self._pooled)

    def occupy(self, slot: int, limits: SandboxLimits) -> WarmSandbox | None:
        """Marks the slot as occupied by a run. Returns its warm sandbox, if it has one that fits `limits`, or None.

        The caller must close or release that sandbox.
        """
        self._limits = shape(limits)
        self._occupied[slot] += 1
        if slot in self._free:
            self._free.remove(slot)
        self._changed.set()
        if slot not in self._pooled or self._is_outdated(slot):
            self._end(slot)
            return None
        return self._pooled.pop(slot).warm

    def vacate(self, slot: int, *, retired: bool) -> None:
        """Marks the end of a run in the slot. A retired slot never gets a sandbox again."""
        self._occupied[slot] -= 1
        if not self._occupied[slot]:
            del self._occupied[slot]
            if not retired:
                self._free.append(slot)
                self._changed.set()

    async def _keep_full(self) -> None:
        while True:
            self._changed.clear()
            for outdated in [slot for slot in self._pooled if self._is_outdated(slot)]:
                self._end(outdated)
            slot = self._next_slot()
            if slot is None:
                await self._wait_for_change()
                continue
            await asyncio.sleep(min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 4**self._failures))
            if slot in self._free:
                # Shielded: a cancellation in the middle of a start would leave a process without an owner.
                self._starting = asyncio.create_task(self._fill(slot), name="start a sandbox ahead")
                await asyncio.shield(self._starting)
                self._start_tried.set()

    async def _wait_for_change(self) -> None:
        """Waits until a slot or the limits change, or a warm sandbox dies or expires."""
        next_expiry = min((pooled.expires_at for pooled in self._pooled.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_expiry):
                await self._changed.wait()

    def _next_slot(self) -> int | None:
        if len(self._pooled) >= self._count:
            return None
        return next((slot for slot in reversed(self._free) if slot not in self._pooled), None)

    async def _fill(self, slot: int) -> None:
        limits = self._limits
        try:
            warm = await self._start_sandbox(slot, limits)
        except (OSError, SandboxUnavailable) as error:
            self._failures += 1
            self.last_failure = str(error) or type(error).__name__
            log.warning("no sandbox could be started ahead of its program: %s", self.last_failure)
            return
        self._failures = 0
        expires_at = asyncio.get_running_loop().time() + _MAX_AGE_SECONDS
        self._pooled[slot] = _PooledSandbox(limits, warm, expires_at)
        if slot not in self._free:
            self._end(slot)  # a run began in the slot meanwhile
        else:
            warm.on_death(self._changed.set)

    def _is_outdated(self, slot: int) -> bool:
        pooled = self._pooled[slot]
        is_expired = asyncio.get_running_loop().time() >= pooled.expires_at
        return is_expired or pooled.limits != self._limits or not pooled.warm.is_alive

    def _end(self, slot: int) -> None:
        """Ends the slot's warm sandbox, if any, in a separate task that is never cancelled."""
        if slot in self._pooled:
            ending = asyncio.create_task(self._pooled.pop(slot).warm.close(), name="end a waiting sandbox")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


def _log_failure(filling: asyncio.Task[None]) -> None:
    """Logs an unexpected error that ended the filling of the pool. All programs start cold from then on."""
    if not filling.cancelled() and (error := filling.exception()) is not None:
        log.error("no more sandboxes are started ahead of their programs", exc_info=error)


ProgramOf = Callable[[int, SandboxLimits], SandboxedProgram]


class WarmStart:
    """Owns the pool, the mount helper and the directory of the programs' files; creates the last two on first use.

    `program_of(slot, limits)` returns the confinement of a program in this slot.
    """

    def __init__(self, count: int, slot_count: int, program_of: ProgramOf, *, is_root: bool) -> None:
        self.pool = WarmPool(count, slot_count, self._start_one)
        self._program_of, self._is_root = program_of, is_root
        self._mount_helper: MountHelperClient | None = None
        self._stage: Stage | None = None

    async def start(self, limits: SandboxLimits | None = None) -> str:
        """Fills the pool and waits until it is full. Returns "", or why no sandbox can be warm on this machine.

        `limits`: the limits of the next program, if they are known.
        """
        self.pool.start(limits)
        return "" if await self.pool.is_full() else self.pool.last_failure

    async def _start_one(self, slot: int, limits: SandboxLimits) -> WarmSandbox:
        if self._stage is None:
            self._stage = Stage(names=())
        if self._mount_helper is not None and not self._mount_helper.is_alive:
            await self._dismiss_mount_helper()
        if self._mount_helper is None:
            self._mount_helper = await MountHelperClient.start(own_namespaces=not self._is_root)
        return await WarmSandbox.start(self._program_of(slot, limits), self._mount_helper, self._stage.path)

    async def _dismiss_mount_helper(self) -> None:
        mount_helper, self._mount_helper = self._mount_helper, None
        if mount_helper is not None:
            await mount_helper.close()

    async def close(self) -> None:
        """Ends the warm sandboxes, then the mount helper, then removes the directory."""
        async with AsyncExitStack() as owned:
            if self._stage is not None:
                owned.callback(self._stage.remove)
                self._stage = None
            owned.push_async_callback(self._dismiss_mount_helper)
            owned.push_async_callback(self.pool.close)
