"""Shows the board while the play runs: as one screen of 100 columns and 35 rows, or as plain lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, Never

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tenure.cli.demo.board import ROLES, Board, ClaimHolder, DemoEvent, now
from tenure.cli.demo.judgement import Observed, Promise, broken, judge
from tenure.cli.formatting import one_line, state_style
from tenure.domain.fencing import describe_epoch

# The board as plain lines: for logs, pipes and small terminals.

POLL_SECONDS: Final = 0.1
SYMBOLS: Final = {True: "✔", False: "✘"}


async def print_events(board: Board, print_line: Callable[[str], None]) -> Never:
    """Prints each event when it happens, until cancelled."""
    printed = 0
    try:
        while True:
            printed = _print_new(board, print_line, printed)
            await asyncio.sleep(POLL_SECONDS)
    finally:
        _print_new(board, print_line, printed)


def print_verdict(board: Board, print_line: Callable[[str], None]) -> None:
    """Prints the effects, the promises and the agent's result."""
    seen = board.observed()
    for line in seen.effects_expected:
        print_line(f"{seen.effects.get(line, 0)} x  {line}")
    for promise in board.promises():
        print_line(f"{SYMBOLS[promise.kept]}  {promise.text} ({promise.actual})")
    if board.result:
        print_line(f"its result: {board.result.strip()}")


def _print_new(board: Board, print_line: Callable[[str], None], printed: int) -> int:
    """Prints the events after the first `printed` ones, and returns how many are printed now."""
    for event in board.events[printed:]:
        print_line(_line(board, event))
    return len(board.events)


def _line(board: Board, event: DemoEvent) -> str:
    if board.submitted_at is None:
        return f"         {event.text}"
    return f"{(event.at - board.submitted_at).total_seconds():6.1f} s {event.text}"


COLUMNS: Final = 100
ROWS: Final = 35
EVENTS: Final = 12
REDRAW_SECONDS: Final = 0.125
TITLE: Final = "A task survives its workers, and a worker that lost its task can no longer change anything."
SUBTITLE: Final = "One worker is frozen and woken, one killed in a tool call, and one while the model answers it."
HEADING: Final = "bold cyan"
SCREEN_SYMBOLS: Final = {True: Text("✔", "bold green"), False: Text("✘", "bold red"), None: Text("·", "dim")}


def fits(console: Console) -> bool:
    """Returns whether the console is a terminal with room for the screen."""
    return console.is_terminal and console.width >= COLUMNS and console.height >= ROWS


async def show(board: Board, console: Console) -> Never:
    """Redraws the screen until cancelled. The last state stays on the terminal."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(draw(board), refresh=True)
                await asyncio.sleep(REDRAW_SECONDS)
        finally:
            live.update(draw(board), refresh=True)


def draw(board: Board) -> RenderableType:
    """Returns the whole screen."""
    seen = board.observed()
    blank = Text()
    results = Table.grid(padding=(0, 3, 0, 0))
    results.add_row(_effects(seen), _promises(board, seen))
    title = (Text(TITLE, "bold"), Text(SUBTITLE, "dim"))
    parts = [*title, blank, _holders(board), blank, _events(board), blank, results, blank, _result(board)]
    return Group(*parts)


def _holders(board: Board) -> RenderableType:
    state = board.state or "not submitted"
    title = Text.assemble(("CLAIMS OF THE TASK", HEADING), "   ", (str(state), state_style(state)))
    title.append(f" · step {board.step} · epochs are generation.revision of etcd")
    if board.submitted_at is not None:
        title.append(f" · {_since(board, _end(board)):.1f} s")
    table = Table.grid(padding=(0, 3, 0, 0))
    for index in range(max(len(ROLES), len(board.holders))):
        holder = board.holders[index] if index < len(board.holders) else None
        role = ROLES[index] if holder is None else board.role(holder.worker_id)
        table.add_row("", Text(role, "bold"), *_holder_row(board, index, holder))
    return Group(title, table)


def _holder_row(board: Board, index: int, holder: ClaimHolder | None) -> tuple[RenderableType, ...]:
    if holder is None:
        return Text("ready to take over" if board.others_ready else "not started", "dim"), "", ""
    successor = board.holders[index + 1] if index + 1 < len(board.holders) else None
    lost = Text(f"lost it: {successor.taken_for}" if successor else "", "red")
    return f"{holder.worker_id}  epoch {describe_epoch(holder.epoch)}", _condition(board, index, successor), lost


def _condition(board: Board, index: int, successor: ClaimHolder | None) -> Text:
    """Returns the present condition of the holder's process."""
    if index == 0 and board.woken_at is not None:
        return Text("awake, refused, stopped" if board.refused_by_ledger else "awake, continues", "yellow")
    if index == 0 and board.frozen_at is not None:
        return Text("frozen", "bold blue")
    if (index == 1 and board.killed_at is not None) or (index == 2 and board.third_killed_at is not None):
        return Text("killed", "bold red")
    return Text("lost its claim" if successor else "done" if board.result else "works", "bold green")


def _events(board: Board) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    submitted_at = board.submitted_at
    shown = [event for event in board.events if submitted_at is None or event.at >= submitted_at][-EVENTS:]
    for event in shown:
        clock = f"{_since(board, event.at):5.1f} s" if board.submitted_at is not None else ""
        text = Text(one_line(event.text, COLUMNS - 12), "yellow" if event.alarm else "default")
        table.add_row("", Text(clock, "dim"), text)
    for _ in range(EVENTS - len(shown)):
        table.add_row("", "", "")
    return Group(Text("EVENTS", HEADING), table)


def _effects(seen: Observed) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    unexpected = [line for line in seen.effects if line not in seen.effects_expected]
    for line in (*seen.effects_expected, *unexpected):
        count = seen.effects.get(line, 0)
        style = "dim" if count == 0 else "green" if count == 1 else "bold red"
        table.add_row("", Text(f"{count} x", style), Text(one_line(line, 34), style))
    return Group(Text("EFFECTS, counted outside of Tenure", HEADING), table)


def _promises(board: Board, seen: Observed) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    for promise in judge(seen):
        symbol = SCREEN_SYMBOLS[promise.kept if board.finished else None]
        table.add_row(symbol, promise.text, Text(f"({promise.actual})", "dim"))
    return Group(_verdict(board, judge(seen)), table)


def _verdict(board: Board, promises: tuple[Promise, ...]) -> Text:
    if not board.finished:
        return Text("PROMISES, judged at the end", HEADING)
    count = len(broken(promises))
    message = (f"{count} BROKEN", "bold red") if count else ("all kept", "bold green")
    return Text.assemble(("PROMISES: ", HEADING), message)


def _result(board: Board) -> Text:
    message = f"Its result: {board.result}" if board.result else ""
    return Text(one_line(message, COLUMNS - 1))


def _since(board: Board, moment: datetime) -> float:
    """Returns the seconds since the submit; negative for an earlier moment."""
    assert board.submitted_at is not None
    return (moment - board.submitted_at).total_seconds()


def _end(board: Board) -> datetime:
    return board.events[-1].at if board.finished else now()
