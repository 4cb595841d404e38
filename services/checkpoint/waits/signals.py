"""Events from outside: kept until a wait takes them, or a wait is there already. Each is taken by one wait, once.

A wait looks for events that are kept in the transaction that begins it, and an event looks for a wait in the one that
records it. The two may miss each other when both commit at the same moment; a sweep brings them together. Tasks are
locked first and events after that, only those that nobody else is at: so nobody waits for anybody.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one, in_ledger_transaction
from services.checkpoint.reads import read_tasks
from services.checkpoint.waits import waits
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.errors import AlreadyExists, LimitReached
from tenure.runtime.failpoints import failpoint
from tenure.v1 import task_pb2

if TYPE_CHECKING:
    from tenure.runtime.postgres import Connection, Pool
    from tenure.v1 import checkpoint_service_pb2 as pb

KEPT_SECONDS: Final = 7 * 24 * 3600.0
MOST_KEPT: Final = 100
"""Under one correlation id."""

FORGOTTEN_AT_ONCE: Final = 100


class SignalResult(NamedTuple):
    """The task that took the event, None while it is kept and once that task is pruned; and what to announce."""

    task: task_pb2.Task | None
    announcement: Announcement


async def send_signal(pool: Pool, tenant: str, request: pb.SendSignalRequest) -> SignalResult:
    """Raises AlreadyExists (REQUEST_ID_REUSED), LimitReached (SIGNALS_FULL)."""

    async def work(connection: Connection) -> SignalResult:
        await _record(connection, tenant, request)
        drafts = await _deliver_to_waiting(connection, tenant, request.correlation_id)
        taken_by = (await _find(connection, tenant, request))[1]
        tasks = await read_tasks(connection, tenant, [taken_by] if taken_by else [])
        return SignalResult(tasks[0] if tasks else None, announcement_of(drafts))

    await failpoint("checkpoint.before_signal")
    sent = await in_ledger_transaction(pool, work)
    await failpoint("checkpoint.after_signal")
    return sent


async def take_kept(connection: Connection, draft: Draft) -> None:
    """Gives the task that waits for an event the oldest one that is kept for it, if there is any."""
    row = draft.row
    if not row.wait_correlation:
        return
    parameters = {"tenant": row.tenant, "correlation_id": row.wait_correlation, "task_id": row.task_id}
    taken = await fetch_one(connection, QUERIES.take_signal, parameters)
    if taken is not None:
        payload, actor, request_id = taken
        waits.deliver(draft, payload.decode(), actor, request_id)


async def forget_old(pool: Pool) -> None:
    """Events that nobody waited for in time, a bounded number."""
    parameters = {"kept_seconds": KEPT_SECONDS, "limit": FORGOTTEN_AT_ONCE}

    async def work(connection: Connection) -> None:
        await connection.execute(QUERIES.forget_signals, parameters)

    await in_ledger_transaction(pool, work)


async def _record(connection: Connection, tenant: str, request: pb.SendSignalRequest) -> None:
    """A row of its own for each request_id; the unique key decides between two at once."""
    digest = _digest(request)
    parameters = {
        "tenant": tenant,
        "correlation_id": request.correlation_id,
        "request_id": request.request_id,
        "hash": digest,
        "actor": request.actor,
        "payload": request.payload_json.encode(),
        "most": MOST_KEPT,
    }
    if await fetch_one(connection, QUERIES.keep_signal, parameters) is not None:
        return
    row = await fetch_one(connection, QUERIES.find_signal, _key(tenant, request))
    if row is None:
        raise LimitReached(
            f"{MOST_KEPT} events wait under this correlation_id for somebody to take them", reason="SIGNALS_FULL"
        )
    if row[0] != digest:
        raise AlreadyExists("this request_id was used for another event", reason="REQUEST_ID_REUSED")


async def _find(connection: Connection, tenant: str, request: pb.SendSignalRequest) -> tuple[bytes, str | None]:
    row = await fetch_one(connection, QUERIES.find_signal, _key(tenant, request))
    assert row is not None, "recorded in this transaction, or found by it"
    return row[0], row[1]


async def _deliver_to_waiting(connection: Connection, tenant: str, correlation_id: str) -> list[Draft]:
    """The task that has waited longest, if it still does once it is locked."""
    parameters = {"tenant": tenant, "correlation_id": correlation_id}
    waiting = [task_id for (task_id,) in await fetch_all(connection, QUERIES.waiting_for, parameters)]
    if not waiting:
        return []
    tasks, budgets = await lock_tasks(connection, waiting)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
    for draft in drafts:
        if draft.row.wait_correlation == correlation_id:
            await take_kept(connection, draft)
    await write(connection, drafts)
    return drafts


def _key(tenant: str, request: pb.SendSignalRequest) -> dict[str, str]:
    return {"tenant": tenant, "correlation_id": request.correlation_id, "request_id": request.request_id}


def _digest(request: pb.SendSignalRequest) -> bytes:
    return hashlib.sha256(request.payload_json.encode()).digest()
