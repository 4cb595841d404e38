"""A locked task row knows whether a commit changed more than what each commit changes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from services.checkpoint.columns import ADVANCE, STEP
from services.checkpoint.rows import TaskRow

HINTS = get_type_hints(TaskRow, include_extras=True)
STEPPED = {name: hint for name, hint in HINTS.items() if STEP in getattr(hint, "__metadata__", ())}
OTHER_VALUES: dict[Any, Any] = {int: 7, bool: True, str: "other", bytes: b"other", tuple[str, ...]: ("1.0",)}


def locked_row() -> TaskRow:
    empty: dict[str, Any] = {"state": "RUNNING", "calls_in_doubt": [], "dead_owners": [], "open_calls": []}
    return TaskRow(**{field.name: empty.get(field.name, 0) for field in fields(TaskRow) if field.init})


def test_unchanged_row_only_advances() -> None:
    assert locked_row().only_advanced


@pytest.mark.parametrize("name", STEPPED)
def test_row_only_advances_without_changes_of_calls(name: str) -> None:
    row, hint = locked_row(), STEPPED[name]
    setattr(row, name, OTHER_VALUES[get_args(hint)[0]])
    assert row.only_advanced == (ADVANCE in hint.__metadata__)
