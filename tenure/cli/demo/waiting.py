"""Waits that end: for what was waited, how long, and what the log of the one who should have done it says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tenure.cli.demo.board import Board
from tenure.dev.stack import ServiceProcess

POLL_SECONDS: Final = 0.02
TAIL_LINES: Final = 15


class PlayFailed(RuntimeError):  # noqa: N818  what happened, as it is told
    """Something did not happen, or not in time: this run shows nothing."""


@dataclass(frozen=True, slots=True)
class Wait:
    """For `what`, at most `seconds`. `asked`: whose logs are shown when it does not come."""

    what: str
    seconds: float
    asked: tuple[ServiceProcess, ...] = ()

    async def until(self, board: Board, holds: Callable[[], bool]) -> None:
        """Looks whenever the board has changed. Raises PlayFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                while not holds():
                    board.changed.clear()
                    await board.changed.wait()
        except TimeoutError:
            raise self._in_vain() from None

    async def poll(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Asks again and again what nobody announces: another process's files and tables. Raises PlayFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                while not await holds():  # noqa: ASYNC110  see above
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise self._in_vain() from None

    def _in_vain(self) -> PlayFailed:
        tails = [f"--- the end of {service.name}'s log\n{_tail(service)}" for service in self.asked]
        return PlayFailed("\n".join([f"waited {self.seconds:g} s in vain for {self.what}", *tails]))


def _tail(service: ServiceProcess) -> str:
    return "\n".join(service.log_tail().splitlines()[-TAIL_LINES:])
