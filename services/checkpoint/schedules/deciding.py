"""What one schedule does when it is looked at: its due times are decided, recorded and started in one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.announcement import Announcement
from services.checkpoint.queries import fetch_all, fetch_one
from services.checkpoint.schedules.cancelling import cancel_tasks
from services.checkpoint.schedules.rows import SCHEDULES, RunRecord, ScheduleRow
from services.checkpoint.schedules.starting import start_run
from tenure.domain.errors import Refused
from tenure.domain.schedules import (
    MOST_CATCH_UP_RUNS,
    MOST_WAITING_RUNS,
    Due,
    OverlapPolicy,
    Plan,
    RunOutcome,
    RunReason,
    plan_runs,
    run_id_of,
    what_is_due,
)

if TYPE_CHECKING:
    from datetime import datetime

    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.postgres import Connection

LOOK_AGAIN_SECONDS: Final = 1.0
"""How often it is asked whether the task that others wait for has ended."""
ACTIVE_AT_ONCE: Final = 100

_WHY: Final = {
    RunReason.OVERLAP: "a task of this schedule had not ended",
    RunReason.QUEUE_FULL: f"{MOST_WAITING_RUNS} runs were waiting",
    RunReason.REPLACED: "a newer run took its place",
    RunReason.MISSED: "nobody was there within the catch-up window",
    RunReason.CATCH_UP_LIMIT: f"only the newest {MOST_CATCH_UP_RUNS} are made up for",
}


class Decided(NamedTuple):
    """What to announce, and how many due times came to which outcome. `more`: not all that are due were dealt with."""

    announcement: Announcement
    counts: dict[RunOutcome, int]
    more: bool = False


async def decide(connection: Connection, schedule_id: str, defaults: TaskDefaults) -> Decided:
    """Nothing, when another replica is at it or was quicker."""
    found = await fetch_one(connection, SCHEDULES.lock_due, {"schedule_id": schedule_id})
    if found is None:
        return Decided(Announcement(), {})
    return await decide_locked(connection, ScheduleRow(*found), defaults)


async def decide_locked(connection: Connection, row: ScheduleRow, defaults: TaskDefaults) -> Decided:
    """The same for a schedule that the caller has locked."""
    schedule_id = row.schedule_id
    due = Due((), (), None)
    if row.next_due_at is not None:
        due = what_is_due(row.times, row.next_due_at, row.now, row.catch_up_seconds)
    key = {"schedule_id": schedule_id}
    active = await fetch_all(connection, SCHEDULES.active_tasks, {**key, "limit": ACTIVE_AT_ONCE})
    waiting = [due_at for (due_at,) in await fetch_all(connection, SCHEDULES.waiting, key)]
    plan = plan_runs(OverlapPolicy(row.overlap_policy), is_active=bool(active), waiting=waiting, due=due.runs)
    record = RunRecord(schedule_id)
    _record(record, due, plan)
    told = await _start(connection, row, plan, record, defaults)
    if plan.cancel_active:
        ids = [task_id for (task_id,) in active]
        actor = f"schedule/{row.name}"
        told.add(await cancel_tasks(connection, ids, actor=actor, reason="a newer run of its schedule is due"))
    await record.write(connection)
    left = len(set(waiting) - {plan.start} - {one for one, _ in plan.skip}) + len(plan.wait)
    counts = {outcome: record.count(outcome) for outcome in RunOutcome}
    look_at = _look_at(row.now, due, has_waiting=left > 0)
    parameters = {
        "schedule_id": row.schedule_id,
        "next_due_at": due.next_due,
        "look_at": look_at,
        "started": counts[RunOutcome.STARTED],
        "skipped": counts[RunOutcome.SKIPPED],
        "failed": counts[RunOutcome.FAILED],
    }
    await connection.execute(SCHEDULES.advance, parameters)
    return Decided(told, counts, due.more)


def _record(record: RunRecord, due: Due, plan: Plan) -> None:
    for missed in due.missed:
        why = _WHY[missed.reason]
        record.add(missed.last, RunOutcome.SKIPPED, missed.reason, why, due_times=missed.count)
    for one, reason in plan.skip:
        record.add(one, RunOutcome.SKIPPED, reason, _WHY[reason])
    for one in plan.wait:
        record.add(one, RunOutcome.WAITING, RunReason.OVERLAP, _WHY[RunReason.OVERLAP])


async def _start(
    connection: Connection, row: ScheduleRow, plan: Plan, record: RunRecord, defaults: TaskDefaults
) -> Announcement:
    """What cannot be created is recorded, and keeps no later run from its turn."""
    if plan.start is None:
        return Announcement()
    try:
        created = await start_run(connection, row, run_id_of(plan.start), defaults)
    except Refused as error:
        record.add(plan.start, RunOutcome.FAILED, RunReason.NOT_CREATED, str(error))
        return Announcement()
    record.add(plan.start, RunOutcome.STARTED, task_id=created.task.task_id)
    return created.announcement


def _look_at(now: datetime, due: Due, *, has_waiting: bool) -> datetime | None:
    if due.more:
        return now
    soon = now + timedelta(seconds=LOOK_AGAIN_SECONDS)
    moments = [moment for moment in (due.next_due, soon if has_waiting else None) if moment is not None]
    return min(moments, default=None)
