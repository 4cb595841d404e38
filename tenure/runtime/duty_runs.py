"""One run of a duty: a task of its own, the progress that it notes, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

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
    rests: int = 0


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
    pulse.rests += 1
    try:
        yield
    finally:
        pulse.rests -= 1
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
            silent_ticks = 0 if self._pulse.noted or self._pulse.rests else silent_ticks + 1
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
