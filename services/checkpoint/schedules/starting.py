"""A run's task: created once for each run, whoever comes twice, by the request_id that is the run's identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.create import Created, create_in
from tenure.v1 import checkpoint_service_pb2, task_pb2

if TYPE_CHECKING:
    from services.checkpoint.schedules.rows import ScheduleRow
    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.postgres import Connection


async def start_run(
    connection: Connection, row: ScheduleRow, source_run_id: str, defaults: TaskDefaults, *, may_refuse: bool = False
) -> Created:
    """In the transaction that records the run. Raises what CreateTask does; quotas only put it off, unless they may
    refuse it.
    """
    spec = task_pb2.TaskSpec.FromString(row.spec)
    spec.source.kind = task_pb2.SOURCE_KIND_SCHEDULER
    spec.source.source_id, spec.source.source_run_id = row.schedule_id, source_run_id
    spec.source.exclusive = False  # the overlap policy has decided
    request_id = f"schedule/{row.schedule_id}/{source_run_id}"
    request = checkpoint_service_pb2.CreateTaskRequest(request_id=request_id, spec=spec)
    return await create_in(connection, row.tenant, request, defaults, may_refuse=may_refuse)
