"""One run of the demo: played, shown, judged, summed up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from tenure.cli.demo import lines, screen
from tenure.cli.demo.board import empty_board
from tenure.cli.demo.judgement import Observed, Promise, broken
from tenure.cli.demo.showing import play_and_show
from tenure.cli.exits import Exit


class Performance:
    """`environment` is passed on to all processes. For machines the last line of standard output is JSON."""

    def __init__(self, data_dir: Path, environment: Mapping[str, str], *, as_json: bool) -> None:
        self._board = empty_board(data_dir)
        self._environment, self._as_json = environment, as_json

    def run(self, console: Console) -> int:
        """The exit code."""
        board, say = self._board, partial(click.echo, err=self._as_json)
        on_screen = not self._as_json and screen.fits(console)
        show = screen.show(board, console) if on_screen else lines.tell(board, say)
        try:
            trouble = asyncio.run(play_and_show(board, self._environment, show))
        except asyncio.CancelledError:
            click.echo("tenure: stopped", err=True)
            return Exit.INTERRUPTED
        if not on_screen and board.submitted_at is not None:
            lines.verdict(board, say)
        return self._conclude(trouble)

    def _conclude(self, trouble: str) -> int:
        """Names what is broken."""
        board, not_kept = self._board, broken(self._board.promises())
        if self._as_json:
            click.echo(json.dumps(_to_json(board.observed(), not_kept, trouble)))
        if trouble:
            click.echo(f"tenure: {trouble}", err=True)
        for promise in not_kept if board.submitted_at is not None else ():
            click.echo(f"tenure: broken: {promise.text} ({promise.found})", err=True)
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
