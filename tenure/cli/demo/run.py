"""One run of the demo, its last line and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from tenure.cli.demo import screen
from tenure.cli.demo.board import Board, empty_board
from tenure.cli.demo.judgement import Observed, Promise, broken
from tenure.cli.demo.play import perform
from tenure.cli.exit_codes import Exit
from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed

# Plays while the board is shown; Ctrl-C stops both in order.

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAILURES: Final = (RuntimeError, OSError, TenureError, PeerFailed)


async def play_and_show(board: Board, environment: Mapping[str, str], show: Coroutine[Any, Any, None]) -> str:
    """Plays while `show` shows the board. Returns the message of a failure, or "".

    A stop signal cancels the play; CancelledError is raised after all processes have ended.
    """
    with _stopped_by_signals():
        showing = asyncio.create_task(show, name="show")
        try:
            await perform(board, environment)
        except _FAILURES as failure:
            return str(failure)
        except ExceptionGroup as group:
            return str(_first_failure(group))
        finally:
            board.finished = True
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        return ""


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Cancels this task at the first stop signal. Later ones must not interrupt the end of the processes."""
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


def _first_failure(group: ExceptionGroup) -> Exception:
    """Returns the first of the expected failures. Raises the group if it has any other error, which is a bug."""
    failures, bugs = group.split(_FAILURES)
    if failures is None or bugs is not None:
        raise group
    first = failures.exceptions[0]
    return _first_failure(first) if isinstance(first, ExceptionGroup) else first


# One run of the demo.


class DemoRun:
    """Plays, shows, judges and sums up. With `as_json` the last line of standard output is JSON.

    `environment` is passed to all processes.
    """

    def __init__(self, data_dir: Path, environment: Mapping[str, str], *, as_json: bool) -> None:
        self._board = empty_board(data_dir)
        self._environment, self._as_json = environment, as_json

    def run(self, console: Console) -> int:
        """Runs the demo and returns the exit code."""
        board, print_line = self._board, partial(click.echo, err=self._as_json)
        on_screen = not self._as_json and screen.fits(console)
        show = screen.show(board, console) if on_screen else screen.print_events(board, print_line)
        try:
            failure = asyncio.run(play_and_show(board, self._environment, show))
        except asyncio.CancelledError:
            click.echo("tenure: stopped", err=True)
            return Exit.INTERRUPTED
        if not on_screen and board.submitted_at is not None:
            screen.print_verdict(board, print_line)
        return self._conclude(failure)

    def _conclude(self, failure: str) -> int:
        """Prints the failure and the broken promises, and returns the exit code."""
        board, broken_promises = self._board, broken(self._board.promises())
        if self._as_json:
            click.echo(json.dumps(_to_json(board.observed(), broken_promises, failure)))
        if failure:
            click.echo(f"tenure: {failure}", err=True)
        for promise in broken_promises if board.submitted_at is not None else ():
            click.echo(f"tenure: broken: {promise.text} ({promise.actual})", err=True)
        if not broken_promises and not failure:
            return Exit.OK
        click.echo(f"tenure: the logs are in {board.layout.logs}", err=True)
        return Exit.TASK_FAILED


def _to_json(seen: Observed, broken_promises: list[Promise], failure: str) -> dict[str, object]:
    return {
        "task_state": seen.task_state,
        "steps": len(seen.answers),
        "takeovers": seen.takeovers,
        "effects": sum(seen.effects.values()),
        "effects_expected": len(seen.effects_expected),
        "stale_refused_ledger": seen.stale_refused_ledger,
        "stale_refused_tools": seen.stale_refused_tools,
        "model_calls_repeated": seen.model_calls_repeated,
        "resume_seconds_kill": _rounded(seen.resume_seconds_kill),
        "resume_seconds_freeze": _rounded(seen.resume_seconds_freeze),
        "broken": [promise.name for promise in broken_promises],
        "trouble": failure,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
