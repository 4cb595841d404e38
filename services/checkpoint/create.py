"""CreateTask: a submit, once per (tenant, request_id) whatever is repeated."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import uuid_utils

from services.checkpoint.announcement import Announcement
from services.checkpoint.exclusive import exclusive_source, refusal_of_source
from services.checkpoint.kinds import KINDS
from services.checkpoint.queries import QUERIES, fetch_one, in_ledger_transaction
from services.checkpoint.snapshots import read_task
from services.checkpoint.tenants.admitting import FREE, Admission, admit, count_submit
from services.checkpoint.tenants.warning import warn_of_submit
from tenure.domain.errors import AlreadyExists
from tenure.domain.states import Reason, TaskState
from tenure.runtime.failpoint import failpoint
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.enums import STATES
from tenure.wire.task import policy_to_wire, spec_to_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.domain.task import Source, TaskSpec
    from tenure.runtime.postgres import Connection, Pool
    from tenure.v1 import checkpoint_service_pb2 as pb


class Place(NamedTuple):
    """Where a task stands in its tree; a root is its own."""

    task_id: str
    root_task_id: str
    parent_task_id: str = ""
    depth: int = 0
    spawn_call_id: str = ""
    spawn_index: int = 0


class Created(NamedTuple):
    """The task, new or found again, and what to announce."""

    task: task_pb2.Task
    announcement: Announcement


async def create_task(pool: Pool, tenant: str, request: pb.CreateTaskRequest, defaults: TaskDefaults) -> Created:
    """Raises AlreadyExists (REQUEST_ID_REUSED {task_id}) when the id was used for another spec, LimitReached
    (TENANT_QUOTA) for what is no repeat.

    Compared is what was sent, before defaults: a release that changes a default must not refuse a repeated submit.
    """

    async def work(connection: Connection) -> Created:
        return await create_in(connection, tenant, request, defaults)

    return await in_creation(pool, work)


async def in_creation(pool: Pool, work: Callable[[Connection], Awaitable[Created]]) -> Created:
    """What makes a task in a transaction of its own."""
    await failpoint("checkpoint.before_create")
    created = await in_ledger_transaction(pool, work)
    await failpoint("checkpoint.after_create")
    return created


async def create_in(
    connection: Connection,
    tenant: str,
    request: pb.CreateTaskRequest,
    defaults: TaskDefaults,
    *,
    may_refuse: bool = True,
) -> Created:
    """The same within a transaction of the caller's. Without `may_refuse` a quota puts the task off at the most."""
    spec = defaults.of_submit(request.spec)
    digest = hashlib.sha256(request.spec.SerializeToString(deterministic=True)).digest()
    admission = await admit(connection, tenant, request.request_id, may_refuse=may_refuse, not_before=spec.start_time)
    task_id = await insert_task(connection, tenant, request.request_id, digest, spec, admission)
    if task_id is None:
        found = await find_again(connection, tenant, request.request_id, digest, spec.source)
        return Created(await read_task(connection, tenant, found), Announcement())
    start = admission.start
    reason = Reason.TENANT_QUOTA if start.after_seconds else Reason.SUBMITTED
    queued = ledger_pb2.StateTransition(to_state=STATES.to_wire(TaskState.QUEUED), reason=reason, message=start.message)
    second = ledger_pb2.EntryBody(transition=queued)
    await insert_first_entries(connection, tenant, task_id, request.request_id, spec, second)
    await warn_of_submit(connection, tenant, task_id, admission.uses.values())
    task = await read_task(connection, tenant, task_id)
    return Created(task, Announcement({task_id}, claimable=True, changed_tenants={tenant}))


async def insert_task(
    connection: Connection,
    tenant: str,
    request_id: str,
    digest: bytes,
    spec: TaskSpec,
    admission: Admission = FREE,
    task_id: str = "",
) -> str | None:
    """The new task's row and budget. None: the request_id was used before, or a task of an exclusive source lives."""
    task_id = task_id or str(uuid_utils.uuid7())
    parameters = {**row_of(Place(task_id, task_id), tenant, request_id, digest, spec), **_start(admission)}
    if await fetch_one(connection, QUERIES.create_task, parameters) is None:
        return None
    await connection.execute(
        QUERIES.create_budget,
        {
            "task_id": task_id,
            "tenant": tenant,
            "max_tokens": spec.limits.max_tokens,
            "max_nano_usd": spec.limits.max_nano_usd,
        },
    )
    await count_submit(connection, tenant, admission)
    return task_id


async def find_again(connection: Connection, tenant: str, request_id: str, digest: bytes, source: Source) -> str:
    """The task that a request_id was used for, after an insert that met one.

    AlreadyExists when it was used for something else, or not at all: then a task of the same source lives.
    """
    found = await fetch_one(connection, QUERIES.find_request, {"tenant": tenant, "request_id": request_id})
    if found is None:
        raise await refusal_of_source(connection, tenant, source)
    task_id: str = found[0]
    if found[1] != digest:
        raise AlreadyExists(
            "this request_id was used for another task",
            reason="REQUEST_ID_REUSED",
            metadata={"task_id": task_id},
        )
    return task_id


async def insert_first_entries(
    connection: Connection, tenant: str, task_id: str, request_id: str, spec: TaskSpec, second: ledger_pb2.EntryBody
) -> None:
    """The goal, and what comes next: the move into the queue, or where the history comes from."""
    submitted = ledger_pb2.TaskSubmitted(spec=spec_to_wire(spec), request_id=request_id)
    parameters = first_entries(task_id, tenant, submitted, second)
    await connection.execute(QUERIES.create_entries, parameters)


def first_entries(
    task_id: str, tenant: str, submitted: ledger_pb2.TaskSubmitted, second: ledger_pb2.EntryBody
) -> dict[str, Any]:
    """What `create_entries` is given."""
    bodies = [ledger_pb2.EntryBody(submitted=submitted), second]
    return {
        "task_id": task_id,
        "tenant": tenant,
        "kinds": [KINDS[body.WhichOneof("body") or ""] for body in bodies],
        "bodies": [body.SerializeToString() for body in bodies],
    }


def _start(admission: Admission) -> dict[str, Any]:
    start = admission.start
    return {
        "held_seconds": start.after_seconds,
        "reason": (Reason.TENANT_QUOTA if start.after_seconds else Reason.SUBMITTED),
        "message": start.message,
    }


def row_of(place: Place, tenant: str, request_id: str, digest: bytes, spec: TaskSpec) -> dict[str, Any]:
    """What `create_task` is given."""
    return {
        **place._asdict(),
        "reason": Reason.SPAWNED if place.depth else Reason.SUBMITTED,
        "message": "",
        "held_seconds": 0.0,
        "own_max_tokens": spec.limits.max_tokens if place.depth else 0,
        "own_max_nano_usd": spec.limits.max_nano_usd if place.depth else 0,
        "tenant": tenant,
        "request_id": request_id,
        "request_hash": digest,
        "queue": spec.queue,
        "priority": int(spec.priority),
        "loop": spec.dispatch_loop,
        "tools": None if spec.agent.tools is None else list(spec.agent.tools),
        "labels": json.dumps(dict(spec.labels)),
        "max_steps": spec.limits.max_steps,
        "on_lease_lost": spec.policy.on_lease_lost.value,
        "timeout_seconds": spec.limits.timeout_seconds,
        "exclusive_source": exclusive_source(spec.source),
        "has_result_schema": bool(spec.result_schema_json),
        "policy": policy_to_wire(spec.policy).SerializeToString(),
        "queued_seconds": spec.policy.timeouts.queued.after_seconds,
        "start_time": "" if spec.start_time is None else spec.start_time.isoformat(),
    }
