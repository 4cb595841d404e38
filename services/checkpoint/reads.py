"""Reads for the gateway: a task, tasks in pages, entries in pages. Everything is seen by its own tenant only."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.checkpoint.entries import read_page
from services.checkpoint.missing import missing
from services.checkpoint.queries import FORKS, QUERIES, fetch_all, fetch_one, ledger_connection
from services.checkpoint.snapshots import read_task, read_tasks
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.enums import STATES

if TYPE_CHECKING:
    from tenure.runtime.postgres import Connection, Pool
    from tenure.v1 import ledger_pb2

DEFAULT_TASKS: Final = 50
DEFAULT_ENTRIES: Final = 200
LIST_BYTES: Final = 1_500_000
TASK_PAGE_BYTES: Final = 3 * 1024 * 1024
_NEWEST: Final = ("infinity", "ffffffff-ffff-ffff-ffff-ffffffffffff")
_SOONEST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000")


class Place(NamedTuple):
    """Where a task's ledger ends."""

    sequence: int
    ended: bool


async def get_task(pool: Pool, tenant: str, task_id: str) -> task_pb2.Task:
    """Raises NotFound."""
    async with ledger_connection(pool) as connection:
        return await read_task(connection, tenant, task_id)


async def list_tasks(
    pool: Pool, tenant: str, request: pb.CheckpointServiceListTasksRequest
) -> pb.CheckpointServiceListTasksResponse:
    """A page. Large specs may make it shorter than asked: the token says whether there is more."""
    page_size = request.page_size or DEFAULT_TASKS
    listing, first = _listing(request)
    place, place_task_id = _read_token(request.page_token, first)
    parameters = {
        "tenant": tenant,
        "place": place,
        "place_task_id": place_task_id,
        **filter_parameters(request.filter),
        "page_size": page_size,
    }
    async with ledger_connection(pool) as connection:
        places = await fetch_all(connection, listing, parameters)
        tasks = await _tasks_that_fit(connection, tenant, [task_id for task_id, _ in places])
    more = len(places) == page_size or len(tasks) < len(places)
    last = places[len(tasks) - 1] if tasks and more else None
    token = "" if last is None else _write_token(place=last[1], task_id=last[0])
    return pb.CheckpointServiceListTasksResponse(tasks=tasks, next_page_token=token)


def _listing(request: pb.CheckpointServiceListTasksRequest) -> tuple[bytes, tuple[str, str]]:
    """The statement that has the index for it, and the place before its first row."""
    if request.order == task_pb2.TASK_ORDER_WAIT_DEADLINE:
        return QUERIES.list_waits, _SOONEST
    return (FORKS.list_forks if request.filter.forked_from_task_id else QUERIES.list_tasks), _NEWEST


async def _tasks_that_fit(connection: Connection, tenant: str, task_ids: list[str]) -> list[task_pb2.Task]:
    """As many as fit into one answer, at least one; read in small parts, since each may hold a large spec."""
    tasks: list[task_pb2.Task] = []
    size = 0
    for start in range(0, len(task_ids), 10):
        for task in await read_tasks(connection, tenant, task_ids[start : start + 10]):
            size += task.ByteSize()
            if tasks and size > TASK_PAGE_BYTES:
                return tasks
            tasks.append(task)
    return tasks


async def list_entries(pool: Pool, tenant: str, request: pb.ListEntriesRequest) -> pb.ListEntriesResponse:
    """A page, oldest first. Raises NotFound."""
    async with ledger_connection(pool) as connection:
        place = await place_of(connection, tenant, request.task_id)
        entries = await read_page(
            connection,
            request.task_id,
            after=request.after_sequence,
            until=place.sequence,
            page_size=request.page_size or DEFAULT_ENTRIES,
            page_bytes=LIST_BYTES // 2,
        )
        if not entries and request.after_sequence < place.sequence:  # it was there a moment ago: pruned meanwhile
            raise await missing(connection, tenant, request.task_id)
    more = bool(entries) and entries[-1].sequence < place.sequence
    return pb.ListEntriesResponse(entries=entries, more=more)


async def entries_after(pool: Pool, tenant: str, task_id: str, after: int) -> tuple[Place, list[ledger_pb2.Entry]]:
    """Where the ledger ends, and the next page after a sequence. Raises NotFound."""
    async with ledger_connection(pool) as connection:
        place = await place_of(connection, tenant, task_id)
        if place.sequence <= after:
            return place, []
        return place, await read_page(connection, task_id, after=after, until=place.sequence)


async def place_of(connection: Connection, tenant: str, task_id: str) -> Place:
    """Raises NotFound, also for another tenant's task."""
    found = await fetch_one(connection, QUERIES.task_place, {"task_id": task_id, "tenant": tenant})
    if found is None:
        raise await missing(connection, tenant, task_id)
    return Place(found[0], TaskState(found[1]) in TERMINAL)


def filter_parameters(wanted: task_pb2.TaskFilter) -> dict[str, Any]:
    """As the statements take a filter. Raises InvalidRequest."""
    return {
        "states": [_state(number) for number in wanted.states],
        "queue": wanted.queue,
        "root_task_id": wanted.root_task_id,
        "forked_from_task_id": wanted.forked_from_task_id,
        "labels": json.dumps(dict(wanted.labels)),
    }


def _state(number: int) -> str:
    try:
        return STATES.to_domain(number).value
    except ValueError:
        raise InvalidRequest(violations=[("filter.states", "must be states")]) from None


def _write_token(*, place: str, task_id: str) -> str:
    return base64.urlsafe_b64encode(f"{place} {task_id}".encode()).decode()


def _read_token(token: str, first: tuple[str, str]) -> tuple[str, str]:
    """(time, task_id) to go on behind."""
    if not token:
        return first
    try:
        place, _, task_id = base64.urlsafe_b64decode(token.encode()).decode().rpartition(" ")
    except (binascii.Error, UnicodeError):
        place = task_id = ""
    if not place or len(task_id) != len(first[1]):
        raise InvalidRequest(violations=[("page_token", "is none of ours")])
    return place, task_id
