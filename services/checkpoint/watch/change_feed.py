"""The change feed, page by page: the changes of a tenant's tasks in an order that never gains an earlier row.

A read covers only rows below the oldest transaction still running: the feed waits for that transaction instead of
skipping what it may still write. sql/migrations/0007_feeds.sql says why a task's changes keep their order.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from services.checkpoint.lists import filter_parameters
from services.checkpoint.queries import LISTS, QUERIES, fetch_all, fetch_one, fetch_row
from tenure.domain.errors import InvalidRequest, OutOfRange
from tenure.domain.webhooks import GapReason
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import task_pb2
from tenure.wire.codec import writer

# A cursor is opaque to clients and valid at every replica.

_VERSION: Final = "1"
_MOST: Final = 2**63 - 1


class ChangeCursor(NamedTuple):
    """A position: everything up to (xid, position), inclusive, was read. Position 0: everything below that xid."""

    feed_id: str
    xid: int
    position: int

    def encoded(self) -> str:
        plain_text = f"{_VERSION} {self.feed_id} {self.xid} {self.position}"
        return base64.urlsafe_b64encode(plain_text.encode()).decode().rstrip("=")

    def to(self, behind: ChangeCursor) -> dict[str, Any]:
        """Returns the parameters of a statement that moves a cursor from here."""
        return {**self._asdict(), **{f"to_{name}": value for name, value in behind._asdict().items()}}

    @classmethod
    def decoded(cls, text: str) -> ChangeCursor:
        """Parses a cursor. Raises InvalidRequest for a text that the service did not issue."""
        try:
            plain_text = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
            version, feed_id, xid, position = plain_text.split(" ")
            cursor = cls(feed_id, int(xid), int(position))
        except (binascii.Error, UnicodeError, ValueError):
            raise _unreadable_cursor() from None
        if version != _VERSION or not (0 <= cursor.xid <= _MOST and 0 <= cursor.position <= _MOST):
            raise _unreadable_cursor()
        return cursor


def _unreadable_cursor() -> InvalidRequest:
    message = "is not a cursor of this service: use a cursor that WatchTasks returned"
    return InvalidRequest(violations=[("after_cursor", message)])


_log: Final = logging.getLogger(__name__)
CHANGES_A_PAGE: Final = 256


class RecordedChange(NamedTuple):
    """A row of the change feed with its cursor."""

    cursor: ChangeCursor
    task_id: str
    sequence: int
    state: str
    reason: str
    cancel_requested: bool
    changed_at: datetime

    def to_message(self, task: task_pb2.Task) -> task_pb2.TaskChange:
        """Returns the change as callers see it."""
        message = _change_to_wire(self)
        message.task.CopyFrom(task)
        return message


_change_to_wire = writer(RecordedChange, task_pb2.TaskChange, skip="cursor task")


@dataclass(frozen=True, slots=True)
class ChangePage:
    """The changes that match the filter, and the cursor after all rows that were read.

    - full: more rows may be readable at once
    - held_back: more rows exist, but a running transaction must end first
    """

    changes: list[RecordedChange]
    cursor: ChangeCursor
    full: bool
    held_back: bool


class FeedGap(NamedTuple):
    """Changes after a cursor can no longer be read. `cursor`: the position behind them."""

    reason: GapReason
    cursor: ChangeCursor

    def error(self) -> OutOfRange:
        """Returns the error for a caller whose cursor it was."""
        return OutOfRange(f"{_GAPS[self.reason]}: watch from now, and list the tasks", reason="CURSOR_EXPIRED")


_GAPS: Final = {
    GapReason.EXPIRED: "changes after the cursor were pruned",
    GapReason.OTHER_FEED: "the cursor belongs to another change feed",
    GapReason.PUT_BACK: "the cursor is ahead of this ledger, which was restored from a backup",
}


class _Feed(NamedTuple):
    """The columns of `feed`, in their order: up to where it was pruned, and the transactions of the snapshot.

    `horizon`: the oldest that runs. `newest`: no later one has begun.
    """

    feed_id: str
    pruned_xid: int
    pruned_position: int
    horizon: int
    newest: int

    @property
    def now(self) -> ChangeCursor:
        return ChangeCursor(self.feed_id, self.horizon, 0)

    def gap_after(self, cursor: ChangeCursor) -> FeedGap | None:
        oldest = ChangeCursor(self.feed_id, self.pruned_xid, self.pruned_position)
        if cursor.feed_id != self.feed_id:
            return FeedGap(GapReason.OTHER_FEED, oldest)
        if cursor.xid > self.newest:
            return FeedGap(GapReason.PUT_BACK, self.now)
        return FeedGap(GapReason.EXPIRED, oldest) if cursor < oldest else None


@dataclass(frozen=True, slots=True)
class FeedReader:
    """Reads the feed page by page. `statement`: one with the columns of `changes_after`."""

    pool: Pool
    statement: bytes
    parameters: dict[str, Any]
    page_size: int = CHANGES_A_PAGE

    @classmethod
    def of_tenant(cls, pool: Pool, tenant: str, task_filter: task_pb2.TaskFilter) -> FeedReader:
        """Returns a reader of the changes of a tenant's tasks that match the filter."""
        return cls(pool, LISTS.changes_after, filter_parameters(tenant, task_filter))

    async def read(self, cursor: ChangeCursor) -> ChangePage | FeedGap:
        """Returns the page after the cursor, or the gap there."""
        parameters = {**self.parameters, **cursor._asdict(), "page_size": self.page_size}
        async with pool_connection(self.pool) as connection:
            rows = await fetch_all(connection, self.statement, parameters)
        feed, held_back = _Feed(*rows[0][:5]), rows[0][5]
        if (gap := feed.gap_after(cursor)) is not None:
            return gap
        change_rows = [row[6:] for row in rows if row[6] is not None]
        changes = [
            RecordedChange(ChangeCursor(feed.feed_id, row[0], row[1]), *row[2:-1]) for row in change_rows if row[-1]
        ]
        full = len(change_rows) == self.page_size
        reached = ChangeCursor(feed.feed_id, *change_rows[-1][:2]) if full else max(cursor, feed.now)
        return ChangePage(changes, reached, full, held_back)


async def begin(pool: Pool, after_cursor: str) -> ChangeCursor:
    """Returns the cursor to read after: the given one, or now. Raises InvalidRequest or OutOfRange."""
    cursor = ChangeCursor.decoded(after_cursor) if after_cursor else None
    async with pool_connection(pool) as connection:
        row = await fetch_one(connection, QUERIES.feed, {})
    assert row is not None, "the row is made with the table and never deleted"
    feed = _Feed(*row)
    if cursor is None:
        return feed.now
    if (gap := feed.gap_after(cursor)) is not None:
        raise gap.error()
    return cursor


async def adopt_feed(pool: Pool) -> None:
    """Begins a new feed if the ledger was copied from another cluster, so that old cursors are refused. Call it at
    start.
    """
    if await in_transaction(pool, lambda ledger: fetch_one(ledger, QUERIES.adopt_feed, {})) is not None:
        _log.warning(
            "the ledger was copied from another cluster: the change feed begins anew and old cursors are refused"
        )


# The ledger keeps changes for a time, for readers that were disconnected, and prunes older ones in bounded batches.

CHANGES_A_BATCH: Final = 1000
LEFTOVERS_A_BATCH: Final = 5000
LONGEST_INTERVAL_SECONDS: Final = 60.0


class ChangePruner:
    """Prunes old changes. Of several replicas, one prunes at a time. Its transactions touch no row that a
    commit locks.
    """

    def __init__(self, pool: Pool, kept_seconds: float) -> None:
        self._pool = pool
        self._kept_seconds = kept_seconds
        self._interval_seconds = min(LONGEST_INTERVAL_SECONDS, max(0.1, kept_seconds / 10))
        self._pruned = metrics.cell("tenure_pruned_changes_total")

    async def run(self) -> None:
        """Runs as a duty until cancelled. A full batch is followed by the next at once."""
        while True:
            await self._clear_leftovers()
            note_progress()
            pruned = await self.prune_once()
            if pruned < CHANGES_A_BATCH:
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def prune_once(self) -> int:
        """Prunes one batch and returns the number of changes."""
        pruned = await in_transaction(self._pool, self._prune)
        self._pruned.value += pruned
        return pruned

    async def clear_leftovers_once(self) -> int:
        """Reads one batch and returns the number of rows. Less than a full batch: the end, or another replica
        does it.
        """
        return await in_transaction(self._pool, self._clear)

    async def _clear_leftovers(self) -> None:
        """Clears all leftovers before any pruning. Pauses after each batch for as long as the batch took."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while await self.clear_leftovers_once() == LEFTOVERS_A_BATCH:
            await rest(clock() - began)
            began = clock()

    async def _clear(self, connection: Connection) -> int:
        row = await fetch_row(connection, QUERIES.clear_leftovers, {"limit": LEFTOVERS_A_BATCH})
        walked: int = row[0]
        return walked

    async def _prune(self, connection: Connection) -> int:
        parameters = {"limit": CHANGES_A_BATCH, "kept_seconds": self._kept_seconds}
        row = await fetch_row(connection, QUERIES.prune_changes, parameters)
        pruned: int = row[0]
        return pruned
