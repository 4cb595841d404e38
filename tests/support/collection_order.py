"""The order of the files: those that keep processors busy and those that mostly wait take turns.

Several processes run the suite on few processors. If all of them were at the fault suite first, each would wait for the
others' processors, and later, at the tests that wait for a lease to end, the processors would have nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

TAKE_TURNS: Final = ("fault", "conformance")
"""Folders whose files share nothing but what a whole session does."""
HERE: Final = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    folders = [[path for path in by_file if HERE / name in path.parents] for name in TAKE_TURNS]
    in_turns = mixed(folders)
    others = [path for path in by_file if path not in set(in_turns)]
    items[:] = chain.from_iterable(by_file[path] for path in [*in_turns, *others])


def mixed(groups: Sequence[Sequence[Path]]) -> list[Path]:
    """All of them, each group in its order and spread evenly over the whole."""
    places = [((number + 0.5) / len(group), path) for group in groups for number, path in enumerate(group)]
    return [path for _, path in sorted(places, key=lambda place: place[0])]
