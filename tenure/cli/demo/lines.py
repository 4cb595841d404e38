"""The board as plain lines: for logs, pipes and small terminals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Never

from tenure.cli.demo.board import Board, Event

LOOK_SECONDS: Final = 0.1
SYMBOLS: Final = {True: "✔", False: "✘"}


async def tell(board: Board, say: Callable[[str], None]) -> Never:
    """Says each event when it happens, until cancelled."""
    said = 0
    try:
        while True:
            said = _catch_up(board, say, said)
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        _catch_up(board, say, said)


def verdict(board: Board, say: Callable[[str], None]) -> None:
    """The effects, the promises and the answer."""
    seen = board.observed()
    for line in seen.effects_expected:
        say(f"{seen.effects.get(line, 0)} x  {line}")
    for promise in board.promises():
        say(f"{SYMBOLS[promise.kept]}  {promise.text} ({promise.found})")
    if board.result:
        say(f"its answer: {board.result.strip()}")


def _catch_up(board: Board, say: Callable[[str], None], said: int) -> int:
    for event in board.events[said:]:
        say(_line(board, event))
    return len(board.events)


def _line(board: Board, event: Event) -> str:
    if board.submitted_at is None:
        return f"         {event.text}"
    return f"{(event.at - board.submitted_at).total_seconds():6.1f} s {event.text}"
