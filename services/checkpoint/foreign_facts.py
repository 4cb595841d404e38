"""What others appended to a task while its owner worked: read for many owners at once, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.entries import entry_of
from services.checkpoint.queries import QUERIES, fetch_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.runtime.postgres import Connection
    from tenure.v1 import ledger_pb2

MOST_ENTRIES: Final = 512
MOST_BYTES: Final = 1024 * 1024


class ForeignRange(NamedTuple):
    """The entries after `after` up to `until` of one commit's task; `place` is the commit's in its batch."""

    place: int
    task_id: str
    after: int
    until: int


@dataclass(slots=True)
class ForeignEntries:
    """By the commit's index. `cut`: there is more than one answer may hold, the owner must open again."""

    entries: dict[int, list[ledger_pb2.Entry]] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)

    def of(self, index: int) -> list[ledger_pb2.Entry]:
        """Those of one commit, mostly none."""
        return self.entries.get(index, [])


async def read_foreign(connection: Connection, ranges: Sequence[ForeignRange]) -> ForeignEntries:
    """One statement for all; none when there is nothing to read."""
    found = ForeignEntries()
    if not ranges:
        return found
    parameters = {
        "ords": [one.place for one in ranges],
        "task_ids": [one.task_id for one in ranges],
        "afters": [one.after for one in ranges],
        "untils": [one.until for one in ranges],
        "most_entries": MOST_ENTRIES,
        "most_bytes": MOST_BYTES,
    }
    for index, *columns in await fetch_all(connection, QUERIES.foreign_entries, parameters):
        found.entries.setdefault(index, []).append(entry_of(columns))
    for one in ranges:
        if len(found.of(one.place)) < one.until - one.after:
            found.cut.add(one.place)
    return found
