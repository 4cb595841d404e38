"""Names of no tool, wherever somebody gives a list of names: which they are, and which names are nearest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final, NamedTuple

MAX_UNKNOWN: Final = 10
"""So many are named at once: comparing a name with all others takes its time."""

MAX_NEAREST: Final = 3


class UnknownTool(NamedTuple):
    """A name of no tool, and the most similar names of tools that there are."""

    name: str
    nearest: tuple[str, ...]


def unknown_tools(names: Iterable[str], known: Collection[str]) -> list[UnknownTool]:
    """The first of the names that are not known."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    first = islice(unknown, MAX_UNKNOWN)
    return [UnknownTool(name, tuple(get_close_matches(name, known, MAX_NEAREST))) for name in first]


def unknown_tool_text(name: str, nearest: Sequence[str]) -> str:
    """A clause for whoever gave the name."""
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return f"there is no tool {name!r}{hint}"
