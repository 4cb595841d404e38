"""FindRepeat: returns the result of an earlier equal request, however the request would be judged today."""

from __future__ import annotations

from services.checkpoint.reads import read_task
from services.checkpoint.schedules.servicer import find_created, find_updated
from services.checkpoint.submit import create, forking
from tenure.domain.task import Source
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.task import source_to_domain


async def find_repeat(pool: Pool, tenant: str, request: pb.FindRepeatRequest) -> pb.FindRepeatResponse:
    """Returns the task or the schedule; an empty response if there was no such request.

    Raises AlreadyExists when the request id or the name was used for another request, and NotFound for an update of a
    missing schedule.
    """
    async with pool_connection(pool) as connection:
        match request.WhichOneof("request"):
            case "create_task":
                submit = request.create_task
                source = source_to_domain(submit.spec.source)
                return await _task(connection, tenant, submit.request_id, create.digest_of(submit), source)
            case "fork_task":
                fork = request.fork_task
                source = forking.new_source(fork)
                return await _task(connection, tenant, fork.request_id, forking.digest_of(fork), source)
            case "create_schedule":
                row = await find_created(connection, tenant, request.create_schedule)
            case _:
                row = await find_updated(connection, tenant, request.update_schedule)
    return checkpoint_service_pb2.FindRepeatResponse(schedule=None if row is None else row.schedule())


async def _task(
    connection: Connection, tenant: str, request_id: str, digest: bytes, source: Source
) -> pb.FindRepeatResponse:
    task_id = await create.find_earlier(connection, tenant, request_id, digest, source)
    task = None if task_id is None else await read_task(connection, tenant, task_id)
    return checkpoint_service_pb2.FindRepeatResponse(task=task)
