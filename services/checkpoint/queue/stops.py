"""Stops, by operators and by quotas of 0: which are in force, and which processes keep to the newest epoch.

The statements of offers, grants and reservations read the table of stops in their own snapshots. A stop is committed,
then waits for the transactions that had begun before it; so nothing that it covers is committed after its answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from services.checkpoint.queries import QUEUE, fetch_all, fetch_one, fetch_row
from tenure.domain.errors import LimitReached, NotFound, Unavailable
from tenure.domain.stops import MAX_STOPS, Stop, StopsInForce, keeps_unknown, lost_stops
from tenure.runtime.store.barrier import earlier_have_ended
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.stops import stop_to_domain, stop_to_wire

BARRIER_SECONDS: Final = 3.0
MAX_TASKS: Final = 1000


async def begin_stop(pool: Pool, wanted: Stop) -> Stop:
    """Begins a stop, or confirms the present one of the same selectors. No covered grant or reservation follows.

    Raises LimitReached (TOO_MANY_STOPS), and Unavailable (STOP_UNCONFIRMED) when a transaction that began before does
    not end: the stop is in force all the same, and a repeat confirms it.
    """
    begun = await in_transaction(pool, partial(write_stop, wanted=wanted))
    await confirm_stop(pool)
    return begun


async def write_stop(connection: Connection, wanted: Stop) -> Stop:
    """Writes a stop, or the next epoch of the present one. After the commit, `confirm_stop`.

    Raises LimitReached (TOO_MANY_STOPS).
    """
    epoch = await _next_epoch(connection)
    present = (await _read(connection)).stops
    if len(present) + len(lost_stops(present, [wanted])) > MAX_STOPS:
        message = f"{MAX_STOPS} stops are in force: end one of them, or begin a wider one"
        raise LimitReached(message, reason="TOO_MANY_STOPS")
    return Stop(*await fetch_row(connection, QUEUE.begin_stop, {**_columns(wanted), "epoch": epoch}))


async def confirm_stop(pool: Pool) -> None:
    """Waits for the transactions that began before the commit of a stop. Raises Unavailable (STOP_UNCONFIRMED)."""
    if not await earlier_have_ended(pool, BARRIER_SECONDS):
        message = f"a transaction of the ledger from before the stop has not ended within {BARRIER_SECONDS:g} s"
        raise Unavailable(f"{message}: repeat the request", reason="STOP_UNCONFIRMED")


async def end_stop(pool: Pool, selectors: Stop) -> Stop:
    """Ends the stop of exactly these selectors, and returns it as it was, with the epoch from which it is over.

    Raises NotFound (NO_SUCH_STOP).
    """
    ended = await in_transaction(pool, partial(delete_stop, selectors=selectors))
    if ended is None:
        message = f"no operator's stop of {selectors.describe()} is in force: tenure admin stops lists those that are"
        by_quota = replace(selectors, by_quota=True).end_command
        hint = f"; {by_quota} ends a stop by a quota of 0" if selectors.tenant else ""
        raise NotFound(f"{message}{hint}", reason="NO_SUCH_STOP")
    return ended


async def delete_stop(connection: Connection, selectors: Stop) -> Stop | None:
    """Deletes the stop of exactly these selectors. Returns it with the epoch from which it is over; None: no stop."""
    epoch = await _next_epoch(connection)
    row = await fetch_one(connection, QUEUE.end_stop, _selectors(selectors))
    return None if row is None else replace(Stop(*row), epoch=epoch)


async def list_stops(pool: Pool, request: admin_pb.ListStopsRequest) -> admin_pb.ListStopsResponse:
    """Returns the stops in force, and notes the epoch that the reader keeps to.

    Stops that the reader keeps to and that the ledger does not know were lost when it was restored: they return.
    """
    async with pool_connection(pool) as connection:
        in_force = await _read(connection)
    applied = StopsInForce(request.applied_epoch, tuple(map(stop_to_domain, request.applied)))
    if keeps_unknown(applied, in_force):
        in_force = await _adopt(pool, applied)
    late = list[str]()
    async with pool_connection(pool) as connection:
        if request.reader:
            reader = {"reader": request.reader, "epoch": request.applied_epoch}
            await connection.execute(QUEUE.note_stop_reader, reader)
        else:
            late = [name for (name,) in await fetch_all(connection, QUEUE.late_stop_readers, {})]
    return admin_pb.ListStopsResponse(epoch=in_force.epoch, stops=map(stop_to_wire, in_force.stops), late_readers=late)


async def _adopt(pool: Pool, applied: StopsInForce) -> StopsInForce:
    async def work(connection: Connection) -> StopsInForce:
        epoch = await _next_epoch(connection, applied.epoch)
        known = (await _read(connection)).stops
        for stop in lost_stops(known, applied.stops):
            adopted = {**_columns(stop), "stopped_at": stop.stop_time, "epoch": epoch}
            await connection.execute(QUEUE.adopt_stop, adopted)
        return await _read(connection)

    return await in_transaction(pool, work)


async def list_stopped_tasks(pool: Pool, stop: Stop) -> pb.ListStoppedTasksResponse:
    """Returns the tasks that the stop selects and whose calls may be in flight, also without a worker."""
    selected = {"tenant": stop.tenant, "agent": stop.agent, "queue": stop.queue, "most": MAX_TASKS + 1}
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, QUEUE.stopped_tasks, selected)
    tasks = [
        pb.ListStoppedTasksResponse.StoppedTask(task_id=task_id, tenant=tenant, model_open=model_open)
        for task_id, tenant, model_open in rows[:MAX_TASKS]
    ]
    return pb.ListStoppedTasksResponse(tasks=tasks, more=len(rows) > MAX_TASKS)


async def _next_epoch(connection: Connection, seen: int = 0) -> int:
    epoch: int = (await fetch_row(connection, QUEUE.next_stop_epoch, {"seen": seen}))[0]
    return epoch


async def _read(connection: Connection) -> StopsInForce:
    rows = await fetch_all(connection, QUEUE.stops, {})
    return StopsInForce(rows[0][0], tuple(Stop(*row[1:]) for row in rows if row[1] is not None))


def _selectors(stop: Stop) -> dict[str, Any]:
    selectors = {"tenant": stop.tenant, "agent": stop.agent, "queue": stop.queue, "tool": stop.tool}
    return {**selectors, "by_quota": stop.by_quota}


def _columns(stop: Stop) -> dict[str, Any]:
    return {**_selectors(stop), "reason": stop.reason, "actor": stop.stopped_by}
