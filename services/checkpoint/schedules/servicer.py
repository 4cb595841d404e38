"""ScheduleService, as far as the ledger serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import uuid_utils

from services.checkpoint.queries import fetch_all, fetch_one, fetch_row, ledger_transaction
from services.checkpoint.schedules.rows import SCHEDULES, RunRecord, ScheduleRow, read_active, read_runs, read_schedule
from services.checkpoint.schedules.runs import decide_locked, find_run, start_run
from services.checkpoint.submit.create import CreateResult
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, Unavailable, WrongState
from tenure.domain.schedules import DEFAULT_CATCH_UP_SECONDS, RunOutcome, Times, next_due_after_change, read_zone
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceServicer
from tenure.wire.common import moment, seconds
from tenure.wire.schedule_service import OVERLAP_POLICIES

# An update first decides the due times so far by the old schedule, in the same transaction; then it changes the row.


class ScheduleUpdate(NamedTuple):
    """The updated schedule, and the announcement of the due times that were decided before."""

    schedule: pb.Schedule
    announcement: Announcement


@ledger_transaction
async def update_schedule(
    connection: Connection, tenant: str, request: pb.UpdateScheduleRequest, defaults: TaskDefaults
) -> ScheduleUpdate:
    """Updates a schedule.

    Raises NotFound, InvalidRequest, WrongState (SCHEDULE_CHANGED, UNKNOWN_TIME_ZONE, UNREADABLE_CRON), and Unavailable
    (SCHEDULE_BUSY).
    """
    row = await read_schedule(connection, tenant, request.schedule, lock=True)
    if _changed(row, request) == row:
        return ScheduleUpdate(row.schedule(), Announcement())
    _check_revision(row, request.expected_revision)
    announcement = await _decide_what_is_due(connection, row, defaults)
    row = await read_schedule(connection, tenant, row.schedule_id, lock=True)  # the decision changed the row
    updated_row = _changed(row, request)
    if _times_changed(row, updated_row):
        updated_row = updated_row._replace(next_due_at=await _next_due(connection, updated_row))
    await connection.execute(SCHEDULES.update, updated_row._asdict())
    return ScheduleUpdate((await read_schedule(connection, tenant, row.schedule_id)).schedule(), announcement)


async def find_updated(connection: Connection, tenant: str, request: pb.UpdateScheduleRequest) -> ScheduleRow | None:
    """Returns the schedule if the update would change nothing, else None. Raises NotFound."""
    row = await read_schedule(connection, tenant, request.schedule)
    return row if _changed(row, request) == row else None


def _changed(row: ScheduleRow, request: pb.UpdateScheduleRequest) -> ScheduleRow:
    """Returns the row with the requested changes."""
    changes: dict[str, Any] = {}
    if request.HasField("spec"):
        changes["spec"] = request.spec.SerializeToString(deterministic=True)
    if request.HasField("cron"):
        changes["cron"] = request.cron
    if request.HasField("time_zone"):
        changes["time_zone"] = request.time_zone or "UTC"
    if request.overlap_policy:
        changes["overlap_policy"] = OVERLAP_POLICIES.to_domain(request.overlap_policy).value
    if request.HasField("catch_up_window"):
        changes["catch_up_seconds"] = seconds(request.catch_up_window)
    if request.HasField("start_time") or request.clear_start_time:
        changes["starts_at"] = None if request.clear_start_time else moment(request.start_time)
    if request.HasField("end_time") or request.clear_end_time:
        changes["ends_at"] = None if request.clear_end_time else moment(request.end_time)
    return row._replace(**changes)


def _check_revision(row: ScheduleRow, expected: int) -> None:
    if expected and expected != row.revision:
        raise WrongState(
            f"the schedule was updated meanwhile, it is at revision {row.revision}: read it and update it again",
            reason="SCHEDULE_CHANGED",
            metadata={"revision": str(row.revision)},
        )


def _times_changed(row: ScheduleRow, updated_row: ScheduleRow) -> bool:
    """Whether the texts of the times differ. Texts, because this machine may not know the old zone, and an update
    repairs it.
    """
    return any(
        getattr(row, name) != getattr(updated_row, name) for name in ("cron", "time_zone", "starts_at", "ends_at")
    )


async def _decide_what_is_due(connection: Connection, row: ScheduleRow, defaults: TaskDefaults) -> Announcement:
    """Decides the due times so far. A paused schedule has none, and unreadable times cannot be decided."""
    if row.paused or row.next_due_at is None or row.next_due_at > row.now or not _is_readable(row):
        return Announcement()
    decided = await decide_locked(connection, row, defaults)
    if decided.more:
        raise Unavailable("the schedule still handles its due times: try again", reason="SCHEDULE_BUSY")
    return decided.announcement


def _is_readable(row: ScheduleRow) -> bool:
    try:
        _ = row.times
    except WrongState:
        return False
    return True


async def _next_due(connection: Connection, updated_row: ScheduleRow) -> datetime | None:
    if (
        updated_row.starts_at is not None
        and updated_row.ends_at is not None
        and updated_row.ends_at < updated_row.starts_at
    ):
        raise InvalidRequest(violations=[("end_time", "must not be before start_time")])
    times = updated_row.times
    row = await fetch_row(connection, SCHEDULES.decided_until, {"schedule_id": updated_row.schedule_id})
    next_due_at = next_due_after_change(times, updated_row.now, row[0])
    if next_due_at is None:
        raise InvalidRequest(violations=[("cron", "never comes due from now on, between start_time and end_time")])
    return next_due_at


# The methods of ScheduleService on the rows.

DEFAULT_RUNS: Final = 20
DEFAULT_SCHEDULES: Final = 50
PAGE_BYTES: Final = 2_000_000
_TRIGGER: Final = "trigger/"


@ledger_transaction
async def create_schedule(
    connection: Connection, tenant: str, request: pb.CreateScheduleRequest, most: int
) -> pb.Schedule:
    """Creates a schedule, or returns it for a repeat.

    Raises AlreadyExists (SCHEDULE_EXISTS), LimitReached (TOO_MANY_SCHEDULES), InvalidRequest (never due).
    """
    times = _times(request)
    await connection.execute(SCHEDULES.lock_tenant, {"tenant": tenant})
    existing = await find_created(connection, tenant, request)
    if existing is None:
        await _check_room(connection, tenant, most)
        await connection.execute(SCHEDULES.create, await _new_row(connection, tenant, request, times))
        existing = await read_schedule(connection, tenant, request.name)
    return existing.schedule()


async def get_schedule(pool: Pool, tenant: str, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
    """Returns a schedule with its newest runs. Raises NotFound."""
    async with pool_connection(pool) as connection:
        row = await read_schedule(connection, tenant, request.schedule)
        runs = await read_runs(connection, row.schedule_id, request.run_count or DEFAULT_RUNS)
    return pb.GetScheduleResponse(schedule=row.schedule(), runs=runs)


async def list_schedules(pool: Pool, tenant: str, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    """Returns a page by name. The token is the last name."""
    parameters = {
        "tenant": tenant,
        "after_name": request.page_token,
        "page_size": request.page_size or DEFAULT_SCHEDULES,
        "page_bytes": PAGE_BYTES,
    }
    async with pool_connection(pool) as connection:
        counted = await fetch_row(connection, SCHEDULES.count_after, parameters)
        rows = [ScheduleRow(*columns) for columns in await fetch_all(connection, SCHEDULES.list, parameters)]
    more = bool(rows) and counted[0] > len(rows)
    return pb.ListSchedulesResponse(
        schedules=[row.schedule() for row in rows], next_page_token=rows[-1].name if more else ""
    )


@ledger_transaction
async def pause_schedule(connection: Connection, tenant: str, request: pb.PauseScheduleRequest) -> pb.Schedule:
    """Pauses a schedule. Raises NotFound."""
    row = await read_schedule(connection, tenant, request.schedule, lock=True)
    parameters = {"schedule_id": row.schedule_id, "reason": request.reason, "actor": request.actor}
    await connection.execute(SCHEDULES.pause, parameters)
    return (await read_schedule(connection, tenant, row.schedule_id)).schedule()


@ledger_transaction
async def resume_schedule(connection: Connection, tenant: str, schedule: str) -> pb.Schedule:
    """Resumes a schedule. Raises NotFound, WrongState (UNKNOWN_TIME_ZONE, UNREADABLE_CRON).

    The next due time is never before the one that was next at the pause.
    """
    row = await read_schedule(connection, tenant, schedule, lock=True)
    if not row.paused:
        return row.schedule()
    next_due_at = row.next_due_at
    if next_due_at is not None and next_due_at <= row.now:
        next_due_at = row.times.next_after(row.now)
    await connection.execute(SCHEDULES.resume, {"schedule_id": row.schedule_id, "next_due_at": next_due_at})
    return (await read_schedule(connection, tenant, row.schedule_id)).schedule()


@ledger_transaction
async def trigger_schedule(
    connection: Connection, tenant: str, request: pb.TriggerScheduleRequest, defaults: TaskDefaults
) -> CreateResult:
    """Starts a run now. Raises NotFound, and what CreateTask raises."""
    row = await read_schedule(connection, tenant, request.schedule, lock=True)
    source_run_id = _TRIGGER + request.request_id
    if (earlier := await find_run(connection, row, source_run_id)) is not None:
        return earlier
    created = await start_run(connection, row, source_run_id, defaults, may_refuse=True)
    if created.announcement:  # a repeat finds its task, whose run is already recorded
        record = RunRecord(row.schedule_id)
        record.add(row.now, RunOutcome.STARTED, task_id=created.task.task_id, source_run_id=source_run_id)
        await read_active(connection, row.schedule_id)  # a sweep may not look for long, if the schedule is paused
        await record.write(connection)
        await connection.execute(SCHEDULES.count_started, {"schedule_id": row.schedule_id})
    return created


@ledger_transaction
async def delete_schedule(connection: Connection, tenant: str, schedule: str) -> bool:
    """Deletes a schedule. Returns whether it existed."""
    try:
        row = await read_schedule(connection, tenant, schedule, lock=True)
    except NotFound:
        return False
    await connection.execute(SCHEDULES.delete, {"schedule_id": row.schedule_id})
    return True


def _times(request: pb.CreateScheduleRequest) -> Times:
    return Times(
        request.cron,
        read_zone(request.time_zone or "UTC"),
        moment(request.start_time) if request.HasField("start_time") else None,
        moment(request.end_time) if request.HasField("end_time") else None,
    )


def _digest(request: pb.CreateScheduleRequest) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


async def find_created(connection: Connection, tenant: str, request: pb.CreateScheduleRequest) -> ScheduleRow | None:
    """Returns the schedule that an earlier equal request created, or None. Raises AlreadyExists (SCHEDULE_EXISTS)."""
    record = await fetch_one(connection, SCHEDULES.find, {"tenant": tenant, "schedule_id": "", "name": request.name})
    if record is None:
        return None
    row = ScheduleRow(*record)
    if row.request_hash != _digest(request):
        raise AlreadyExists(
            f"there is another schedule named {request.name}: choose another name, or update that schedule",
            reason="SCHEDULE_EXISTS",
            metadata={"schedule_id": row.schedule_id},
        )
    return row


async def _check_room(connection: Connection, tenant: str, most: int) -> None:
    row = await fetch_row(connection, SCHEDULES.count, {"tenant": tenant})
    if row[0] >= most:
        message = f"the tenant has {most:,} schedules, the most that it may have: delete one first"
        raise LimitReached(message, reason="TOO_MANY_SCHEDULES")


async def _new_row(
    connection: Connection, tenant: str, request: pb.CreateScheduleRequest, times: Times
) -> dict[str, Any]:
    row = await fetch_row(connection, SCHEDULES.now, {})
    now: datetime = row[0]
    next_due_at = times.next_after(now)
    if next_due_at is None:
        raise InvalidRequest(violations=[("cron", "never comes due from now on, between start_time and end_time")])
    window = request.catch_up_window
    return {
        "schedule_id": str(uuid_utils.uuid7()),
        "tenant": tenant,
        "name": request.name,
        "request_hash": _digest(request),
        "spec": request.spec.SerializeToString(deterministic=True),
        "cron": request.cron,
        "time_zone": request.time_zone or "UTC",
        "overlap_policy": OVERLAP_POLICIES.to_domain(request.overlap_policy).value,
        "catch_up_seconds": seconds(window) if request.HasField("catch_up_window") else DEFAULT_CATCH_UP_SECONDS,
        "starts_at": times.starts_at,
        "ends_at": times.ends_at,
        "next_due_at": next_due_at,
    }


class ScheduleServicer(ScheduleServiceServicer):
    """See protos/tenure/v1/schedule_service.proto for what each method promises."""

    def __init__(
        self,
        pool: Pool,
        announce: Callable[[Announcement], None],
        most_schedules: int,
        defaults: TaskDefaults,
    ) -> None:
        self._pool, self._announce, self._most_schedules = pool, announce, most_schedules
        self._defaults = defaults

    async def CreateSchedule(self, request: pb.CreateScheduleRequest, _context: Any) -> pb.CreateScheduleResponse:
        created = await create_schedule(self._pool, current_tenant(), request, self._most_schedules)
        return pb.CreateScheduleResponse(schedule=created)

    async def GetSchedule(self, request: pb.GetScheduleRequest, _context: Any) -> pb.GetScheduleResponse:
        return await get_schedule(self._pool, current_tenant(), request)

    async def ListSchedules(self, request: pb.ListSchedulesRequest, _context: Any) -> pb.ListSchedulesResponse:
        return await list_schedules(self._pool, current_tenant(), request)

    async def UpdateSchedule(self, request: pb.UpdateScheduleRequest, _context: Any) -> pb.UpdateScheduleResponse:
        updated = await update_schedule(self._pool, current_tenant(), request, self._defaults)
        self._announce(updated.announcement)
        return pb.UpdateScheduleResponse(schedule=updated.schedule)

    async def PauseSchedule(self, request: pb.PauseScheduleRequest, _context: Any) -> pb.PauseScheduleResponse:
        return pb.PauseScheduleResponse(schedule=await pause_schedule(self._pool, current_tenant(), request))

    async def ResumeSchedule(self, request: pb.ResumeScheduleRequest, _context: Any) -> pb.ResumeScheduleResponse:
        resumed = await resume_schedule(self._pool, current_tenant(), request.schedule)
        return pb.ResumeScheduleResponse(schedule=resumed)

    async def TriggerSchedule(self, request: pb.TriggerScheduleRequest, _context: Any) -> pb.TriggerScheduleResponse:
        created = await trigger_schedule(self._pool, current_tenant(), request, self._defaults)
        self._announce(created.announcement)
        return pb.TriggerScheduleResponse(task=created.task)

    async def DeleteSchedule(self, request: pb.DeleteScheduleRequest, _context: Any) -> pb.DeleteScheduleResponse:
        deleted = await delete_schedule(self._pool, current_tenant(), request.schedule)
        return pb.DeleteScheduleResponse(deleted=deleted)
