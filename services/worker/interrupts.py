"""How a task's work is interrupted in good order: only while it waits, never inside a commit.

Losing the claim is different: that is a cancellation of the whole coroutine, since nothing it writes counts any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import IntEnum
from time import monotonic
from typing import Any, TypeVar

from tenure.domain.fencing import TrustWindow
from tenure.runtime.failpoints import failpoint_enabled

_Result = TypeVar("_Result")


class Interruption(IntEnum):
    """Why the work stops. A higher one outranks a lower one."""

    LATE = 1  # a step took too long: leave the task as its policy says
    DRAIN = 2  # the process ends: give the task back
    END = 3  # somebody asked for the task's end, or its deadline passed: close it out


class Interrupted(Exception):  # noqa: N818  it is news to act on, not an error
    """The work was stopped. `kind` says what to do now, `message` why."""

    def __init__(self, kind: Interruption, message: str = "") -> None:
        super().__init__(kind.name)
        self.kind, self.message = kind, message


class Interrupts:
    """One task's interruptions. An END outranks a DRAIN: who drains closes what is to be closed first."""

    def __init__(self) -> None:
        self._kind: Interruption | None = None
        self._message = ""
        self._set = asyncio.Event()

    @property
    def ending(self) -> bool:
        """Whether the task's end was asked for."""
        return self._kind is Interruption.END

    def request(self, kind: Interruption, message: str = "") -> None:
        """Interrupt the work at its next wait, or in the one it is in."""
        if self._kind is None or self._kind < kind:
            self._kind, self._message = kind, message
        self._set.set()

    def withdraw(self, kind: Interruption) -> None:
        """Take a request back that the work has not met, and that holds no more."""
        if self._kind is kind:
            self._kind, self._message = None, ""
            self._set.clear()

    def check(self) -> None:
        """Raises Interrupted when something was requested."""
        if self._kind is not None:
            raise Interrupted(self._kind, self._message)

    async def guard(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of `work`; when an interruption comes first, `work` is cancelled and Interrupted raised."""
        if self._kind is not None:
            work.close()
            raise Interrupted(self._kind, self._message)
        working = asyncio.create_task(work)
        interrupted = asyncio.create_task(self._set.wait())
        try:
            await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            interrupted.cancel()
            working.cancel()
            await asyncio.gather(working, interrupted, return_exceptions=True)
        assert self._kind is not None
        raise Interrupted(self._kind, self._message)

    async def sleep(self, seconds: float) -> None:
        """Waits, unless interrupted."""
        await self.guard(asyncio.sleep(seconds))


# The clock of a step: interrupts what takes too long.


class StepClock:
    """Interrupts the work when a step takes too long. One step at a time, under one claim: a successor begins anew."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._step = 0
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self, step: int, limit_seconds: float | None) -> None:
        """The step before is over. Begun again, a step goes on; None: it is not timed."""
        if step == self._step:
            return
        self.stop()
        self._step = step
        if limit_seconds is not None:
            message = f"step {step} took longer than {limit_seconds:g} s"
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(limit_seconds, self._interrupts.request, Interruption.LATE, message)

    def stop(self) -> None:
        """The step is over. An alarm that nobody has met yet came too late itself."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._step = None, 0
        self._interrupts.withdraw(Interruption.LATE)


# The gate before everything new: open while the trust window is.


class TrustGate:
    """Closed until the first answered renewal, and again whenever none was answered for too long."""

    def __init__(self) -> None:
        self._window: TrustWindow | None = None
        self._renewed = asyncio.Event()

    def begin(self, sent_at: float, ttl_seconds: float) -> None:
        """A new session began, asked for at this monotonic moment."""
        self._window = TrustWindow(sent_at, ttl_seconds)
        self._renewed.set()

    def renew(self, sent_at: float) -> None:
        """The renewal sent at this moment was answered."""
        assert self._window is not None, "no session yet"
        self._window = self._window.renewed(sent_at)
        self._renewed.set()

    @property
    def is_open(self) -> bool:
        """Whether something new may be started now."""
        if failpoint_enabled("worker.ignore_trust_window"):
            return True
        return self._window is not None and self._window.is_open(monotonic())

    async def wait_open(self) -> None:
        """Waits for a renewal while the window is closed."""
        while not self.is_open:
            self._renewed.clear()
            await self._renewed.wait()
