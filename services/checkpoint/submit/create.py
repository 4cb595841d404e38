"""CreateTask: creates a task, once per (tenant, request_id), however often the request is repeated."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import uuid_utils

from services.checkpoint.agents.pinning import pinned
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES, fetch_one, in_ledger_transaction
from services.checkpoint.reads import new_task, read_task
from services.checkpoint.submit.prepared_ids import prepared_id, take_prepared
from services.checkpoint.tenants.quotas import (
    Admission,
    admit,
    count_submit,
    warn_of_submit,
)
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import AlreadyExists, InvalidRequest, NotFound, TenureError, Unavailable, WrongState
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import MoneyCap
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import TransactionConflict
from tenure.v1 import checkpoint_service_pb2, ledger_pb2, task_pb2, workspace_pb2
from tenure.wire.common import STATES
from tenure.wire.task import policy_to_wire, source_to_domain, spec_to_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.domain.task import Source, TaskSpec
    from tenure.runtime.store.postgres import Connection, Pool
    from tenure.v1 import checkpoint_service_pb2 as pb


# At most one live task per exclusive source, and one task per run of a source. Unique indexes decide; these functions
# explain their refusals.


def source_columns(source: Source) -> dict[str, str]:
    """Returns the columns of a source, by which a unique index compares runs and a list selects tasks."""
    return {"source_kind": source.kind.value, "source_id": source.source_id, "source_run_id": source.source_run_id}


def exclusive_source(source: Source) -> str | None:
    """Returns the value that the unique index compares; None: the source may have any number of live tasks."""
    return f"{source.kind.value}/{source.source_id}" if source.exclusive else None


async def refusal_of_source(connection: Connection, tenant: str, source: Source) -> TenureError:
    """Returns why a task of this source was not created: another task of the source is live, or was a moment ago."""
    parameters = {"tenant": tenant, "exclusive_source": exclusive_source(source) or ""}
    row = await fetch_one(connection, QUERIES.find_exclusive, parameters)
    if row is None:
        return Unavailable("another task of this source has just ended: submit again", reason="SOURCE_CHANGED")
    return busy(row[0])


async def check_no_rival(connection: Connection, task_id: str) -> None:
    """Raises AlreadyExists when an ended task cannot begin an attempt because another task of its source is live."""
    row = await fetch_one(connection, QUERIES.find_rival, {"task_id": task_id})
    if row is not None:
        raise busy(row[0])


@contextmanager
def yielding_to_rivals() -> Iterator[None]:
    """Wraps the writes that make a task live again. A conflict with a new task of the source runs the transaction
    again.
    """
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != "tasks_one_per_source":
            raise
        raise TransactionConflict("another task of this source was created first") from error


def busy(task_id: str) -> AlreadyExists:
    """Returns the error for a busy source, with what to do instead."""
    message = f"the task {task_id} of this source has not ended"
    return AlreadyExists(
        f"{message}: send it a message with SendMessage, or cancel it",
        reason="SOURCE_BUSY",
        metadata={"task_id": task_id},
    )


class TreePosition(NamedTuple):
    """The position of a task in its tree. The root of a root task is the task itself."""

    task_id: str
    root_task_id: str
    parent_task_id: str = ""
    depth: int = 0
    spawn_call_id: str = ""
    spawn_index: int = 0


class CreateResult(NamedTuple):
    """The task, new or existing, and the announcement for watchers."""

    task: task_pb2.Task
    announcement: Announcement


async def create_task(pool: Pool, tenant: str, request: pb.CreateTaskRequest, defaults: TaskDefaults) -> CreateResult:
    """Creates a task, or returns the one that the request id or the run of the source created before.

    Raises AlreadyExists (REQUEST_ID_REUSED, SOURCE_RUN_REUSED {task_id}) when the request id or the run was used for
    another spec, and, unless the request is a repeat, LimitReached (TENANT_QUOTA), NotFound and WrongState for the
    revision of an agent.

    The comparison uses the spec as the client sent it, before defaults: a release that changes a default must not
    refuse a repeated submit.
    """

    async def work(connection: Connection) -> CreateResult:
        return await create_in(connection, tenant, request, defaults)

    return await in_creation(pool, work)


async def in_creation(pool: Pool, work: Callable[[Connection], Awaitable[CreateResult]]) -> CreateResult:
    """Runs work that creates a task in a transaction of its own."""
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
) -> CreateResult:
    """Creates a task within the caller's transaction. Without `may_refuse`, a quota delays the task but never refuses
    it.
    """
    digest, task_id = digest_of(request), request.prepared_task_id or str(uuid_utils.uuid7())
    try:
        spec = defaults.of_submit(await pinned(connection, tenant, task_id, request.spec))
    except (NotFound, WrongState, InvalidRequest):  # a repeat gets its task, whatever became of the agent
        earlier = await find_earlier(
            connection, tenant, request.request_id, digest, source_to_domain(request.spec.source)
        )
        if earlier is None:
            raise
        return CreateResult(await read_task(connection, tenant, earlier), Announcement())
    admission = await admit(
        connection, tenant, request.request_id, spec.source, may_refuse=may_refuse, not_before=spec.start_time
    )
    columns = await insert_task(connection, tenant, request.request_id, digest, spec, admission, task_id)
    if columns is None:
        existing = await find_repeat(connection, tenant, request.request_id, digest, spec.source)
        return CreateResult(await read_task(connection, tenant, existing), Announcement())
    if request.prepared_task_id:
        await take_prepared(connection, tenant, request.request_id, digest, task_id)
    start = admission.start
    reason = Reason.TENANT_QUOTA if start.after_seconds else Reason.SUBMITTED
    queued = ledger_pb2.StateTransition(to_state=STATES.to_wire(TaskState.QUEUED), reason=reason, message=start.message)
    second = ledger_pb2.EntryBody(transition=queued)
    submitted = submitted_of(spec, request.request_id, request.files, request.traceparent)
    await insert_first_entries(connection, tenant, task_id, submitted, second)
    is_warned = await warn_of_submit(connection, tenant, task_id, admission.uses.values())
    task = await read_task(connection, tenant, task_id) if is_warned else new_task(columns, submitted.spec)
    return CreateResult(task, Announcement({task_id}, claimable=True, changed_tenants={tenant}))


async def prepare_task(
    pool: Pool, tenant: str, request: pb.CreateTaskRequest, defaults: TaskDefaults
) -> pb.PrepareTaskResponse:
    """Returns the id that the task will have, or the task if it exists. Raises as create_task does."""
    digest, source = digest_of(request), source_to_domain(request.spec.source)

    async def work(connection: Connection) -> pb.PrepareTaskResponse:
        earlier = await find_earlier(connection, tenant, request.request_id, digest, source)
        if earlier is not None:
            return checkpoint_service_pb2.PrepareTaskResponse(task=await read_task(connection, tenant, earlier))
        task_id = await prepared_id(connection, tenant, request.request_id, digest)
        spec = defaults.of_submit(await pinned(connection, tenant, task_id, request.spec))
        await admit(connection, tenant, request.request_id, spec.source, not_before=spec.start_time)
        return checkpoint_service_pb2.PrepareTaskResponse(prepared_task_id=task_id)

    return await in_ledger_transaction(pool, work)


def digest_of(request: pb.CreateTaskRequest) -> bytes:
    """Returns the digest by which a repeat of a submit is recognised."""
    parts = [request.spec, *as_sent(request.files)]
    return hashlib.sha256(b"".join(part.SerializeToString(deterministic=True) for part in parts)).digest()


def as_sent(files: Iterable[workspace_pb2.SubmittedFile]) -> list[workspace_pb2.SubmittedFile]:
    """Returns files with what the client sent only: which files are images is a rule that a release may change."""
    return [workspace_pb2.SubmittedFile(path=file.path, digest=file.digest) for file in files]


async def insert_task(
    connection: Connection,
    tenant: str,
    request_id: str,
    digest: bytes,
    spec: TaskSpec,
    admission: Admission,
    task_id: str,
) -> tuple[Any, ...] | None:
    """Inserts the task row and its budget, and returns the row's columns as `new_task` takes them.

    None: the request id or the source's run was used before, or the exclusive source has a live task.
    """
    parameters = {**row_of(TreePosition(task_id, task_id), tenant, request_id, digest, spec), **_start(admission)}
    columns = await fetch_one(connection, QUERIES.create_task, parameters)
    if columns is None:
        return None
    await connection.execute(
        QUERIES.create_budget,
        {
            "task_id": task_id,
            "tenant": tenant,
            "max_tokens": spec.limits.max_tokens,
            "max_nano_usd": spec.limits.max_nano_usd,
            "is_default_cap": spec.limits.money_cap is MoneyCap.DEFAULT,
        },
    )
    await count_submit(connection, tenant, admission)
    return columns


async def find_repeat(connection: Connection, tenant: str, request_id: str, digest: bytes, source: Source) -> str:
    """Returns the task of a request id or of a source's run, after an insert that conflicted.

    Raises AlreadyExists when either was used for another request, or neither was used at all: then another task of the
    same exclusive source is live.
    """
    task_id = await find_earlier(connection, tenant, request_id, digest, source)
    if task_id is None:
        raise await refusal_of_source(connection, tenant, source)
    return task_id


async def find_earlier(
    connection: Connection, tenant: str, request_id: str, digest: bytes, source: Source
) -> str | None:
    """Returns the task that an earlier equal request created, by its request id or else by its source's run, or None.

    Raises AlreadyExists (REQUEST_ID_REUSED, SOURCE_RUN_REUSED).
    """
    row = await fetch_one(connection, QUERIES.find_request, {"tenant": tenant, "request_id": request_id})
    reason, advice = "REQUEST_ID_REUSED", "this request_id was used for another task: use a new request_id"
    if row is None and source.source_run_id:
        row = await fetch_one(connection, QUERIES.find_source_run, {"tenant": tenant, **source_columns(source)})
        reason = "SOURCE_RUN_REUSED"
        advice = "another spec was submitted for this run of the source: use a new source_run_id"
    if row is None:
        return None
    task_id: str = row[0]
    if row[1] != digest:
        raise AlreadyExists(advice, reason=reason, metadata={"task_id": task_id})
    return task_id


def submitted_of(
    spec: TaskSpec, request_id: str, files: Iterable[workspace_pb2.SubmittedFile], traceparent: str = ""
) -> ledger_pb2.TaskSubmitted:
    """Returns the body of the entry `submitted`."""
    return ledger_pb2.TaskSubmitted(
        spec=spec_to_wire(spec), request_id=request_id, traceparent=traceparent, files=files
    )


async def insert_first_entries(
    connection: Connection,
    tenant: str,
    task_id: str,
    submitted: ledger_pb2.TaskSubmitted,
    second: ledger_pb2.EntryBody,
) -> None:
    """Inserts the entry `submitted` and the second entry: the transition to QUEUED, or `forked`."""
    parameters = first_entries(task_id, tenant, submitted, second)
    await connection.execute(QUERIES.create_entries, parameters)


def first_entries(
    task_id: str, tenant: str, submitted: ledger_pb2.TaskSubmitted, second: ledger_pb2.EntryBody
) -> dict[str, Any]:
    """Returns the parameters of `create_entries`."""
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


def row_of(place: TreePosition, tenant: str, request_id: str, digest: bytes, spec: TaskSpec) -> dict[str, Any]:
    """Returns the parameters of `create_task`."""
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
        **source_columns(spec.source),
        "has_result_schema": bool(spec.result_schema_json),
        "policy": policy_to_wire(spec.policy).SerializeToString(),
        "queued_seconds": spec.policy.timeouts.queued.after_seconds,
        "start_time": "" if spec.start_time is None else spec.start_time.isoformat(),
        "agent": "" if spec.agent_pin is None else spec.agent_pin.agent,
        "agent_revision": 0 if spec.agent_pin is None else spec.agent_pin.revision,
    }
