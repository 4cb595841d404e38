"""What the methods of ScheduleService do to the rows."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import uuid_utils

from services.checkpoint.queries import fetch_all, fetch_one, in_ledger_transaction, ledger_connection
from services.checkpoint.schedules.rows import SCHEDULES, RunRecord, ScheduleRow, read_runs, read_schedule
from services.checkpoint.schedules.starting import start_run
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound
from tenure.domain.schedules import DEFAULT_CATCH_UP_SECONDS, RunOutcome, Times, read_zone
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.schedules import OVERLAP_POLICIES
from tenure.wire.times import moment, seconds

if TYPE_CHECKING:
    from datetime import datetime

    from services.checkpoint.create import Created
    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.postgres import Connection, Pool

DEFAULT_RUNS: Final = 20
DEFAULT_SCHEDULES: Final = 50
PAGE_BYTES: Final = 2_000_000
_TRIGGER: Final = "trigger/"


async def create_schedule(pool: Pool, tenant: str, request: pb.CreateScheduleRequest, most: int) -> pb.Schedule:
    """Raises AlreadyExists (SCHEDULE_EXISTS), LimitReached (TOO_MANY_SCHEDULES), InvalidRequest (never due)."""
    digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
    times = _times(request)

    async def work(connection: Connection) -> pb.Schedule:
        await connection.execute(SCHEDULES.lock_tenant, {"tenant": tenant})
        found = await _find_again(connection, tenant, request.name, digest)
        if found is None:
            await _check_room(connection, tenant, most)
            await connection.execute(SCHEDULES.create, await _new_row(connection, tenant, request, digest, times))
            found = await read_schedule(connection, tenant, request.name)
        return found.schedule()

    return await in_ledger_transaction(pool, work)


async def get_schedule(pool: Pool, tenant: str, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
    """Raises NotFound."""
    async with ledger_connection(pool) as connection:
        row = await read_schedule(connection, tenant, request.schedule)
        runs = await read_runs(connection, row.schedule_id, request.run_count or DEFAULT_RUNS)
    return pb.GetScheduleResponse(schedule=row.schedule(), runs=runs)


async def list_schedules(pool: Pool, tenant: str, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    """A page by name. The token is the last name."""
    parameters = {
        "tenant": tenant,
        "after_name": request.page_token,
        "page_size": request.page_size or DEFAULT_SCHEDULES,
        "page_bytes": PAGE_BYTES,
    }
    async with ledger_connection(pool) as connection:
        counted = await fetch_one(connection, SCHEDULES.count_after, parameters)
        rows = [ScheduleRow(*columns) for columns in await fetch_all(connection, SCHEDULES.list, parameters)]
    assert counted is not None, "a count has a row"
    more = bool(rows) and counted[0] > len(rows)
    return pb.ListSchedulesResponse(
        schedules=[row.schedule() for row in rows], next_page_token=rows[-1].name if more else ""
    )


async def pause_schedule(pool: Pool, tenant: str, request: pb.PauseScheduleRequest) -> pb.Schedule:
    """Raises NotFound."""

    async def work(connection: Connection) -> pb.Schedule:
        row = await read_schedule(connection, tenant, request.schedule, lock=True)
        parameters = {"schedule_id": row.schedule_id, "reason": request.reason, "actor": request.actor}
        await connection.execute(SCHEDULES.pause, parameters)
        return (await read_schedule(connection, tenant, row.schedule_id)).schedule()

    return await in_ledger_transaction(pool, work)


async def resume_schedule(pool: Pool, tenant: str, schedule: str) -> pb.Schedule:
    """Raises NotFound. What comes next is never before what came next when it was paused."""

    async def work(connection: Connection) -> pb.Schedule:
        row = await read_schedule(connection, tenant, schedule, lock=True)
        if not row.paused:
            return row.schedule()
        next_due_at = row.next_due_at
        if next_due_at is not None and next_due_at <= row.now:
            next_due_at = row.times.next_after(row.now)
        await connection.execute(SCHEDULES.resume, {"schedule_id": row.schedule_id, "next_due_at": next_due_at})
        return (await read_schedule(connection, tenant, row.schedule_id)).schedule()

    return await in_ledger_transaction(pool, work)


async def trigger_schedule(
    pool: Pool, tenant: str, request: pb.TriggerScheduleRequest, defaults: TaskDefaults
) -> Created:
    """Raises NotFound, and what CreateTask does."""

    async def work(connection: Connection) -> Created:
        row = await read_schedule(connection, tenant, request.schedule, lock=True)
        source_run_id = _TRIGGER + request.request_id
        created = await start_run(connection, row, source_run_id, defaults, may_refuse=True)
        if created.announcement:  # a repeat finds its task, and has been recorded
            record = RunRecord(row.schedule_id)
            record.add(row.now, RunOutcome.STARTED, task_id=created.task.task_id, source_run_id=source_run_id)
            await record.write(connection)
            await connection.execute(SCHEDULES.count_started, {"schedule_id": row.schedule_id})
        return created

    return await in_ledger_transaction(pool, work)


async def delete_schedule(pool: Pool, tenant: str, schedule: str) -> bool:
    """Whether it was there."""

    async def work(connection: Connection) -> bool:
        try:
            row = await read_schedule(connection, tenant, schedule, lock=True)
        except NotFound:
            return False
        await connection.execute(SCHEDULES.delete, {"schedule_id": row.schedule_id})
        return True

    return await in_ledger_transaction(pool, work)


def _times(request: pb.CreateScheduleRequest) -> Times:
    return Times(
        request.cron,
        read_zone(request.time_zone or "UTC"),
        moment(request.start_time) if request.HasField("start_time") else None,
        moment(request.end_time) if request.HasField("end_time") else None,
    )


async def _find_again(connection: Connection, tenant: str, name: str, digest: bytes) -> ScheduleRow | None:
    found = await fetch_one(connection, SCHEDULES.find, {"tenant": tenant, "schedule_id": "", "name": name})
    if found is None:
        return None
    row = ScheduleRow(*found)
    if row.request_hash != digest:
        raise AlreadyExists(
            f"there is another schedule named {name}",
            reason="SCHEDULE_EXISTS",
            metadata={"schedule_id": row.schedule_id},
        )
    return row


async def _check_room(connection: Connection, tenant: str, most: int) -> None:
    found = await fetch_one(connection, SCHEDULES.count, {"tenant": tenant})
    assert found is not None, "a count has a row"
    if found[0] >= most:
        raise LimitReached(f"a tenant may have {most:,} schedules", reason="TOO_MANY_SCHEDULES")


async def _new_row(
    connection: Connection, tenant: str, request: pb.CreateScheduleRequest, digest: bytes, times: Times
) -> dict[str, Any]:
    found = await fetch_one(connection, SCHEDULES.now, {})
    assert found is not None, "the clock has a row"
    now: datetime = found[0]
    next_due_at = times.next_after(now)
    if next_due_at is None:
        raise InvalidRequest(violations=[("cron", "never comes due from now on, between start_time and end_time")])
    window = request.catch_up_window
    return {
        "schedule_id": str(uuid_utils.uuid7()),
        "tenant": tenant,
        "name": request.name,
        "request_hash": digest,
        "spec": request.spec.SerializeToString(deterministic=True),
        "cron": request.cron,
        "time_zone": request.time_zone or "UTC",
        "overlap_policy": OVERLAP_POLICIES.to_domain(request.overlap_policy).value,
        "catch_up_seconds": seconds(window) if request.HasField("catch_up_window") else DEFAULT_CATCH_UP_SECONDS,
        "starts_at": times.starts_at,
        "ends_at": times.ends_at,
        "next_due_at": next_due_at,
    }
