"""Signals: the ledger keeps an event from outside until a wait with its correlation id takes it, once.

A wait looks for kept signals in the transaction that begins it, and a signal looks for a wait in the transaction that
records it. The two may miss each other when both commit at the same moment; a sweep delivers such signals: those of the
last seconds at once, and any that is older, because a transaction took that long, within FORGET_INTERVAL_SECONDS. Every
transaction locks tasks first and signals after them, and skips signals that another transaction has locked, so none
waits for another.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.queries import QUERIES, fetch_all, fetch_in_transaction, fetch_one
from services.checkpoint.reads import read_tasks
from services.checkpoint.waits import waits
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.errors import AlreadyExists, LimitReached
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2

KEPT_SECONDS: Final = 7 * 24 * 3600.0
MAX_KEPT: Final = 100
"""The most signals kept under one correlation id."""
MAX_KEPT_OF_TENANT: Final = 10_000
"""The most signals kept for one tenant. A signal costs the time to count them."""

FORGOTTEN_AT_ONCE: Final = 100


class SignalResult(NamedTuple):
    """The task that took the signal, None while the signal is kept and after that task was pruned; and the
    announcement.
    """

    task: task_pb2.Task | None
    announcement: Announcement


async def send_signal(pool: Pool, tenant: str, request: pb.SendSignalRequest) -> SignalResult:
    """Records a signal and delivers it to a waiting task. Raises AlreadyExists (REQUEST_ID_REUSED), LimitReached
    (SIGNALS_FULL).
    """

    async def work(connection: Connection) -> SignalResult:
        await _record(connection, tenant, request)
        drafts = await _deliver_to_waiting(connection, tenant, request.correlation_id)
        taken_by = (await _find(connection, tenant, request))[1]
        tasks = await read_tasks(connection, tenant, [taken_by] if taken_by else [])
        return SignalResult(tasks[0] if tasks else None, announcement_of(drafts))

    await failpoint("checkpoint.before_signal")
    sent = await in_transaction(pool, work)
    await failpoint("checkpoint.after_signal")
    return sent


async def take_kept(connection: Connection, draft: Draft) -> None:
    """Delivers the oldest kept signal to the task that waits for it, if there is any."""
    row = draft.row
    if not row.wait_correlation:
        return
    parameters = {"tenant": row.tenant, "correlation_id": row.wait_correlation, "task_id": row.task_id}
    taken = await fetch_one(connection, QUERIES.take_signal, parameters)
    if taken is not None:
        payload, actor, request_id = taken
        waits.deliver(draft, payload.decode(), actor, request_id)


async def forget_old(pool: Pool) -> None:
    """Deletes all signals that were kept for long enough, a bounded number in each transaction."""
    parameters = {"kept_seconds": KEPT_SECONDS, "limit": FORGOTTEN_AT_ONCE}
    while len(await fetch_in_transaction(pool, QUERIES.forget_signals, parameters)) == FORGOTTEN_AT_ONCE:
        note_progress()


async def _record(connection: Connection, tenant: str, request: pb.SendSignalRequest) -> None:
    """Inserts one row per request id; the unique key decides between two concurrent requests."""
    digest = _digest(request)
    parameters = {
        "tenant": tenant,
        "correlation_id": request.correlation_id,
        "request_id": request.request_id,
        "hash": digest,
        "actor": request.actor,
        "payload": request.payload_json.encode(),
        "most": MAX_KEPT,
        "most_of_tenant": MAX_KEPT_OF_TENANT,
    }
    if await fetch_one(connection, QUERIES.keep_signal, parameters) is not None:
        return
    row = await fetch_one(connection, QUERIES.find_signal, _key(tenant, request))
    if row is None:
        raise LimitReached(
            f"{MAX_KEPT} signals are kept already under this correlation_id or {MAX_KEPT_OF_TENANT:,} for this tenant; "
            "send it again when a task has taken one",
            reason="SIGNALS_FULL",
        )
    if row[0] != digest:
        message = "this request_id was used for another signal: use a new request_id"
        raise AlreadyExists(message, reason="REQUEST_ID_REUSED")


async def _find(connection: Connection, tenant: str, request: pb.SendSignalRequest) -> tuple[bytes, str | None]:
    row = await fetch_one(connection, QUERIES.find_signal, _key(tenant, request))
    assert row is not None, "recorded in this transaction, or found by it"
    return row[0], row[1]


async def _deliver_to_waiting(connection: Connection, tenant: str, correlation_id: str) -> list[Draft]:
    """Delivers to the task that has waited longest, if it still waits once its row is locked."""
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
