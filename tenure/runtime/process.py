"""A process: from its signals to its exit code.

    async def main(process: Process) -> None:
        settings = load(Settings, environment, prefix="TENURE_CHECKPOINT_")
        pool = await process.open(open_pool(settings.database))   # in the order of dependency,
        server = await process.open(build_server(pool))           # closed in the reverse one
        duties = await process.open(Duties())
        duties.start("sweep", sweep)
        await process.run_until_stopped()

    sys.exit(run(main))

SIGTERM or SIGINT sets `stopping`; what draining means is the service's decision. Before `run_until_stopped` there is
nothing to drain: a signal cancels `main` and what is open is closed. A second signal ends the process at once.
Exit codes: 0 in order, 1 failed, 2 the configuration does not hold.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.logs import log_context
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = [
    "RESTART",
    "Duties",
    "NoLimit",
    "heed_cancellation",
    "note_progress",
    "rest",
    "resting",
]


# One run of a duty: a task of its own, the progress that it notes, and its end.

TICKS_OF_SILENCE: Final = 4
CANCEL_AGAIN_SECONDS: Final = 2.0
STUCK_SECONDS: Final = 10.0


class DutyEnded(Exception):  # noqa: N818  an end is no error where the duty may end
    """The run came to an end that the duty does not have."""


class DutyStalled(Exception):  # noqa: N818  as above
    """The run noted no progress for too long."""


@dataclass(slots=True)
class _Pulse:
    noted: bool = False
    pauses: int = 0


_pulse: Final[ContextVar[_Pulse | None]] = ContextVar("duty_pulse", default=None)


def note_progress() -> None:
    """Call it in a duty, or in a task that a duty started, wherever it goes on. Elsewhere it has no effect."""
    pulse = _pulse.get()
    if pulse is not None:
        pulse.noted = True


@contextmanager
def resting() -> Iterator[None]:
    """Inside, the duty has nothing to do, and its silence is no fault: for waits that a timer or this process ends.

    Never around a wait for another process, which may not answer. For the duty's own loop, not for tasks beside it.
    """
    pulse = _pulse.get()
    if pulse is None:
        yield
        return
    pulse.pauses += 1
    try:
        yield
    finally:
        pulse.pauses -= 1
        pulse.noted = True


async def rest(seconds: float) -> None:
    """A duty's pause between two rounds, however long."""
    with resting():
        await asyncio.sleep(seconds)


class Run:
    """One run, from the moment it is made."""

    def __init__(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        self._duty = duty
        self._pulse = _Pulse()
        self.task = asyncio.create_task(self._work(), name=f"run of {name}")

    async def _work(self) -> None:
        _pulse.set(self._pulse)
        await self._duty()

    async def ended(self, silence_seconds: float | None) -> None:
        """Returns once the run has ended. Raises DutyStalled, with where it waits, after so long without progress.

        Silence is counted in ticks of a timer and not by a clock: a process that was frozen for a while, or had no
        processor, finds one tick gone and not many.
        """
        if silence_seconds is None:
            await asyncio.wait({self.task})
            return
        silent_ticks = 0
        while not self.task.done():
            await asyncio.wait({self.task}, timeout=silence_seconds / TICKS_OF_SILENCE)
            silent_ticks = 0 if self._pulse.noted or self._pulse.pauses else silent_ticks + 1
            self._pulse.noted = False
            if silent_ticks >= TICKS_OF_SILENCE and not self.task.done():
                raise DutyStalled(f"no progress for {silence_seconds:g} s; it waits at {_where(self.task)}")

    async def cancel(self) -> None:
        """Returns once the run has ended, also when whoever waits here is cancelled again meanwhile.

        A run can swallow a cancellation: before Python 3.12 `wait_for`, by which the pool of Postgres waits, does that
        in the moment when its wait is over. So it is cancelled until it ends.
        """
        while not self.task.done():
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self.task}, timeout=CANCEL_AGAIN_SECONDS)

    async def cancel_within(self, seconds: float) -> bool:
        """Whether the run has ended so soon after it was cancelled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.task.done():
                    self.task.cancel()
                    await asyncio.wait({self.task}, timeout=min(seconds / 2, CANCEL_AGAIN_SECONDS))
        return self.task.done()

    def failure(self, *, may_end: bool) -> Exception | None:
        """Of an ended run: why the duty has to be started again; None when its end is in order."""
        try:
            self.task.result()
        except asyncio.CancelledError as stray:
            ended = DutyEnded("the run was cancelled, but not by the duties that look after it")
            ended.__cause__ = stray
            return ended
        except Exception as error:  # noqa: BLE001  whatever it was: who looks after the duty logs it
            return error
        return None if may_end else DutyEnded("the duty returned, but it has no end")


def _where(task: asyncio.Task[Any]) -> str:
    """The files, lines and functions through which it waits, the innermost last."""
    places = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            places.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return " > ".join(places) or "nowhere"


# Background duties: named endless coroutines that are looked after.

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
        except DutyStalled as stall:
            metrics.count("tenure_duty_stalls_total", duty=duty.name)
            await self._end_stalled(run, duty.name, stall)
            return stall
        except asyncio.CancelledError:
            await run.cancel()
            if not run.task.cancelled() and (failure := run.failure(may_end=True)) is not None:
                _tell(failure, 1)
            raise
        return run.failure(may_end=duty.may_end)

    async def _end_stalled(self, run: Run, name: str, stall: DutyStalled) -> None:
        try:
            if not await run.cancel_within(STUCK_SECONDS):
                self._on_stuck(f"the duty {name} is stuck, and does not end when it is cancelled: {stall}")
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


_Opened = TypeVar("_Opened")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ExitCode(IntEnum):
    """What the process tells its supervisor."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2


class Process:
    """What `main` is given: the event that says stop, and what is open."""

    def __init__(self, closing_timeout_seconds: float = 30.0) -> None:
        self.stopping = asyncio.Event()
        self._ready = False
        self._main: asyncio.Task[Any] | None = None
        self._opened = AsyncExitStack()
        self._closing_timeout_seconds = closing_timeout_seconds

    async def open(self, thing: AbstractAsyncContextManager[_Opened]) -> _Opened:
        """Enter `thing`; it is closed when the process ends, before everything opened earlier."""
        return await self._opened.enter_async_context(thing)

    async def run_until_stopped(self, *, freeze: bool = False) -> None:
        """Everything is open: serve until told to stop. `freeze` takes what was loaded so far out of the collector."""
        if freeze:
            gc.collect()
            gc.freeze()
        self._ready = True
        _log.info("ready", extra={"pid": os.getpid()})
        await self.stopping.wait()
        _log.info("stopping")

    async def close(self) -> None:
        """Close in reverse order, within the time allowed. Raises TimeoutError beyond it."""
        async with asyncio.timeout(self._closing_timeout_seconds):
            await self._opened.aclose()

    def on_signal(self, number: int) -> None:
        """The first says stop, the second means it."""
        if self.stopping.is_set():
            os._exit(128 + number)
        _log.info("told to stop", extra={"signal": signal.Signals(number).name})
        self.stopping.set()
        if self._main is not None and not self._ready:
            self._main.cancel()

    async def supervise(self, main: Callable[[Process], Awaitable[None]]) -> None:
        """Run `main` under our signals, then close. Raises what `main` raised."""
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.on_signal, number)
        loop.set_exception_handler(_log_lost)
        try:
            await main(self)
        except asyncio.CancelledError:
            if not self.stopping.is_set():
                raise
            _uncancel()
        finally:
            self._ready = True  # a signal from here on must not cancel the closing
            await self.close()


def _uncancel() -> None:
    """We asked for this cancellation ourselves: what follows is to run undisturbed."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def run(main: Callable[[Process], Awaitable[None]], *, closing_timeout_seconds: float = 30.0) -> ExitCode:
    """Run `main` to its end and say how it ended; never raises for what happens inside."""
    try:
        with asyncio.Runner() as runner:
            runner.run(Process(closing_timeout_seconds).supervise(main))
    except ConfigurationError as error:
        print(error, file=sys.stderr)  # noqa: T201  for the operator, before there is a log
        return ExitCode.CONFIGURATION
    except Exception:  # noqa: BLE001  logged with its stack, and told by the exit code
        _log.exception("the process failed")
        return ExitCode.FAILED
    finally:
        gc.freeze()  # else the interpreter's end walks all that was ever imported: measured, 3 s at the worker
    return ExitCode.OK


def _log_lost(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that no one awaited: a bug that would else be a line without a logger."""
    _log.error("unhandled in the event loop: %s", context.get("message"), exc_info=context.get("exception"))
