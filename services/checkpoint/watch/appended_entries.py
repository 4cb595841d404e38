"""The entries that one transaction added to one task, kept for a short time for watchers that have all earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from services.checkpoint.entries import entry_of
from services.checkpoint.rows import NewEntryRow
from tenure.v1 import ledger_pb2


@dataclass(frozen=True)
class AppendedEntries:
    """At least one entry row, in order. `closes`: the last entry ends the task."""

    rows: Sequence[NewEntryRow]
    recorded_at: datetime
    closes: bool

    @property
    def first(self) -> int:
        return self.rows[0].sequence

    @property
    def last(self) -> int:
        return self.rows[-1].sequence

    @cached_property
    def size_bytes(self) -> int:
        """The size of all bodies, in bytes."""
        return sum(len(row.body) for row in self.rows)

    @cached_property
    def entries(self) -> list[ledger_pb2.Entry]:
        """The entries as messages, made once for all watchers and only when there is one."""
        return entries_of(self.rows, self.recorded_at)


def entries_of(rows: Sequence[NewEntryRow], recorded_at: datetime) -> list[ledger_pb2.Entry]:
    """Returns rows as entries, as a reader of the ledger gets them."""
    return [
        entry_of((row.sequence, row.epoch, row.claim_id, row.attempt, row.step, row.actor, recorded_at, row.body))
        for row in rows
    ]
