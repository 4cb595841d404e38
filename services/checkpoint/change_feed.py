"""The feed of changes, page by page: what transactions did to a tenant's tasks, in an order that nothing joins late.

Only rows below the oldest transaction still running are read: the feed waits for that one rather than skip what it may
yet write. Why a task's changes keep their order is said in sql/migrations/0004_changes.sql.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.checkpoint.change_cursor import Cursor
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one, in_ledger_transaction, ledger_connection
from tenure.domain.errors import OutOfRange
from tenure.domain.states import TaskState
from tenure.v1 import task_pb2
from tenure.wire.enums import STATES
from tenure.wire.times import timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.runtime.postgres import Connection, Pool

_log: Final = logging.getLogger(__name__)
CHANGES_A_PAGE: Final = 256


class Change(NamedTuple):
    """A row of the feed, and where it stands there."""

    cursor: Cursor
    task_id: str
    sequence: int
    state: str
    reason: str
    cancel_requested: bool
    changed_at: datetime

    def told(self, task: task_pb2.Task | None) -> task_pb2.TaskChange:
        """As callers see it."""
        return task_pb2.TaskChange(
            task_id=self.task_id,
            sequence=self.sequence,
            state=STATES.to_wire(TaskState(self.state)),
            reason=self.reason,
            cancel_requested=self.cancel_requested,
            change_time=timestamp(self.changed_at),
            task=task,
        )


@dataclass(frozen=True, slots=True)
class ChangePage:
    """The changes that fit the filter, and the cursor behind all that were looked at.

    `full`: there may be more to read at once; `held_back`: there is more, for which a transaction must end first.
    """

    changes: list[Change]
    cursor: Cursor
    full: bool
    held_back: bool


async def begin(pool: Pool, after_cursor: str) -> Cursor:
    """Where to read on: after a cursor that was given out, else from now. Raises InvalidRequest, OutOfRange."""
    cursor = Cursor.decoded(after_cursor) if after_cursor else None
    async with ledger_connection(pool) as connection:
        found = await fetch_one(connection, QUERIES.feed, {})
    assert found is not None, "the row is made with the table and never deleted"
    feed_id, pruned_xid, pruned_position, horizon, newest = found
    if cursor is None:
        return Cursor(feed_id, horizon, 0)
    if cursor.xid > newest:
        raise OutOfRange(
            "the cursor is ahead of this ledger, which was put back in time: watch from now, and list the tasks",
            reason="CURSOR_EXPIRED",
        )
    _check_kept(cursor, feed_id, (pruned_xid, pruned_position))
    return cursor


async def read_changes(pool: Pool, tenant: str, wanted: dict[str, Any], cursor: Cursor) -> ChangePage:
    """The next page. Raises OutOfRange (CURSOR_EXPIRED) when what came after the cursor was pruned."""
    parameters = {
        "tenant": tenant,
        **wanted,
        "xid": cursor.xid,
        "position": cursor.position,
        "page_size": CHANGES_A_PAGE,
    }
    async with ledger_connection(pool) as connection:
        rows = await fetch_all(connection, QUERIES.changes_after, parameters)
    feed_id, pruned_xid, pruned_position, horizon, held_back = rows[0][:5]
    _check_kept(cursor, feed_id, (pruned_xid, pruned_position))
    found = [row[5:] for row in rows if row[5] is not None]
    changes = [Change(Cursor(feed_id, row[0], row[1]), *row[2:-1]) for row in found if row[-1]]
    full = len(found) == CHANGES_A_PAGE
    reached = Cursor(feed_id, *found[-1][:2]) if full else max(cursor, Cursor(feed_id, horizon, 0))
    return ChangePage(changes, reached, full, held_back)


async def adopt_feed(pool: Pool) -> None:
    """Call at the start: a ledger copied from another cluster begins a new feed, and old cursors are refused."""

    async def work(connection: Connection) -> tuple[Any, ...] | None:
        return await fetch_one(connection, QUERIES.adopt_feed, {})

    if await in_ledger_transaction(pool, work) is not None:
        _log.warning("the ledger was copied here from another cluster: the feed of changes begins anew")


def _check_kept(cursor: Cursor, feed_id: str, pruned: tuple[int, int]) -> None:
    if cursor.feed_id != feed_id:
        raise OutOfRange(
            "the cursor is of another feed of changes: watch from now, and list the tasks", reason="CURSOR_EXPIRED"
        )
    if (cursor.xid, cursor.position) < pruned:
        raise OutOfRange(
            "what came after the cursor is no longer kept: watch from now, and list the tasks", reason="CURSOR_EXPIRED"
        )
