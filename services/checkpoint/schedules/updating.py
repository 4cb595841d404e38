"""Changes of a schedule: what has come due is decided as it was, in the same transaction; then it is as asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from services.checkpoint.announcement import Announcement
from services.checkpoint.queries import fetch_one, in_ledger_transaction
from services.checkpoint.schedules.deciding import decide_locked
from services.checkpoint.schedules.rows import SCHEDULES, ScheduleRow, read_schedule
from tenure.domain.errors import InvalidRequest, Unavailable, WrongState
from tenure.domain.schedules import Times, next_due_after_change, read_zone
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.schedules import OVERLAP_POLICIES
from tenure.wire.times import moment, seconds

if TYPE_CHECKING:
    from datetime import datetime

    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.postgres import Connection, Pool


class Updated(NamedTuple):
    """The schedule as it stands, and what to announce of what had come due."""

    schedule: pb.Schedule
    announcement: Announcement


async def update_schedule(
    pool: Pool, tenant: str, request: pb.UpdateScheduleRequest, defaults: TaskDefaults
) -> Updated:
    """Raises NotFound, WrongState (SCHEDULE_CHANGED), InvalidRequest, Unavailable (SCHEDULE_BUSY)."""

    async def work(connection: Connection) -> Updated:
        row = await read_schedule(connection, tenant, request.schedule, lock=True)
        if _changed(row, request) == row:
            return Updated(row.schedule(), Announcement())
        _check_revision(row, request.expected_revision)
        told = await _decide_what_is_due(connection, row, defaults)
        row = await read_schedule(connection, tenant, row.schedule_id, lock=True)  # as that has left it
        asked = _changed(row, request)
        if _times_changed(row, asked):
            asked = asked._replace(next_due_at=await _next_due(connection, asked))
        await connection.execute(SCHEDULES.update, _parameters(asked))
        return Updated((await read_schedule(connection, tenant, row.schedule_id)).schedule(), told)

    return await in_ledger_transaction(pool, work)


def _changed(row: ScheduleRow, request: pb.UpdateScheduleRequest) -> ScheduleRow:
    """The row with what was asked for."""
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
            f"the schedule was updated meanwhile: it is at revision {row.revision}",
            reason="SCHEDULE_CHANGED",
            metadata={"revision": str(row.revision)},
        )


def _times_changed(row: ScheduleRow, asked: ScheduleRow) -> bool:
    """Compared by their words: those of the old zone may mean nothing here, and an update is how that is mended."""
    return any(getattr(row, name) != getattr(asked, name) for name in ("cron", "time_zone", "starts_at", "ends_at"))


async def _decide_what_is_due(connection: Connection, row: ScheduleRow, defaults: TaskDefaults) -> Announcement:
    """Of a schedule that is paused nothing is due. One whose times cannot be read has nothing that could be decided."""
    if row.paused or row.next_due_at is None or row.next_due_at > row.now or not _is_readable(row):
        return Announcement()
    decided = await decide_locked(connection, row, defaults)
    if decided.more:
        raise Unavailable("the schedule is catching up with its due times: try again", reason="SCHEDULE_BUSY")
    return decided.announcement


def _is_readable(row: ScheduleRow) -> bool:
    try:
        read_zone(row.time_zone)
    except ValueError:
        return False
    return True


async def _next_due(connection: Connection, asked: ScheduleRow) -> datetime | None:
    if asked.starts_at is not None and asked.ends_at is not None and asked.ends_at < asked.starts_at:
        raise InvalidRequest(violations=[("end_time", "must not be before start_time")])
    times = Times(asked.cron, read_zone(asked.time_zone), asked.starts_at, asked.ends_at)
    found = await fetch_one(connection, SCHEDULES.decided_until, {"schedule_id": asked.schedule_id})
    assert found is not None, "an aggregate has a row"
    next_due_at = next_due_after_change(times, asked.now, found[0])
    if next_due_at is None:
        raise InvalidRequest(violations=[("cron", "never comes due from now on, between start_time and end_time")])
    return next_due_at


def _parameters(asked: ScheduleRow) -> dict[str, Any]:
    return {
        "schedule_id": asked.schedule_id,
        "spec": asked.spec,
        "cron": asked.cron,
        "time_zone": asked.time_zone,
        "overlap_policy": asked.overlap_policy,
        "catch_up_seconds": asked.catch_up_seconds,
        "starts_at": asked.starts_at,
        "ends_at": asked.ends_at,
        "next_due_at": asked.next_due_at,
    }
