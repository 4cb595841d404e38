"""Runs a process from its first signal handler to its exit code, and its background duties.

    async def main(process: Process) -> None:
        settings = load(Settings, environment, prefix="TENURE_CHECKPOINT_")
        pool = await process.open(open_pool(settings.database))   # in the order of dependency,
        server = await process.open(build_server(pool))           # closed in the reverse one
        duties = await process.open(Duties())
        duties.start("sweep", sweep)
        await process.run_until_stopped()

    sys.exit(run(main))

SIGTERM or SIGINT sets `stopping`; each service decides how it drains. Before `run_until_stopped` there is nothing to
drain: a signal cancels `main`, and the process closes its open parts. A second signal ends the process at once.
Exit codes: 0 for an orderly end, 1 for a failure, 2 for an invalid configuration.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self, TypeVar

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.runtime.listening import CannotListen
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import log_context
from tenure.runtime.settings import ConfigurationError

# One run of a duty: its own asyncio task, its progress, and its end.

TICKS_OF_SILENCE: Final = 4
CANCEL_AGAIN_SECONDS: Final = 2.0
STUCK_SECONDS: Final = 10.0


class DutyEnded(Exception):  # noqa: N818  an end is not an error where the duty may end
    """The run ended although the duty is endless."""


class DutyStalled(Exception):  # noqa: N818  as above
    """The run reported no progress for longer than its limit."""


@dataclass(slots=True)
class _Pulse:
    noted: bool = False
    pauses: int = 0


_pulse: Final[ContextVar[_Pulse | None]] = ContextVar("duty_pulse", default=None)


def note_progress() -> None:
    """Reports progress of the current duty. Call it in a duty or in an asyncio task that a duty started.

    Outside of a duty it has no effect.
    """
    pulse = _pulse.get()
    if pulse is not None:
        pulse.noted = True


@contextmanager
def resting() -> Iterator[None]:
    """Marks the duty as idle inside the block, so that its silence does not count as a stall.

    Use it around waits that a timer or this process ends, never around a wait for another process, which may not
    answer. Use it in the duty's own loop, not in asyncio tasks that run beside that loop.
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
    """Pauses a duty between two rounds. The pause may be longer than the duty's silence limit."""
    with resting():
        await asyncio.sleep(seconds)


class Run:
    """One run of a duty. It starts when the object is created."""

    def __init__(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        self._duty = duty
        self._pulse = _Pulse()
        self.task = asyncio.create_task(self._work(), name=f"run of {name}")

    async def _work(self) -> None:
        _pulse.set(self._pulse)
        await self._duty()

    async def ended(self, silence_seconds: float | None) -> None:
        """Returns when the run has ended. Raises DutyStalled after `silence_seconds` (None: no limit) without progress.

        The message of DutyStalled says where the run waits. Silence is counted in ticks of a timer and not by a clock:
        a process that was frozen for a while, or got no processor time, misses one tick and not many.
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
                raise DutyStalled(f"no progress for {silence_seconds:g} s; the run waits at {_where(self.task)}")

    async def cancel(self) -> None:
        """Cancels the run and returns when the run has ended, even if the caller is cancelled again meanwhile.

        A run can swallow a cancellation: before Python 3.12, `wait_for` does so at the moment when its wait is over,
        and the Postgres pool waits with `wait_for`. Therefore this method repeats the cancellation until the run ends.
        """
        while not self.task.done():
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self.task}, timeout=CANCEL_AGAIN_SECONDS)

    async def cancel_within(self, seconds: float) -> bool:
        """Cancels the run and returns whether the run ended within `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.task.done():
                    self.task.cancel()
                    await asyncio.wait({self.task}, timeout=min(seconds / 2, CANCEL_AGAIN_SECONDS))
        return self.task.done()

    def failure(self, *, may_end: bool) -> Exception | None:
        """Returns why an ended run has to be restarted, or None if the run ended in order."""
        try:
            self.task.result()
        except asyncio.CancelledError as stray:
            ended = DutyEnded("the run was cancelled, but not by its Duties")
            ended.__cause__ = stray
            return ended
        except Exception as error:  # noqa: BLE001  Duties logs every failure
            return error
        return None if may_end else DutyEnded("the duty returned, but it must run until it is cancelled")


def _where(task: asyncio.Task[Any]) -> str:
    """Returns the frames in which the task waits, as "file:line function", the innermost last."""
    frames = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return " > ".join(frames) or "nowhere"


# Duties: named, endless background coroutines that are restarted when they fail.

_log: Final = logging.getLogger(__name__)
_over: Final[ContextVar[asyncio.Event | None]] = ContextVar("duties_over", default=None)
STUCK_EXIT_CODE: Final = 1
RESTART: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=15.0)


def _end_process(reason: str) -> None:
    """Ends the process, because a second run beside one that does not end could do everything twice."""
    _log.critical("the process ends itself: %s", reason)
    logging.shutdown()
    os._exit(STUCK_EXIT_CODE)


@dataclass(frozen=True, slots=True)
class NoLimit:
    """The silence limit of a duty that may be silent for any time, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class _Duty:
    name: str
    start: Callable[[], Awaitable[None]]
    may_end: bool
    silence_seconds: float | None


class Duties:
    """Runs duties until its `async with` ends, then cancels them and waits until they have ended.

    A duty that fails is logged, counted (`tenure_duty_failures_total{duty}`) and restarted after a wait with full
    jitter. A run that lasted longer than the longest wait resets the count of failures. Each run is its own asyncio
    task, so that no state of a failed run, such as a cancellation, remains in the next one. `on_stuck` is called with
    the reason when a stalled duty does not end although it was cancelled: a second run beside it would not be safe.
    The default `on_stuck` ends the process.
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
        """Starts `duty`. Cancelling the returned asyncio task ends the duty without a restart.

        `may_end`: a return of the duty is its orderly end.
        `silence_seconds`: a healthy duty calls `note_progress` more often than that, also while it reconnects, or is
        inside `resting`. Otherwise it is cancelled and restarted. Every duty of a service has a limit, or a NoLimit
        with the reason; None is for tests.
        """
        limit = None if isinstance(silence_seconds, NoLimit) else silence_seconds
        for counter in ("tenure_duty_failures_total", "tenure_duty_stalls_total"):
            metrics.cell(counter, duty=name)  # from 0 on, so that the first failure is an increase
        supervised = _Duty(name, duty, may_end, limit)
        task = asyncio.create_task(self._supervise(supervised), name=f"duty {name}")
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

    async def _supervise(self, duty: _Duty) -> None:
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
                _log_failure(failure, failures)
                heed_cancellation()
                await asyncio.sleep(self._restart.wait_seconds(failures, random.random()))

    async def _run_once(self, duty: _Duty) -> Exception | None:
        """Runs the duty once and returns why it has to be restarted, or None if it ended in order."""
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
                _log_failure(failure, 1)
            raise
        return run.failure(may_end=duty.may_end)

    async def _end_stalled(self, run: Run, name: str, stall: DutyStalled) -> None:
        try:
            if not await run.cancel_within(STUCK_SECONDS):
                self._on_stuck(f"the duty {name} is stuck and does not end when it is cancelled: {stall}")
        finally:
            await run.cancel()
        run.failure(may_end=True)  # else asyncio reports an exception that was never retrieved


def heed_cancellation() -> None:
    """Raises CancelledError if the Duties are closing and an error hid the cancellation.

    Loops of duties that continue after errors call it. A TaskGroup whose child fails at the moment of the cancellation
    raises only the failure: a loop that swallows this failure would never end.
    """
    over = _over.get()
    if over is not None and over.is_set():
        raise asyncio.CancelledError


def _log_failure(error: Exception, failures: int) -> None:
    """Logs TryLater as a warning without a stack, and any other error, which is a bug, with its stack.

    A duty with a task group raises an ExceptionGroup with all failures in it.
    """
    fields: dict[str, object] = {"failures": failures}
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, TryLater) or (isinstance(error, ExceptionGroup) and error.split(TryLater)[1] is None):
        _log.warning("a duty failed and will be restarted", extra={**fields, "error": error})
    else:
        _log.error("a duty failed and will be restarted", extra=fields, exc_info=error)


_Opened = TypeVar("_Opened")
THREADS_SECONDS: Final = 5.0
"""The time for functions in threads to end after everything else has."""
_EXECUTOR_THREADS: Final = "asyncio executor"
_ANYIO_THREADS: Final = "AnyIO worker thread"
MOST_OPEN_FILES: Final = 10_240 if sys.platform == "darwin" else 65_536
"""macOS says that there is no limit, and refuses to set one above this."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ExitCode(IntEnum):
    """The exit code of a service process."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2


# Measured in a worker with 1,000 streamed answers: with Python's defaults the collector takes a fifth of the processor
# time and stops the event loop for up to 0.3 s, because the objects of a held task live too long for the young
# generations. With these it takes a quarter of that.
_COLLECTOR_THRESHOLDS: Final = (20_000, 10, 20)


class Process:
    """The argument of `main`: the `stopping` event, and the stack of open parts."""

    def __init__(self, closing_timeout_seconds: float = 30.0) -> None:
        self.stopping = asyncio.Event()
        self._ready = False
        self._main: asyncio.Task[Any] | None = None
        self._opened = AsyncExitStack()
        self._closing_timeout_seconds = closing_timeout_seconds

    async def open(self, thing: AbstractAsyncContextManager[_Opened]) -> _Opened:
        """Enters `thing` and returns its value. The process closes it before everything that was opened earlier."""
        return await self._opened.enter_async_context(thing)

    def enter(self, thing: AbstractContextManager[_Opened]) -> _Opened:
        """Enters `thing`, which opens and closes without waiting. It is closed as after `open`."""
        return self._opened.enter_context(thing)

    async def run_until_stopped(self) -> None:
        """Waits until a signal stops the process. Call it when all parts are open.

        From here on the garbage collector looks at no object that exists now, and less often at young ones.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTOR_THRESHOLDS)
        self._ready = True
        _log.info("ready", extra={"pid": os.getpid()})
        await self.stopping.wait()
        _log.info("stopping")

    async def close(self) -> None:
        """Closes the parts in reverse order. Raises TimeoutError after `closing_timeout_seconds`."""
        async with asyncio.timeout(self._closing_timeout_seconds):
            await self._opened.aclose()

    def on_signal(self, number: int) -> None:
        """Sets `stopping` at the first signal and ends the process at once at the second."""
        if self.stopping.is_set():
            os._exit(128 + number)
        _log.info("received a signal", extra={"signal": signal.Signals(number).name})
        self.stopping.set()
        if self._main is not None and not self._ready:
            self._main.cancel()

    async def supervise(self, main: Callable[[Process], Awaitable[None]]) -> None:
        """Runs `main` with the signal handlers installed, then closes the parts. Raises the error of `main`."""
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.on_signal, number)
        loop.set_exception_handler(_log_unhandled)
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
    """Takes back the cancellation that `on_signal` requested, so that closing runs undisturbed."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def allow_many_open_files() -> None:
    """Raises the soft limit of open files to the hard one: one connection a model call or watcher passes 1,024 soon."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(main: Callable[[Process], Awaitable[None]], *, closing_timeout_seconds: float = 30.0) -> ExitCode:
    """Runs `main` to its end and returns the exit code. Logs or prints the error of `main` and does not raise it.

    A thread of a library's or user's function that does not end does not keep the process: it ends here then.
    """
    allow_many_open_files()
    try:
        with asyncio.Runner() as runner:
            executor = ThreadPoolExecutor(thread_name_prefix=_EXECUTOR_THREADS)
            runner.get_loop().set_default_executor(executor)
            code = _run(runner, Process(closing_timeout_seconds).supervise(main))
            _end_threads(executor, code)
    finally:
        gc.freeze()  # else the interpreter's exit walks all imported modules: measured, 3 s in the worker
    return code


def _run(runner: asyncio.Runner, supervised: Coroutine[Any, Any, None]) -> ExitCode:
    try:
        runner.run(supervised)
    except ConfigurationError as error:
        print(error, file=sys.stderr)  # noqa: T201  for the operator; logs may not be set up yet
        return ExitCode.CONFIGURATION
    except CannotListen as error:
        _log.error("the process cannot start", extra={"error": error})
        return ExitCode.FAILED
    except Exception:  # noqa: BLE001  logged with its stack
        _log.exception("the process failed")
        return ExitCode.FAILED
    return ExitCode.OK


def _end_threads(executor: ThreadPoolExecutor, code: ExitCode) -> None:
    """Waits a moment for the threads that functions run in. Ends the process if one hangs.

    Python waits for such threads without a limit: when the event loop closes, and when the interpreter ends.
    """
    executor.shutdown(wait=False, cancel_futures=True)
    ends_at = time.monotonic() + THREADS_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith((_EXECUTOR_THREADS, _ANYIO_THREADS)):
            thread.join(max(0.0, ends_at - time.monotonic()))
            if thread.is_alive():
                _log.warning("the process ends although a function still runs in a thread of it")
                logging.shutdown()
                os._exit(code)


def _log_unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an exception that no coroutine awaited: a bug, which asyncio would log without our logger."""
    _log.error("unhandled in the event loop: %s", context.get("message"), exc_info=context.get("exception"))
