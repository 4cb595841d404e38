"""Facts in portions that fit into a commit each: an outcome too many must not be what keeps a task from its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

MOST_ENTRIES: Final = 256
MOST_BYTES: Final = 900_000
"""Under the ledger's 1 MiB, which counts the whole commit."""

Item = TypeVar("Item")


def is_one_portion(items: Sequence[Item], size: Callable[[Item], int]) -> bool:
    """Whether all of them fit into one commit, for what must be written at once."""
    return len(items) <= MOST_ENTRIES and sum(map(size, items)) <= MOST_BYTES


def portions(items: Sequence[Item], size: Callable[[Item], int], *, last_bytes: int = 0) -> list[list[Item]]:
    """The items in order, in at least one portion. The last one has room for `last_bytes` more, empty if it must be.

    One item alone always fits, and so does what travels with the last: their own limits are lower.
    """
    made: list[list[Item]] = []
    current: list[Item] = []
    used = 0
    for item in items:
        item_bytes = size(item)
        if current and (len(current) == MOST_ENTRIES or used + item_bytes > MOST_BYTES):
            made.append(current)
            current, used = [], 0
        current.append(item)
        used += item_bytes
    made.append(current)
    if current and used + last_bytes > MOST_BYTES:
        made.append([])
    return made
