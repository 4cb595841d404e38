"""The clock of a step: interrupts what takes too long."""

from __future__ import annotations

import asyncio

from services.worker.interrupts import Interruption, Interrupts


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
            told = f"step {step} took longer than {limit_seconds:g} s"
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(limit_seconds, self._interrupts.request, Interruption.LATE, told)

    def stop(self) -> None:
        """The step is over. An alarm that nobody has met yet came too late itself."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._step = None, 0
        self._interrupts.withdraw(Interruption.LATE)
