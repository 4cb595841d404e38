"""The command and its options."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from tenure.cli.context import Context, pass_context
from tenure.cli.demo import screen
from tenure.cli.demo.board import Board, empty_board
from tenure.cli.demo.judgement import Observed, Promise, broken
from tenure.cli.demo.play import perform
from tenure.cli.dev import passed_on
from tenure.cli.exit_codes import Exit
from tenure.domain.errors import TenureError
from tenure.runtime.rpc_status import PeerFailed

# Plays while somebody watches; one Ctrl-C stops it in good order.

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


# One run of the demo: played, shown, judged, summed up.


class DemoRun:
    """`environment` is passed on to all processes. For machines the last line of standard output is JSON."""

    def __init__(self, data_dir: Path, environment: Mapping[str, str], *, as_json: bool) -> None:
        self._board = empty_board(data_dir)
        self._environment, self._as_json = environment, as_json

    def run(self, console: Console) -> int:
        """The exit code."""
        board, say = self._board, partial(click.echo, err=self._as_json)
        on_screen = not self._as_json and screen.fits(console)
        show = screen.show(board, console) if on_screen else screen.tell(board, say)
        try:
            trouble = asyncio.run(play_and_show(board, self._environment, show))
        except asyncio.CancelledError:
            click.echo("tenure: stopped", err=True)
            return Exit.INTERRUPTED
        if not on_screen and board.submitted_at is not None:
            screen.verdict(board, say)
        return self._conclude(trouble)

    def _conclude(self, trouble: str) -> int:
        """Names what is broken."""
        board, not_kept = self._board, broken(self._board.promises())
        if self._as_json:
            click.echo(json.dumps(_to_json(board.observed(), not_kept, trouble)))
        if trouble:
            click.echo(f"tenure: {trouble}", err=True)
        for promise in not_kept if board.submitted_at is not None else ():
            click.echo(f"tenure: broken: {promise.text} ({promise.actual})", err=True)
        if not not_kept and not trouble:
            return Exit.OK
        click.echo(f"tenure: the logs are in {board.layout.logs}", err=True)
        return Exit.TASK_FAILED


def _to_json(seen: Observed, not_kept: list[Promise], trouble: str) -> dict[str, object]:
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
        "broken": [promise.name for promise in not_kept],
        "trouble": trouble,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@click.command(short_help="Show the main job, and judge it.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON; what happens goes to standard error.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep all files here; new or empty.")
@pass_context
def demo(context: Context, /, as_json: bool, data: Path | None) -> None:
    """Show the main job, and judge it: freeze one worker, kill another, count the effects.

    Takes about half a minute, needs nothing but this machine, leaves nothing behind. Exit code 1: a promise was broken.
    """
    # it starts processes, which other commands need not load

    if data is not None and data.exists() and any(data.iterdir()):
        raise click.UsageError(f"{data} is not empty: the demo counts what it finds, and must begin with nothing")
    data_dir = data or Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    performance = DemoRun(data_dir, passed_on(context.environment), as_json=as_json or context.as_json)
    code = performance.run(context.console)
    if data is None and code != Exit.TASK_FAILED:  # a failure's logs are kept
        shutil.rmtree(data_dir, ignore_errors=True)
    raise SystemExit(code)
