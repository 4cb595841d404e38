"""Interrupts a task's work: only while it waits, never inside a commit. Also the trust window's gate.

An interrupting message of a user ends no work: the coordinator reports that there may be one, and a wait for a model
call then looks into the ledger, which decides.

A lost claim is different: it cancels the whole coroutine, since no write under a lost claim counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from enum import IntEnum
from typing import Any, TypeVar

from tenure.domain.fencing import TrustWindow
from tenure.runtime.failpoints import failpoint_enabled

_Result = TypeVar("_Result")


class Interruption(IntEnum):
    """The reason of an interruption. A higher value replaces a lower one."""

    LATE = 1  # a step took too long: close the task out by its policy
    DRAIN = 2  # the worker drains: give the task back to the queue
    STOP = 3  # an operator stopped the task or its call: give the task back until the stop ends
    END = 4  # the task has a pending ending or passed its deadline: close it out


class Interrupted(Exception):  # noqa: N818  an instruction for the loop, not an error
    """The work was interrupted. `kind` says what the loop has to do, `message` says why."""

    def __init__(self, kind: Interruption, message: str = "") -> None:
        super().__init__(kind.name)
        self.kind, self.message = kind, message


class Interrupts:
    """The interruptions of one task. END replaces DRAIN: a draining worker first carries out a pending ending."""

    def __init__(self) -> None:
        self._kind: Interruption | None = None
        self._message = ""
        self._requests = 0
        self._has_notice = False
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def ending(self) -> bool:
        """Whether the task has a pending ending."""
        return self._kind is Interruption.END

    def request(self, kind: Interruption, message: str = "") -> None:
        """Interrupts the work in its present wait or at its next one."""
        if self._kind is None or self._kind < kind:
            self._kind, self._message = kind, message
        self._requests += 1
        self._wake()

    def note_message(self) -> None:
        """Takes the notice that the task may have an interrupting message."""
        self._has_notice = True
        self._wake()

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)

    def withdraw(self, kind: Interruption) -> None:
        """Withdraws a request that no longer applies and that the work has not noticed yet."""
        if self._kind is kind:
            self._kind, self._message = None, ""

    def check(self) -> None:
        """Raises Interrupted when an interruption was requested."""
        if self._kind is not None:
            raise Interrupted(self._kind, self._message)

    async def guard(
        self,
        work: Coroutine[Any, Any, _Result],
        *,
        ignoring: Collection[Interruption] = (),
        on_notice: Callable[[], Awaitable[None]] | None = None,
    ) -> _Result:
        """Returns the result of `work`. An interruption cancels it and raises Interrupted.

        `ignoring`: one of these kinds that was requested before does not count. `on_notice`: called while `work` goes
        on, also for a notice that came before; what it raises cancels `work`. Without it a notice waits for a call that
        has it.
        """
        if self._kind is not None and self._kind not in ignoring:
            work.close()
            raise Interrupted(self._kind, self._message)
        working, requests = asyncio.create_task(work), self._requests
        try:
            while True:
                if on_notice is not None and self._has_notice:
                    self._has_notice = False
                    await on_notice()
                if working.done():
                    return working.result()
                if self._requests != requests:
                    break
                await self._wait(working)
        finally:
            working.cancel()
            if not working.done():
                await asyncio.gather(working, return_exceptions=True)
        assert self._kind is not None
        raise Interrupted(self._kind, self._message)

    async def _wait(self, working: asyncio.Task[Any]) -> None:
        """Waits for the end of the work, a request or a notice."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await asyncio.wait((working, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(woken)

    async def sleep(self, seconds: float) -> None:
        """Waits `seconds`, unless interrupted."""
        await self.guard(asyncio.sleep(seconds))


# The step timeout.


class StepClock:
    """Interrupts the work when a step takes too long.

    Times one step at a time under one claim; the next owner starts anew.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._step = 0
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self, step: int, limit_seconds: float | None) -> None:
        """Starts the timeout of a step and ends that of the step before. A repeated call goes on with the first start.

        `limit_seconds` None: the step has no timeout.
        """
        if step == self._step:
            return
        self.stop()
        self._step = step
        if limit_seconds is not None:
            message = f"step {step} took longer than {limit_seconds:g} s"
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(limit_seconds, self._interrupts.request, Interruption.LATE, message)

    def stop(self) -> None:
        """Ends the timeout of the step, and withdraws an interruption that the work has not noticed yet."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._step = None, 0
        self._interrupts.withdraw(Interruption.LATE)


# The gate before everything new.


def trust_clock() -> float:
    """Returns the seconds of a clock that goes on while the machine is suspended, where there is one: its lease ends
    meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class TrustGate:
    """Is open while the trust window is open.

    Stays closed until the first answered renewal, and closes again after too long without one.
    """

    def __init__(self) -> None:
        self._window: TrustWindow | None = None
        self._renewed = asyncio.Event()

    def begin(self, sent_at: float, ttl_seconds: float) -> None:
        """Starts the trust window of a new session whose Hello was sent at this time of `trust_clock`."""
        self._window = TrustWindow(sent_at, ttl_seconds)
        self._renewed.set()

    def renew(self, sent_at: float) -> None:
        """Extends the trust window: the renewal that was sent at this time of `trust_clock` was answered."""
        assert self._window is not None, "no session yet"
        self._window = self._window.renewed(sent_at)
        self._renewed.set()

    @property
    def is_open(self) -> bool:
        """Whether the worker may begin something new now."""
        if failpoint_enabled("worker.ignore_trust_window"):
            return True
        return self._window is not None and self._window.is_open(trust_clock())

    async def wait_open(self) -> None:
        """Waits until a renewal opens the trust window."""
        while not self.is_open:
            self._renewed.clear()
            await self._renewed.wait()
