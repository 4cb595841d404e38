"""Background duties: named endless coroutines that are looked after.

A duty ends only with its company or by its own word (`may_end`). Every other end is a fault and starts the duty again:
an exception, a return, a cancellation that nobody here asked for, and silence beyond `silence_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.duty_runs import (
    CANCEL_AGAIN_SECONDS,
    STUCK_SECONDS,
    DutyStalled,
    Run,
    note_progress,
    rest,
    resting,
)
from tenure.runtime.logs import log_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["RESTART", "Duties", "NoLimit", "heed_cancellation", "note_progress", "rest", "resting"]
_log: Final = logging.getLogger(__name__)
_over: Final[ContextVar[asyncio.Event | None]] = ContextVar("duties_over", default=None)
STUCK_EXIT_CODE: Final = 1
RESTART: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=15.0)


def _end_process(reason: str) -> None:
    """A second run beside one that does not end could do everything twice: only a new process is safe."""
    _log.critical("the process ends itself: %s", reason)
    logging.shutdown()
    os._exit(STUCK_EXIT_CODE)


@dataclass(frozen=True, slots=True)
class NoLimit:
    """Of a duty whose silence is no fault, however long it is: why that is so."""

    why: str


@dataclass(frozen=True, slots=True)
class _Duty:
    name: str
    start: Callable[[], Awaitable[None]]
    may_end: bool
    silence_seconds: float | None


class Duties:
    """Runs duties until its `async with` ends, then cancels them and waits for their end.

    A duty that fails is logged, counted (`tenure_duty_failures_total{duty}`) and started again after a wait with full
    jitter; a run longer than the longest wait counts as recovered. Each run is a task of its own, so that nothing of a
    failed run, such as a cancellation, is left in the next one. `on_stuck` is called with the reason when a silent
    duty does not end although it was cancelled: a second run beside it would not be safe. It ends the process.
    """

    def __init__(self, restart: RetryPolicy = RESTART, on_stuck: Callable[[str], None] = _end_process) -> None:
        self._restart = restart
        self._on_stuck = on_stuck
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    def start(
        self,
        name: str,
        duty: Callable[[], Awaitable[None]],
        *,
        may_end: bool = False,
        silence_seconds: float | NoLimit | None = None,
    ) -> asyncio.Task[None]:
        """Begin `duty`; cancelling the task ends it for good.

        `may_end`: a return is its orderly end. `silence_seconds`: it calls `note_progress` more often than that while
        all is well, also while it reconnects, or is `resting`; without either for so long it is cancelled and started
        again. Every duty of a service has such a limit, or says by NoLimit why it has none; None is for tests.
        """
        limit = None if isinstance(silence_seconds, NoLimit) else silence_seconds
        looked_after = _Duty(name, duty, may_end, limit)
        task = asyncio.create_task(self._look_after(looked_after), name=f"duty {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        left = set(self._tasks)
        while left:
            for task in left:
                task.cancel()
            left = (await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS))[1]

    async def _look_after(self, duty: _Duty) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        _over.set(self._over)
        with log_context(duty=duty.name):
            while True:
                began = clock()
                failure = await self._run_once(duty)
                if failure is None:
                    return
                failures = 1 if clock() - began > self._restart.cap_seconds else failures + 1
                metrics.count("tenure_duty_failures_total", duty=duty.name)
                _tell(failure, failures)
                heed_cancellation()
                await asyncio.sleep(self._restart.wait_seconds(failures, random.random()))

    async def _run_once(self, duty: _Duty) -> Exception | None:
        """One run to its end, and why the duty has to be started again; None when it does not."""
        run = Run(duty.name, duty.start)
        try:
            await run.ended(duty.silence_seconds)
        except DutyStalled as stalled:
            metrics.count("tenure_duty_stalls_total", duty=duty.name)
            await self._end_stalled(run, duty.name, stalled)
            return stalled
        except asyncio.CancelledError:
            await run.cancel()
            if not run.task.cancelled() and (failure := run.failure(may_end=True)) is not None:
                _tell(failure, 1)
            raise
        return run.failure(may_end=duty.may_end)

    async def _end_stalled(self, run: Run, name: str, stalled: DutyStalled) -> None:
        try:
            if not await run.cancel_within(STUCK_SECONDS):
                self._on_stuck(f"the duty {name} is stuck, and does not end when it is cancelled: {stalled}")
        finally:
            await run.cancel()
        run.failure(may_end=True)  # read, or asyncio would report it as never read: it stalled, whatever it raised


def heed_cancellation() -> None:
    """For loops of duties that go on after errors: raises CancelledError if the duties end and an error hid it.

    A TaskGroup whose child fails at the moment of the cancellation raises the failure alone: who swallows that would
    never end.
    """
    over = _over.get()
    if over is not None and over.is_set():
        raise asyncio.CancelledError


def _tell(error: Exception, failures: int) -> None:
    """A part that is away is no fault of ours: a line is enough. Anything else is, and comes with its stack.

    A duty with a group of tasks raises all that failed in it.
    """
    facts: dict[str, object] = {"failures": failures}
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, TryLater) or (isinstance(error, ExceptionGroup) and error.split(TryLater)[1] is None):
        _log.warning("a duty failed and will be started again", extra={**facts, "error": error})
    else:
        _log.error("a duty failed and will be started again", extra=facts, exc_info=error)
