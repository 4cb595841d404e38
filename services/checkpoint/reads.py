"""Reads for the gateway: a task, tasks in pages, entries in pages. A tenant sees only its own tasks."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.checkpoint.commit.draft import calls_in_doubt
from services.checkpoint.commit.task_row import shown_wait
from services.checkpoint.entries import PAGE_BYTES, PAGE_ENTRIES, read_page
from services.checkpoint.not_found import task_not_found
from services.checkpoint.page_tokens import read_token, write_token
from services.checkpoint.queries import LISTS, QUERIES, fetch_all, fetch_one, ledger_connection
from services.checkpoint.rows import ReadColumns, ShownTask
from services.checkpoint.standby import LedgerReads
from tenure.domain.budget import Budget
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Priority
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import PRIORITIES, SOURCES, STATES, moment, optional_timestamp, timestamp
from tenure.wire.task import budget_to_wire
from tenure.wire.tool import calls_in_doubt_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.runtime.store.postgres import Connection, Pool


# Tasks as callers see them: the task row, with the spec from the first entry and the root's budget.

_BUDGET_COLUMNS: Final = len(fields(Budget))


def new_task(columns: tuple[Any, ...], spec: task_pb2.TaskSpec) -> task_pb2.Task:
    """Returns a root task from the columns that `create_task` returned."""
    budget = Budget(spec.limits.max_tokens, 0, 0, spec.limits.max_nano_usd)
    return _task(ShownTask(*(*columns, b"", [], budget)), spec)


def snapshot(row: ReadColumns, budget: Budget, **others: Any) -> task_pb2.Task:
    """Returns what both a locked task and a shown one have, with other fields."""
    return task_pb2.Task(
        task_id=row.task_id,
        tenant=row.tenant,
        state=STATES.to_wire(row.state),
        reason=row.reason,
        message=row.message,
        attempt=row.attempt,
        epoch=row.epoch,
        owner=row.owner,
        step=row.step,
        sequence=row.sequence,
        usage=task_pb2.TokenUsage(
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            cache_creation_input_tokens=row.cache_creation_input_tokens,
            cache_read_input_tokens=row.cache_read_input_tokens,
        ),
        budget=budget_to_wire(budget),
        claim_count=row.claim_count,
        cancel_requested=bool(row.ending_state) and row.state not in TERMINAL,
        parent_task_id=row.parent_task_id or "",
        root_task_id=row.root_task_id,
        next_retry_time=optional_timestamp(row.next_retry_at),
        deadline_time=timestamp(row.deadline_at),
        wait=shown_wait(row.wait),
        used_nano_usd=row.used_nano_usd,
        calls_in_doubt=calls_in_doubt_to_wire(calls_in_doubt(row.calls_in_doubt)),
        **others,
    )


def _task(row: ShownTask, spec: task_pb2.TaskSpec) -> task_pb2.Task:
    return snapshot(
        row,
        row.budget,
        spec=spec,
        result=row.result.decode(),
        create_time=timestamp(row.created_at),
        update_time=timestamp(row.updated_at),
        start_time=optional_timestamp(row.started_at),
        end_time=optional_timestamp(row.ended_at),
        forked_from=_forked_from(row),
        result_json=row.result_json.decode(),
        depth=row.depth,
        spawn_call_id=row.spawn_call_id,
        spawn_index=row.spawn_index,
        queue=row.queue,
        priority=PRIORITIES.to_wire(Priority(row.priority)),
        outputs=[tool_pb2.TaskOutput.FromString(body) for body in row.outputs],
    )


def _forked_from(row: ShownTask) -> task_pb2.ForkedFrom | None:
    if row.forked_from_task_id is None:
        return None
    return task_pb2.ForkedFrom(task_id=row.forked_from_task_id, sequence=row.forked_from_sequence or 0)


async def read_tasks(connection: Connection, tenant: str, task_ids: Sequence[str]) -> list[task_pb2.Task]:
    """Returns the tenant's tasks among these ids, in this order."""
    rows: list[tuple[Any, ...]]
    if len(task_ids) == 1:
        rows = await fetch_all(connection, QUERIES.task_by_id, {"task_id": task_ids[0], "tenant": tenant})
    else:
        rows = await fetch_all(connection, QUERIES.tasks_by_id, {"task_ids": list(task_ids), "tenant": tenant})
    tasks = [ShownTask(*(*columns[:-_BUDGET_COLUMNS], Budget(*columns[-_BUDGET_COLUMNS:]))) for columns in rows]
    return [_task(task, ledger_pb2.EntryBody.FromString(task.submitted).submitted.spec) for task in tasks]


async def read_task(connection: Connection, tenant: str, task_id: str) -> task_pb2.Task:
    """Returns the task. Raises the same NotFound for another tenant's task as for a missing one."""
    tasks = await read_tasks(connection, tenant, [task_id])
    if not tasks:
        raise await task_not_found(connection, tenant, task_id)
    return tasks[0]


DEFAULT_TASKS: Final = 50
DEFAULT_ENTRIES: Final = 200
LIST_BYTES: Final = 1_500_000
TASK_PAGE_BYTES: Final = 3 * 1024 * 1024
MAX_COUNTED: Final = 100_000
_NEWEST: Final = ("infinity", "ffffffff-ffff-ffff-ffff-ffffffffffff")
_LAST_CHARACTER: Final = "\U0010ffff"
_SOONEST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000")


class LedgerPosition(NamedTuple):
    """The last sequence of a task's ledger, and whether the task has ended."""

    sequence: int
    ended: bool


async def get_task(pool: Pool, tenant: str, task_id: str) -> task_pb2.Task:
    """Returns the task. Raises NotFound."""
    async with ledger_connection(pool) as connection:
        return await read_task(connection, tenant, task_id)


async def list_tasks(reads: LedgerReads, tenant: str, request: tasks_pb.ListTasksRequest) -> tasks_pb.ListTasksResponse:
    """Returns one page, which may be stale. Large specs may make it shorter: the token says whether there is more."""
    page_size = request.page_size or DEFAULT_TASKS
    listing, first = _listing(request)
    place, place_task_id = read_token(request.page_token, first)
    parameters = {
        "tenant": tenant,
        "place": place,
        "place_task_id": place_task_id,
        **filter_parameters(request.filter),
        "page_size": page_size,
    }

    async def read(connection: Connection) -> tuple[list[tuple[str, str]], list[task_pb2.Task], str]:
        places = await fetch_all(connection, listing, parameters)
        return places, *await _tasks_that_fit(connection, tenant, [task_id for task_id, _ in places])

    (places, tasks, last_id), as_of = await reads.stale(read, fresh=request.fresh)
    more = len(places) == page_size or (bool(places) and last_id != places[-1][0])
    token = write_token(dict(places)[last_id], last_id) if more else ""
    return tasks_pb.ListTasksResponse(tasks=tasks, next_page_token=token, as_of_time=optional_timestamp(as_of))


def _listing(request: tasks_pb.ListTasksRequest) -> tuple[bytes, tuple[str, str]]:
    """Returns the statement with the matching index, and the position before its first row."""
    if request.order == task_pb2.TASK_ORDER_WAIT_DEADLINE:
        return LISTS.list_waits, _SOONEST
    if request.filter.task_ids:
        return LISTS.list_ids, _NEWEST
    if request.filter.forked_from_task_id:
        return LISTS.list_forks, _NEWEST
    output = request.filter.output
    if output.kind or output.uri_prefix:
        return (LISTS.list_output_kind if output.kind else LISTS.list_output_uri), _NEWEST
    source = request.filter.source
    if source.source_run_id:
        return LISTS.list_source_run, _NEWEST
    if source.source_id:
        return LISTS.list_source, _NEWEST
    if request.filter.HasField("source"):
        return LISTS.list_source_kind, _NEWEST
    if request.filter.reasons:
        return LISTS.list_reasons, _NEWEST
    if request.filter.agent:
        return LISTS.list_agent, _NEWEST
    by_state = request.filter.states or request.filter.queue
    return (LISTS.list_states if by_state else LISTS.list_tasks), _NEWEST


async def group_tasks(pool: Pool, tenant: str, request: pb.GroupTasksRequest) -> pb.GroupTasksResponse:
    """Returns the numbers of tasks that match, by state and reason, of the MAX_COUNTED first ones."""
    statement = LISTS.group_ids if request.filter.task_ids else LISTS.group_states
    parameters = {"tenant": tenant, **filter_parameters(request.filter), "limit": MAX_COUNTED + 1}
    async with ledger_connection(pool) as connection:
        rows = await fetch_all(connection, statement, parameters)
    groups = [
        admin_pb.TaskGroup(state=STATES.to_wire(TaskState(state)), reason=reason, count=count, task_ids=task_ids)
        for state, reason, count, task_ids in rows
    ]
    return pb.GroupTasksResponse(groups=groups, more=sum(group.count for group in groups) > MAX_COUNTED)


async def _tasks_that_fit(connection: Connection, tenant: str, task_ids: list[str]) -> tuple[list[task_pb2.Task], str]:
    """Returns as many tasks as fit into one response, at least one, and the id up to which they are complete.

    Tasks that were pruned since the ids were read are left out. Reads small parts, because a spec may be large.
    """
    tasks: list[task_pb2.Task] = []
    size = 0
    for start in range(0, len(task_ids), 10):
        for task in await read_tasks(connection, tenant, task_ids[start : start + 10]):
            size += task.ByteSize()
            if tasks and size > TASK_PAGE_BYTES:
                return tasks, tasks[-1].task_id
            tasks.append(task)
    return tasks, task_ids[-1] if task_ids else ""


async def list_entries(
    reads: LedgerReads, tenant: str, request: tasks_pb.ListTaskEntriesRequest
) -> tasks_pb.ListTaskEntriesResponse:
    """A page, oldest first. Raises NotFound."""
    place, entries = await entries_after(
        reads,
        tenant,
        request.task_id,
        request.after_sequence,
        page_size=request.page_size or DEFAULT_ENTRIES,
        page_bytes=LIST_BYTES // 2,
        kinds=request.kinds,
    )
    if not entries and not request.kinds and request.after_sequence < place.sequence:
        # The task was pruned since it was read.
        async with ledger_connection(reads.primary) as connection:
            raise await task_not_found(connection, tenant, request.task_id)
    more = bool(entries) and entries[-1].sequence < place.sequence
    return tasks_pb.ListTaskEntriesResponse(entries=entries, more=more)


async def entries_after(
    reads: LedgerReads,
    tenant: str,
    task_id: str,
    after: int,
    *,
    page_size: int = PAGE_ENTRIES,
    page_bytes: int = PAGE_BYTES,
    kinds: Sequence[str] = (),
) -> tuple[LedgerPosition, list[ledger_pb2.Entry]]:
    """Returns the end of the ledger and the next page after a sequence. Raises NotFound. `kinds`: as `read_page`.

    The end is the primary's, so the page is never stale, wherever it was read.
    """
    async with ledger_connection(reads.primary) as connection:
        place = await position_of(connection, tenant, task_id)
        if place.sequence <= after:
            return place, []
        limits: dict[str, Any] = {"after": after, "until": place.sequence, "kinds": kinds}
        limits |= {"page_size": page_size, "page_bytes": page_bytes}
        if not reads.may_catch_up(place.sequence - after):
            return place, await read_page(connection, task_id, **limits)
    return place, await reads.page(tenant, task_id, **limits)


async def position_of(connection: Connection, tenant: str, task_id: str) -> LedgerPosition:
    """Returns the end of the ledger. Raises NotFound, also for another tenant's task."""
    row = await fetch_one(connection, QUERIES.task_place, {"task_id": task_id, "tenant": tenant})
    if row is None:
        raise await task_not_found(connection, tenant, task_id)
    return LedgerPosition(row[0], TaskState(row[1]) in TERMINAL)


def filter_parameters(wanted: task_pb2.TaskFilter) -> dict[str, Any]:
    """Returns a filter as parameters of the statements. Raises InvalidRequest."""
    states = sorted({_state(number) for number in wanted.states})
    return {
        "states": states,
        "any_states": states or list(TaskState),
        "reasons": sorted(set(wanted.reasons)),
        "task_ids": sorted(set(wanted.task_ids)),
        "agent": wanted.agent,
        "agent_revision": wanted.agent_revision,
        "created_since": moment(wanted.created_since).isoformat() if wanted.HasField("created_since") else "-infinity",
        "ended_since": moment(wanted.ended_since).isoformat() if wanted.HasField("ended_since") else "",
        "queue": wanted.queue,
        "queue_until": wanted.queue or _LAST_CHARACTER,
        "root_task_id": wanted.root_task_id,
        "forked_from_task_id": wanted.forked_from_task_id,
        "source_kind": SOURCES.to_domain(wanted.source.kind).value if wanted.HasField("source") else "",
        "source_id": wanted.source.source_id,
        "source_run_id": wanted.source.source_run_id,
        "output_kind": wanted.output.kind,
        "output_from": wanted.output.uri_prefix,
        "output_until": wanted.output.uri_prefix and wanted.output.uri_prefix + _LAST_CHARACTER,
        "labels": json.dumps(dict(wanted.labels)),
    }


def _state(number: int) -> str:
    try:
        return STATES.to_domain(number).value
    except ValueError:
        raise InvalidRequest(violations=[("filter.states", "contains an unknown state")]) from None
