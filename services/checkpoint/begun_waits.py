"""The wait in a task's row: there from the transition that begins it to the next one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tenure.domain.waits import Wait
from tenure.v1 import task_pb2
from tenure.wire.times import timestamp
from tenure.wire.waits import wait_to_domain, wait_to_wire

if TYPE_CHECKING:
    from services.checkpoint.rows import TaskRow


def begin_wait(row: TaskRow, wait: Wait, sequence: int) -> task_pb2.Wait:
    """The wait as the transition with this sequence tells it; the row has it from now on."""
    kept = wait_to_wire(wait)
    kept.wait_id = f"w{sequence}"
    timeout_seconds = row.task_policy.timeouts.wait_seconds(wait.kind, wait.timeout_seconds)
    left_seconds = max(0.0, timeout_seconds - wait.elapsed_seconds)
    row.wait_deadline_at = row.locked_at + timedelta(seconds=left_seconds)
    kept.begin_time.CopyFrom(timestamp(row.locked_at))
    kept.deadline_time.CopyFrom(timestamp(row.wait_deadline_at))
    row.wait = kept.SerializeToString()
    row.wait_correlation = wait.correlation_id
    return kept


def shown_wait(row_wait: bytes) -> task_pb2.Wait | None:
    """The wait as callers see it; one that an earlier version began gets its digest here."""
    if not row_wait:
        return None
    kept = task_pb2.Wait.FromString(row_wait)
    if kept.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL and not kept.call_digest:
        kept.call_digest = wait_to_domain(kept).call_digest
    return kept


def current_wait(row: TaskRow) -> Wait | None:
    """What the task waits for."""
    return wait_to_domain(task_pb2.Wait.FromString(row.wait)) if row.wait else None
