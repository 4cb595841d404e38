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
import signal
import sys
from contextlib import AsyncExitStack
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

_log: Final = logging.getLogger(__name__)
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
