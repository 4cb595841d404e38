"""Locks task rows and the budgets of their roots, and keeps the wait of a task in its row."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.queries import QUERIES, fetch_all
from services.checkpoint.rows import BudgetRow, TaskRow
from tenure.domain.waits import Wait, next_step
from tenure.runtime.store.sql_arrays import UuidTexts
from tenure.v1 import task_pb2
from tenure.wire.common import WAIT_KINDS, moment, timestamp
from tenure.wire.task import escalation_step_to_wire, wait_to_domain, wait_to_wire

if TYPE_CHECKING:
    from collections.abc import Collection

    from tenure.runtime.store.postgres import Connection


# The wait in a task row lasts from the transition that begins it to the next transition.


def begin_wait(row: TaskRow, wait: Wait, sequence: int) -> task_pb2.Wait:
    """Stores the wait in the row and returns it as the transition with this sequence shows it."""
    kept = wait_to_wire(wait)
    kept.wait_id = f"w{sequence}"
    if wait.is_for_person:
        kept.approvers[:] = row.task_policy.approvers
    timeout_seconds = row.task_policy.timeouts.wait_seconds(wait.kind, wait.timeout_seconds)
    left_seconds = max(0.0, timeout_seconds - wait.elapsed_seconds)
    row.wait_deadline_at = row.locked_at + timedelta(seconds=left_seconds)
    kept.begin_time.CopyFrom(timestamp(row.locked_at))
    kept.deadline_time.CopyFrom(timestamp(row.wait_deadline_at))
    plan_step(row, kept)
    row.wait_correlation = wait.correlation_id
    return kept


def plan_step(row: TaskRow, kept: task_pb2.Wait) -> None:
    """Puts the next step of the wait's escalation into the wait and the row, and stores the wait."""
    begin_at = moment(kept.begin_time)
    timeout_seconds = (moment(kept.deadline_time) - begin_at).total_seconds()
    steps = row.task_policy.escalations.steps_of(WAIT_KINDS.to_domain(kept.kind))
    step = next_step(steps, kept.steps_taken, timeout_seconds)
    kept.ClearField("next_step")
    kept.ClearField("next_step_time")
    row.wait_step_at = None
    if step is not None:
        row.wait_step_at = begin_at + timedelta(seconds=step.after_seconds)
        kept.next_step.CopyFrom(escalation_step_to_wire(step))
        kept.next_step_time.CopyFrom(timestamp(row.wait_step_at))
    row.wait = kept.SerializeToString()


def shown_wait(row_wait: bytes) -> task_pb2.Wait | None:
    """Returns the wait as callers see it."""
    return task_pb2.Wait.FromString(row_wait) if row_wait else None


def current_wait(row: TaskRow) -> Wait | None:
    """Returns the task's wait, or None."""
    return wait_to_domain(task_pb2.Wait.FromString(row.wait)) if row.wait else None


_TASK_COLUMNS: Final = sum(field.init for field in fields(TaskRow))


async def lock_tasks(
    connection: Connection, task_ids: Collection[str]
) -> tuple[dict[str, TaskRow], dict[str, BudgetRow]]:
    """Locks the rows that exist until the transaction ends. Returns tasks by task_id and budgets by root_task_id."""
    tasks: dict[str, TaskRow] = {}
    budgets: dict[str, BudgetRow] = {}
    rows: list[tuple[Any, ...]] = await fetch_all(connection, QUERIES.lock, {"task_ids": UuidTexts(task_ids)})
    for columns in rows:
        row = TaskRow(*columns[:_TASK_COLUMNS])
        tasks[row.task_id] = row
        if row.root_task_id not in budgets:
            budgets[row.root_task_id] = BudgetRow(*(*columns[_TASK_COLUMNS:], row.root_task_id))
    return tasks, budgets
