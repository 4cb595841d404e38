"""Reads for the gateway: a task, entries in pages. A tenant sees only its own tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from services.checkpoint.commit.draft import calls_in_doubt
from services.checkpoint.commit.task_row import shown_wait
from services.checkpoint.entries import PAGE_BYTES, PAGE_ENTRIES, read_page
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one
from services.checkpoint.rows import ReadColumns, ShownTask
from services.checkpoint.standby import LedgerReads
from tenure.domain.budget import Budget
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Priority
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import PRIORITIES, STATES, optional_timestamp, timestamp
from tenure.wire.task import budget_to_wire
from tenure.wire.tool import calls_in_doubt_to_wire

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
        in_line=row.in_line,
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
        undo_of=spec.undo.task_id,
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


DEFAULT_ENTRIES: Final = 200
LIST_BYTES: Final = 1_500_000
TASK_PAGE_BYTES: Final = 3 * 1024 * 1024


class LedgerPosition(NamedTuple):
    """The last sequence of a task's ledger, and whether the task has ended."""

    sequence: int
    ended: bool


async def get_task(pool: Pool, tenant: str, task_id: str) -> task_pb2.Task:
    """Returns the task. Raises NotFound."""
    async with pool_connection(pool) as connection:
        return await read_task(connection, tenant, task_id)


async def tasks_that_fit(connection: Connection, tenant: str, task_ids: list[str]) -> tuple[list[task_pb2.Task], str]:
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
        async with pool_connection(reads.primary) as connection:
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
    async with pool_connection(reads.primary) as connection:
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
