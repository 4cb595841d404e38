"""Background duties: named endless coroutines that are looked after."""

from __future__ import annotations

import asyncio
import logging
import random
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Self

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.logs import log_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log: Final = logging.getLogger(__name__)
_over: Final[ContextVar[asyncio.Event | None]] = ContextVar("duties_over", default=None)
TELL_AGAIN_SECONDS: Final = 2.0
RESTART: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=15.0)


class Duties:
    """Runs duties until its `async with` ends, then cancels them and waits for their end.

    A duty that fails is logged, counted (`tenure_duty_failures_total{duty}`) and started again after a wait with full
    jitter; a run longer than the longest wait counts as recovered. A duty that returns has ended.
    """

    def __init__(self, restart: RetryPolicy = RESTART) -> None:
        self._restart = restart
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    def start(self, name: str, duty: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin `duty`; cancelling the task ends it for good."""
        task = asyncio.create_task(self._look_after(name, duty), name=f"duty {name}")
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
            # Before Python 3.12 wait_for, by which the pool of Postgres waits, swallows a cancellation that comes in
            # the moment when its wait is over: who goes on is told again.
            left = (await asyncio.wait(left, timeout=TELL_AGAIN_SECONDS))[1]

    async def _look_after(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        _over.set(self._over)
        with log_context(duty=name):
            while True:
                began = clock()
                try:
                    return await duty()
                except Exception as error:  # noqa: BLE001  whatever it was: it is logged, and the duty goes on
                    failures = 1 if clock() - began > self._restart.cap_seconds else failures + 1
                    metrics.count("tenure_duty_failures_total", duty=name)
                    _tell(error, failures)
                    heed_cancellation()
                await asyncio.sleep(self._restart.wait_seconds(failures, random.random()))


def heed_cancellation() -> None:
    """For loops of duties that go on after errors: raises CancelledError if the duties end and an error hid it.

    A TaskGroup whose child fails at the moment of the cancellation raises the failure alone: who swallows that would
    never end. The task itself cannot tell: before Python 3.13 a TaskGroup whose child fails while it waits for the
    others leaves `cancelling()` above 0 for good.
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
