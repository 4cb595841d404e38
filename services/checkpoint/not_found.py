"""The error for a task that does not exist. A pruned task's error says who pruned it, when and why."""

from __future__ import annotations

from services.checkpoint.queries import RETENTION, fetch_one
from tenure.domain.errors import NotFound
from tenure.runtime.store.postgres import Connection


async def task_not_found(connection: Connection, tenant: str, task_id: str) -> NotFound:
    """Returns the error to raise. It is the same for another tenant's task as for a missing one."""
    row = await fetch_one(connection, RETENTION.find_pruned, {"task_id": task_id, "tenant": tenant})
    if row is None:
        return NotFound(f"task {task_id} not found")
    ended_at, pruned_at, actor, reason = row
    message = f"the task {task_id} ended on {ended_at:%Y-%m-%d} and was pruned on {pruned_at:%Y-%m-%d}"
    return NotFound(f"{message} by {actor}: {reason}", reason="TASK_PRUNED", metadata={"task_id": task_id})


async def was_pruned(connection: Connection, tenant: str, task_id: str) -> bool:
    """Whether the task existed and was pruned."""
    parameters = {"task_id": task_id, "tenant": tenant}
    return await fetch_one(connection, RETENTION.find_pruned, parameters) is not None
