"""How a task's work is interrupted in good order: only while it waits, never inside a commit.

Losing the claim is different: that is a cancellation of the whole coroutine, since nothing it writes counts any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import IntEnum
from typing import Any, TypeVar

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
