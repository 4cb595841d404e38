"""CreateTask: creates a task, once per (tenant, request_id), however often the request is repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
import uuid_utils

from services.checkpoint.agents.pinning import pinned
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES, SOURCE_LINES, fetch_all, fetch_one, ledger_transaction
from services.checkpoint.reads import new_task, read_task
from services.checkpoint.rows import NEW_TASKS, NewTaskRow
from services.checkpoint.submit.prepared_ids import prepared_id, take_prepared
from services.checkpoint.submit.source_lines import Burst, enter_line, replace_burst
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.task_words import add_words
from services.checkpoint.tenants.quotas import admit, count_submit, warn_of_submit, without_quotas
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.errors import (
    SOURCE_BUSY,
    AlreadyExists,
    InvalidRequest,
    LimitReached,
    NotFound,
    TenureError,
    Unavailable,
    WrongState,
)
from tenure.domain.quotas import StartDecision
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Limits, MoneyCap, Source, TaskSpec
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool, TransactionConflict, in_transaction
from tenure.runtime.store.sql_arrays import Bools, Byteas, Int8s, OptionalTexts, Texts
from tenure.v1 import checkpoint_service_pb2, ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import STATES
from tenure.wire.task import source_to_domain, spec_to_wire

T = TypeVar("T")


AT_ONCE: Final = StartDecision()
"""No quota delays the task."""

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
        reason=SOURCE_BUSY,
        metadata={"task_id": task_id},
    )


class TreePosition(NamedTuple):
    """The position of a task in its tree. The root of a root task is the task itself."""

    task_id: str
    root_task_id: str
    parent_task_id: str | None = None
    depth: int = 0
    spawn_call_id: str = ""
    spawn_index: int = 0


class CreateResult(NamedTuple):
    """The task, new or existing, and the announcement for watchers."""

    task: task_pb2.Task
    announcement: Announcement


class Submit(NamedTuple):
    """A request to create a task."""

    tenant: str
    request: pb.CreateTaskRequest


class NewTask(NamedTuple):
    """A task to insert: its row, the spec with its timeouts, the delay by a quota, and its earliest start."""

    row: NewTaskRow
    spec: TaskSpec
    held_seconds: float = 0.0
    start_time: datetime | None = None


class NewLedger(NamedTuple):
    """The first two entries of a task, `submitted` and the one after it. `limits`: of the budget that a root has."""

    task_id: str
    tenant: str
    bodies: tuple[ledger_pb2.EntryBody, ledger_pb2.EntryBody]
    limits: Limits | None


class _Planned(NamedTuple):
    """A task as its submit, its agent and the defaults want it. `submitted`: the body of its first entry."""

    submit: Submit
    digest: bytes
    task_id: str
    spec: TaskSpec
    submitted: ledger_pb2.TaskSubmitted
    burst: Burst | None = None

    @property
    def start_time(self) -> datetime | None:
        """The earliest start, after the debounce, too."""
        times = (self.spec.start_time, self.burst and self.burst.start_at)
        return max((time for time in times if time is not None), default=None)

    def new_task(self, start: StartDecision) -> NewTask:
        place, (tenant, request) = TreePosition(self.task_id, self.task_id), self.submit
        policy = self.submitted.spec.policy
        row = row_of(place, tenant, request.request_id, self.digest, self.spec, policy, start)
        if self.burst is not None:
            row = row._replace(debounced_since=self.burst.since)
        return NewTask(row, self.spec, start.after_seconds, self.start_time)

    def new_ledger(self, start: StartDecision) -> NewLedger:
        bodies = ledger_pb2.EntryBody(submitted=self.submitted), _queued(start)
        return NewLedger(self.task_id, self.submit.tenant, bodies, self.spec.limits)


async def create_task(pool: Pool, submit: Submit, defaults: TaskDefaults) -> CreateResult:
    """Creates a task, or returns the one that the request id or the run of the source created before.

    Raises AlreadyExists (REQUEST_ID_REUSED, SOURCE_RUN_REUSED {task_id}) when the request id or the run was used for
    another spec, and, unless the request is a repeat, LimitReached (TENANT_QUOTA, SOURCE_LINE_FULL), NotFound and
    WrongState for the revision of an agent.

    The comparison uses the spec as the client sent it, before defaults: a release that changes a default must not
    refuse a repeated submit.
    """
    return await in_creation(lambda: in_transaction(pool, lambda connection: create_in(connection, submit, defaults)))


async def in_creation(create: Callable[[], Awaitable[T]]) -> T:
    """Runs a transaction that creates tasks."""
    await failpoint("checkpoint.before_create")
    created = await create()
    await failpoint("checkpoint.after_create")
    return created


async def create_in(
    connection: Connection, submit: Submit, defaults: TaskDefaults, *, may_refuse: bool = True
) -> CreateResult:
    """Creates a task within the caller's transaction. Without `may_refuse`, a quota delays the task but never refuses
    it.
    """
    planned = await _plan(connection, submit, defaults)
    if isinstance(planned, CreateResult):
        return planned
    tenant, request = submit
    spec = planned.spec
    admission = await admit(
        connection, tenant, request.request_id, spec.source, may_refuse=may_refuse, not_before=planned.start_time
    )
    (created,) = await _insert(connection, [planned], admission.start)
    if isinstance(created, TenureError):
        raise created
    if not created.announcement:  # a repeat
        return created
    await count_submit(connection, tenant, admission)
    if planned.burst is not None:
        replaced = await replace_burst(connection, planned.burst, planned.task_id)
        created.announcement.add(announcement_of(replaced))
    if request.prepared_task_id:
        await take_prepared(connection, tenant, request.request_id, planned.digest, planned.task_id)
    if await warn_of_submit(connection, tenant, planned.task_id, admission.uses.values()):
        return created._replace(task=await read_task(connection, tenant, planned.task_id))
    return created


async def create_batch(
    connection: Connection, batch: Sequence[Submit], defaults: TaskDefaults
) -> list[CreateResult | TenureError | None]:
    """Creates tasks of tenants without quotas of submits. Returns the results in order; None: create this one alone.

    A refusal is a result: nothing of its task is written, and it affects no other task.
    """
    free = await without_quotas(connection, {submit.tenant for submit in batch})
    results: list[CreateResult | TenureError | None] = [None] * len(batch)
    planned: dict[int, _Planned] = {}
    for place, submit in enumerate(batch):
        if submit.tenant in free and not _waits(submit.request):
            try:
                made = await _plan(connection, submit, defaults)
            except TenureError as refusal:
                results[place] = refusal
            else:
                if isinstance(made, CreateResult):
                    results[place] = made
                else:
                    planned[place] = made
    for place, result in zip(planned, await _insert(connection, list(planned.values())), strict=True):
        results[place] = result
    return results


def _waits(request: pb.CreateTaskRequest) -> bool:
    """Whether the submit may have to wait for others with its prepared id or of its burst."""
    return bool(request.prepared_task_id) or request.spec.source.HasField("debounce")


async def _plan(connection: Connection, submit: Submit, defaults: TaskDefaults) -> _Planned | CreateResult:
    """Returns the task to create. A repeat gets its task here if its agent is gone, whatever became of it."""
    tenant, request = submit
    digest, task_id = digest_of(request), request.prepared_task_id or str(uuid_utils.uuid7())
    try:
        spec = defaults.of_submit(await pinned(connection, tenant, task_id, request.spec))
        burst = await enter_line(connection, tenant, spec.source)
    except (NotFound, WrongState, InvalidRequest, LimitReached):
        earlier = await find_earlier(
            connection, tenant, request.request_id, digest, source_to_domain(request.spec.source)
        )
        if earlier is None:
            raise
        return CreateResult(await read_task(connection, tenant, earlier), Announcement())
    submitted = submitted_of(spec, request.request_id, request.files, request.traceparent)
    return _Planned(submit, digest, task_id, spec, submitted, burst)


async def _insert(
    connection: Connection, batch: Sequence[_Planned], start: StartDecision = AT_ONCE
) -> list[CreateResult | TenureError]:
    """Inserts the tasks with their ledgers. Returns their results in order."""
    columns = await insert_tasks(connection, [planned.new_task(start) for planned in batch])
    new = [planned for planned in batch if planned.task_id in columns]
    await insert_ledgers(connection, [planned.new_ledger(start) for planned in new])
    return [
        _created(planned, columns[planned.task_id])
        if planned.task_id in columns
        else await _existing(connection, planned)
        for planned in batch
    ]


def _created(planned: _Planned, columns: tuple[Any, ...]) -> CreateResult:
    news = Announcement({planned.task_id}, claimable=True, changed_tenants={planned.submit.tenant})
    news.source_lines = planned.spec.source.at_most > 0
    return CreateResult(new_task(columns, planned.submitted.spec), news)


async def _existing(connection: Connection, planned: _Planned) -> CreateResult | TenureError:
    """Returns the result of a submit whose insert conflicted."""
    tenant, request = planned.submit
    try:
        task_id = await find_repeat(connection, tenant, request.request_id, planned.digest, planned.spec.source)
        return CreateResult(await read_task(connection, tenant, task_id), Announcement())
    except TenureError as refusal:
        return refusal


def _queued(start: StartDecision) -> ledger_pb2.EntryBody:
    queued = ledger_pb2.StateTransition(
        to_state=STATES.to_wire(TaskState.QUEUED), reason=_reason(start), message=start.message
    )
    return ledger_pb2.EntryBody(transition=queued)


def _reason(start: StartDecision) -> str:
    return Reason.TENANT_QUOTA if start.after_seconds else Reason.SUBMITTED


@ledger_transaction
async def prepare_task(
    connection: Connection, tenant: str, request: pb.CreateTaskRequest, defaults: TaskDefaults
) -> pb.PrepareTaskResponse:
    """Returns the id that the task will have, or the task if it exists. Raises as create_task does."""
    digest, source = digest_of(request), source_to_domain(request.spec.source)
    earlier = await find_earlier(connection, tenant, request.request_id, digest, source)
    if earlier is not None:
        return checkpoint_service_pb2.PrepareTaskResponse(task=await read_task(connection, tenant, earlier))
    task_id, made = await prepared(connection, tenant, request.request_id, digest, source)
    if made:
        return checkpoint_service_pb2.PrepareTaskResponse(task=await read_task(connection, tenant, task_id))
    spec = defaults.of_submit(await pinned(connection, tenant, task_id, request.spec))
    await admit(connection, tenant, request.request_id, spec.source, not_before=spec.start_time)
    return checkpoint_service_pb2.PrepareTaskResponse(prepared_task_id=task_id)


async def prepared(
    connection: Connection, tenant: str, request_id: str, digest: bytes, source: Source
) -> tuple[str, bool]:
    """Returns the id that the task will have, and whether a concurrent equal request has created the task by now.

    It looks after it has the id: the equal request may have used its own id up between a look and this one.
    """
    task_id = await prepared_id(connection, tenant, request_id, digest)
    earlier = await find_earlier(connection, tenant, request_id, digest, source)
    if earlier is None:
        return task_id, False
    await take_prepared(connection, tenant, request_id, digest, task_id)
    return earlier, True


def digest_of(request: pb.CreateTaskRequest) -> bytes:
    """Returns the digest by which a repeat of a submit is recognised."""
    parts = [request.spec, *as_sent(request.files)]
    return hashlib.sha256(b"".join(part.SerializeToString(deterministic=True) for part in parts)).digest()


def as_sent(files: Iterable[workspace_pb2.SubmittedFile]) -> list[workspace_pb2.SubmittedFile]:
    """Returns files with what the client sent only: which files are images is a rule that a release may change."""
    return [workspace_pb2.SubmittedFile(path=file.path, digest=file.digest) for file in files]


async def insert_tasks(connection: Connection, new: Sequence[NewTask]) -> dict[str, tuple[Any, ...]]:
    """Inserts the rows of tasks. Returns the columns of each, as `new_task` takes them, by task id.

    A task is missing whose request id or source's run was used before, or whose exclusive source has a live task. All
    writers insert in one order, so that two with the same requests do not wait for each other.
    """
    ordered = sorted(new, key=lambda each: (each.row.tenant, each.row.request_id))
    specs = [each.spec for each in ordered]
    starts = [each.start_time for each in ordered]
    parameters = {
        **NEW_TASKS.of([each.row for each in ordered]),
        "timeout_seconds": Texts(str(spec.limits.timeout_seconds) for spec in specs),
        "queued_seconds": OptionalTexts(_text(spec.policy.timeouts.queued.after_seconds) for spec in specs),
        "held_seconds": Texts(str(each.held_seconds) for each in ordered),
        "start_time": OptionalTexts(None if start is None else start.isoformat() for start in starts),
    }
    created = {columns[0]: columns for columns in await fetch_all(connection, QUERIES.create_tasks, parameters)}
    of_lines = [each.row.task_id for each in new if each.row.source_at_most and each.row.task_id in created]
    if of_lines:
        await connection.execute(SOURCE_LINES.note, {"task_ids": of_lines})
    return created


async def insert_ledgers(connection: Connection, new: Sequence[NewLedger]) -> None:
    """Inserts the first entries of tasks, their first change, and the budgets of roots."""
    if not new:
        return
    roots = [(each, each.limits) for each in new if each.limits is not None]
    entries = [(each, sequence, body) for each in new for sequence, body in enumerate(each.bodies, 1)]
    parameters = {
        "task_ids": Texts(each.task_id for each in new),
        "root_ids": Texts(each.task_id for each, _ in roots),
        "root_tenants": Texts(each.tenant for each, _ in roots),
        "max_tokens": Int8s(limits.max_tokens for _, limits in roots),
        "max_nano_usd": Int8s(limits.max_nano_usd for _, limits in roots),
        "is_default_cap": Bools(limits.money_cap is MoneyCap.DEFAULT for _, limits in roots),
        "entry_task_ids": Texts(each.task_id for each, _, _ in entries),
        "sequences": Int8s(sequence for _, sequence, _ in entries),
        "tenants": Texts(each.tenant for each, _, _ in entries),
        "kinds": Int8s(KINDS[body.WhichOneof("body") or ""] for _, _, body in entries),
        "bodies": Byteas(body.SerializeToString() for _, _, body in entries),
    }
    await connection.execute(QUERIES.create_ledgers, parameters)
    await add_words(connection, [(each.task_id, each.tenant, _searched(each)) for each in new])


def _searched(new: NewLedger) -> str:
    """Returns the text by which a search finds a new task: the goal, or the input of a function without one."""
    spec = new.bodies[0].submitted.spec
    return spec.goal or spec.control.input_json


def _text(seconds: float | None) -> str | None:
    return None if seconds is None else str(seconds)


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


def row_of(
    place: TreePosition,
    tenant: str,
    request_id: str,
    digest: bytes,
    spec: TaskSpec,
    policy: task_pb2.TaskPolicy,
    start: StartDecision = AT_ONCE,
) -> NewTaskRow:
    """Returns the row of a new task. A sub-agent has caps of its own in its tree's budget. `policy`: the spec's."""
    return NewTaskRow(
        task_id=place.task_id,
        root_task_id=place.root_task_id,
        parent_task_id=place.parent_task_id,
        depth=place.depth,
        spawn_call_id=place.spawn_call_id,
        spawn_index=place.spawn_index,
        tenant=tenant,
        request_id=request_id,
        request_hash=digest,
        reason=Reason.SPAWNED if place.depth else _reason(start),
        message=start.message,
        queue=spec.queue,
        priority=int(spec.priority),
        loop=spec.dispatch_loop,
        tools=spec.agent.tools,
        labels=json.dumps(dict(spec.labels)),
        max_steps=spec.limits.max_steps,
        on_lease_lost=spec.policy.on_lease_lost.value,
        exclusive_source=exclusive_source(spec.source),
        source_at_most=spec.source.at_most,
        debounced_since=None,
        source_kind=spec.source.kind.value,
        source_id=spec.source.source_id,
        source_run_id=spec.source.source_run_id,
        has_result_schema=bool(spec.result_schema_json),
        policy=policy.SerializeToString(),
        own_max_tokens=spec.limits.max_tokens if place.depth else 0,
        own_max_nano_usd=spec.limits.max_nano_usd if place.depth else 0,
        agent="" if spec.agent_pin is None else spec.agent_pin.agent,
        agent_revision=0 if spec.agent_pin is None else spec.agent_pin.revision,
    )
