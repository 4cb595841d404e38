"""Decides one schedule: its due times are decided, recorded and started in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from services.checkpoint.commit.close_out import carry_out_ending
from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one, ledger_transaction
from services.checkpoint.reads import read_task
from services.checkpoint.rows import TaskRow
from services.checkpoint.schedules.rows import SCHEDULES, RunRecord, ScheduleRow, read_active
from services.checkpoint.submit.create import CreateResult, Submit, create_in
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.close_out import PendingEnding
from tenure.domain.errors import LimitReached, Refused
from tenure.domain.schedules import (
    MAX_CATCH_UP_RUNS,
    MAX_WAITING_RUNS,
    Due,
    OverlapPolicy,
    Plan,
    RunOutcome,
    RunReason,
    plan_runs,
    run_id_of,
    what_is_due,
)
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.task import SourceKind
from tenure.runtime.store.postgres import Connection
from tenure.v1 import checkpoint_service_pb2, ledger_pb2, task_pb2

# A run's task is created once, however often replicas try: its request id is the identity of the run.


async def start_run(
    connection: Connection, row: ScheduleRow, source_run_id: str, defaults: TaskDefaults, *, may_refuse: bool = False
) -> CreateResult:
    """Creates the run's task, in the transaction that records the run.

    Raises what CreateTask raises. A quota above 0 only delays the task, unless `may_refuse`.
    """
    spec = task_pb2.TaskSpec.FromString(row.spec)
    # Without `exclusive` and `at_most`: the overlap policy has decided.
    source = task_pb2.Source(
        kind=task_pb2.SOURCE_KIND_SCHEDULER, source_id=row.schedule_id, source_run_id=source_run_id
    )
    spec.source.CopyFrom(source)
    request_id = f"schedule/{row.schedule_id}/{source_run_id}"
    request = checkpoint_service_pb2.CreateTaskRequest(request_id=request_id, spec=spec)
    return await create_in(connection, Submit(row.tenant, request), defaults, may_refuse=may_refuse)


async def find_run(connection: Connection, row: ScheduleRow, source_run_id: str) -> CreateResult | None:
    """Returns the task of an earlier run, whatever the schedule's spec has become since; None if there is none."""
    source = {"source_kind": SourceKind.SCHEDULER.value, "source_id": row.schedule_id, "source_run_id": source_run_id}
    task_row = await fetch_one(connection, QUERIES.find_source_run, {"tenant": row.tenant, **source})
    if task_row is None:
        return None
    return CreateResult(await read_task(connection, row.tenant, task_row[0]), Announcement())


# Cancels the tasks that block a newer run, in the transaction that makes that run wait.


async def cancel_tasks(connection: Connection, task_ids: Sequence[str], *, actor: str, reason: str) -> Announcement:
    """Requests the cancellation of tasks. Leaves ended tasks and tasks with a cancel request unchanged."""
    tasks, budgets = await lock_tasks(connection, task_ids)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values() if not _is_settled(row)]
    if not drafts:
        return Announcement()
    body = ledger_pb2.EntryBody(cancel_request=ledger_pb2.CancelRequest(reason=reason)).SerializeToString()
    for draft in drafts:
        draft.append(KINDS["cancel_request"], body, step=draft.row.step, actor=actor, by_claim=False)
        draft.request_ending(PendingEnding(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, reason, actor))
        await carry_out_ending(connection, draft)
    await write(connection, drafts)
    return announcement_of(drafts)


def _is_settled(row: TaskRow) -> bool:
    return row.state in TERMINAL or row.ending_state == TaskState.CANCELLED


LOOK_AGAIN_SECONDS: Final = 1.0
"""How often the sweep checks whether the task that blocks waiting runs has ended."""

_MESSAGES: Final = {
    RunReason.OVERLAP: "a task of this schedule had not ended",
    RunReason.QUEUE_FULL: f"{MAX_WAITING_RUNS} runs were waiting",
    RunReason.REPLACED: "a newer run replaced it",
    RunReason.MISSED: "no replica started it within the catch-up window",
    RunReason.CATCH_UP_LIMIT: f"only the newest {MAX_CATCH_UP_RUNS} missed due times are started",
}


class ScheduleDecision(NamedTuple):
    """The announcement and the number of due times by outcome. `more`: some due times were not handled yet."""

    announcement: Announcement
    counts: dict[RunOutcome, int]
    more: bool = False


@ledger_transaction
async def decide(connection: Connection, schedule_id: str, defaults: TaskDefaults) -> ScheduleDecision:
    """Decides a schedule. Does nothing when another replica has it locked or was faster."""
    row = await fetch_one(connection, SCHEDULES.lock_due, {"schedule_id": schedule_id})
    if row is None:
        return ScheduleDecision(Announcement(), {})
    return await decide_locked(connection, ScheduleRow(*row), defaults)


async def decide_locked(connection: Connection, row: ScheduleRow, defaults: TaskDefaults) -> ScheduleDecision:
    """Decides a schedule that the caller has locked."""
    schedule_id = row.schedule_id
    due = Due((), (), None)
    if row.next_due_at is not None:
        due = what_is_due(row.times, row.next_due_at, row.now, row.catch_up_seconds)
    key = {"schedule_id": schedule_id}
    active = await read_active(connection, schedule_id)
    waiting = [due_at for (due_at,) in await fetch_all(connection, SCHEDULES.waiting, key)]
    plan = plan_runs(OverlapPolicy(row.overlap_policy), is_active=bool(active), waiting=waiting, due=due.runs)
    record = RunRecord(schedule_id)
    _record(record, due, plan)
    announcement = await _start(connection, row, plan, record, defaults)
    if plan.cancel_active:
        actor = f"schedule/{row.name}"
        announcement.add(
            await cancel_tasks(connection, active, actor=actor, reason="a newer run of its schedule is due")
        )
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
    return ScheduleDecision(announcement, counts, due.more)


def _record(record: RunRecord, due: Due, plan: Plan) -> None:
    for missed in due.missed:
        message = _MESSAGES[missed.reason]
        record.add(missed.last, RunOutcome.SKIPPED, missed.reason, message, due_times=missed.count)
    for one, reason in plan.skip:
        record.add(one, RunOutcome.SKIPPED, reason, _MESSAGES[reason])
    for one in plan.wait:
        record.add(one, RunOutcome.WAITING, RunReason.OVERLAP, _MESSAGES[RunReason.OVERLAP])


async def _start(
    connection: Connection, row: ScheduleRow, plan: Plan, record: RunRecord, defaults: TaskDefaults
) -> Announcement:
    """Starts the planned run. Records a run whose task cannot be created, so that it does not block later runs."""
    if plan.start is None:
        return Announcement()
    try:
        created = await start_run(connection, row, run_id_of(plan.start), defaults)
    except (Refused, LimitReached) as error:  # LimitReached: the tenant may start nothing
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
