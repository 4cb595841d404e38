"""Plays while somebody watches; one Ctrl-C stops it in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final

from tenure.cli.demo.board import Board
from tenure.cli.demo.play import perform
from tenure.domain.errors import TenureError
from tenure.runtime.status import PeerFailed

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TROUBLE: Final = (RuntimeError, OSError, TenureError, PeerFailed)


async def play_and_show(board: Board, environment: Mapping[str, str], show: Coroutine[Any, Any, None]) -> str:
    """What went wrong, "" for nothing. Cancelled by the signals that end a program, after the cleaning up."""
    with _stopped_by_signals():
        showing = asyncio.create_task(show, name="show")
        try:
            await perform(board, environment)
        except _TROUBLE as trouble:
            return str(trouble)
        except ExceptionGroup as group:
            return str(_first_trouble(group))
        finally:
            board.finished = True
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        return ""


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """The first one cancels this task; more of them must not interrupt the ending of the processes."""
    playing, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert playing is not None
    for number in _SIGNALS:
        loop.add_signal_handler(number, _cancel_once, playing)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _cancel_once(task: asyncio.Task[Any]) -> None:
    if not task.cancelling():
        task.cancel()


def _first_trouble(group: ExceptionGroup) -> Exception:
    """The play's own; raises what is a bug as it came."""
    trouble, bugs = group.split(_TROUBLE)
    if trouble is None or bugs is not None:
        raise group
    first = trouble.exceptions[0]
    return _first_trouble(first) if isinstance(first, ExceptionGroup) else first
