"""The picture of the lifecycle is the table of moves, and the table is the database's."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.domain.states import MOVES

PICTURE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def drawn() -> list[tuple[str, str]]:
    """The arrows between states, as drawn."""
    text = PICTURE.read_text().split("```mermaid")[1].split("```")[0]
    return re.findall(r"^\s*(\w+) --> (\w+)", text, re.MULTILINE)


def test_the_picture_draws_every_move_once_and_no_other() -> None:
    allowed = sorted((state.value, target.value) for state, targets in MOVES.items() for target in targets)
    assert sorted(drawn()) == allowed
