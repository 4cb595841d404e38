"""The tasks that a filter selects: pages of them, and their numbers.

Each page reads the tasks in the order of one index, and at most `MOST_READ` of them: a filter that few tasks match
takes more pages, and no page takes long. A text is looked up first: the tasks of a rare one are read by their ids, and
a frequent one is soon found among the newest tasks.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from services.checkpoint.page_tokens import read_token, write_token
from services.checkpoint.queries import LISTS, fetch_all
from services.checkpoint.reads import tasks_that_fit
from tenure.domain.errors import InvalidRequest
from tenure.domain.search import searched_words
from tenure.domain.states import TaskState
from tenure.domain.task_ids import id_range
from tenure.runtime.store.postgres import pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import SOURCES, STATES, moment, optional_timestamp, seconds, timestamp

if TYPE_CHECKING:
    from services.checkpoint.standby import LedgerReads
    from tenure.runtime.store.postgres import Connection, Pool

DEFAULT_TASKS: Final = 50
MOST_READ: Final = 5_000
"""The tasks that one page reads of each index, or state, that it follows."""
MOST_FOUND: Final = 1_000
"""A text that more tasks have is frequent."""
MOST_COUNTED: Final = 10_000
"""Of each state; a frequent text has a lower limit."""
MAX_GROUPED: Final = 100_000
"""Read for the groups of one filter."""
_NEWEST: Final = ("infinity", "ffffffff-ffff-ffff-ffff-ffffffffffff")
_LAST_CHARACTER: Final = "\U0010ffff"
_SOONEST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000")
_ALL_IDS: Final = (_SOONEST[1], _NEWEST[1])
_ONLY_IN_INDEX: Final = frozenset({"states", "reasons", "queue", "created_since", "created_before"})
_LAST_NANO_USD: Final = 2**63 - 1
_BY_STATE: Final = (LISTS.list_tasks, LISTS.list_states, LISTS.list_reasons)


_TimeField = Literal["created_since", "created_before", "ended_since", "ended_before"]


class _Places(NamedTuple):
    """The places of a page's tasks, (task id, time), and the place up to which it read if that was not the end."""

    places: list[tuple[str, str]]
    reached: tuple[str, str] | None


async def list_tasks(reads: LedgerReads, tenant: str, request: tasks_pb.ListTasksRequest) -> tasks_pb.ListTasksResponse:
    """Returns one page, which may be stale. It may be shorter than `page_size` and have a token for the next page."""
    page_size = request.page_size or DEFAULT_TASKS
    by_deadline = request.order == task_pb2.TASK_ORDER_WAIT_DEADLINE
    place, place_task_id = read_token(request.page_token, _SOONEST if by_deadline else _NEWEST)
    parameters = filter_parameters(tenant, request.filter) | {
        "place": place,
        "place_task_id": place_task_id,
        "page_size": page_size,
        "most_read": MOST_READ,
    }

    async def read(connection: Connection) -> tuple[_Places, list[task_pb2.Task], str]:
        known = parameters if by_deadline else await _with_ids(connection, parameters)
        listing = LISTS.list_waits if by_deadline else _listing(request.filter, known)
        kept = _complete(await fetch_all(connection, listing, known))
        return kept, *await tasks_that_fit(connection, tenant, [task_id for task_id, _ in kept.places])

    (kept, tasks, last_id), as_of = await reads.stale(read, fresh=request.fresh)
    response = tasks_pb.ListTasksResponse(tasks=tasks, as_of_time=optional_timestamp(as_of))
    if kept.places and (len(kept.places) == page_size or last_id != kept.places[-1][0]):
        response.next_page_token = write_token(dict(kept.places)[last_id], last_id)
    elif kept.reached is not None and request.filter.task_id_prefix:
        message = f"more than {MOST_READ:,} ids begin so: give more characters"
        raise InvalidRequest(violations=[("filter.task_id_prefix", message)])
    elif kept.reached is not None:
        task_id, at = kept.reached
        response.next_page_token = write_token(at, task_id)
        if not by_deadline:
            response.searched_until_time.CopyFrom(timestamp(datetime.fromisoformat(at)))
    return response


def _complete(rows: list[tuple[Any, ...]]) -> _Places:
    """Returns what is complete: up to the newest place behind which some index was not read any more."""
    places: list[tuple[str, str]] = []
    for task_id, at, fits, is_last in rows:
        if fits:
            places.append((task_id, at))
        if is_last:
            return _Places(places, (task_id, at))
    return _Places(places, None)


async def _with_ids(connection: Connection, parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters with the ids of the tasks that have the text, unless it is a frequent one."""
    if not parameters["words"]:
        return parameters
    wanted = {"words": parameters["words"], "limit": MOST_FOUND + 1}
    task_ids = [task_id for (task_id,) in await fetch_all(connection, LISTS.find_words, wanted)]
    if len(task_ids) > MOST_FOUND:
        return parameters
    return parameters | {"any_ids": task_ids, "words": ""}


def _listing(wanted: task_pb2.TaskFilter, parameters: dict[str, Any]) -> bytes:
    """Returns the statement with the index that finds the fewest tasks."""
    if parameters["any_ids"] is not None:
        return LISTS.list_ids
    selective: tuple[tuple[object, bytes], ...] = (
        (wanted.task_id_prefix, LISTS.list_prefix),
        (wanted.root_task_id, LISTS.list_tree),
        (wanted.forked_from_task_id, LISTS.list_forks),
        (wanted.output.kind, LISTS.list_output_kind),
        (wanted.output.uri_prefix, LISTS.list_output_uri),
        (wanted.source.source_run_id, LISTS.list_source_run),
        (wanted.source.source_id, LISTS.list_source),
        (wanted.HasField("source"), LISTS.list_source_kind),
        (wanted.reasons, LISTS.list_reasons),
        (wanted.agent, LISTS.list_agent),
        (wanted.states or wanted.queue, LISTS.list_states),
    )
    return next((statement for given, statement in selective if given), LISTS.list_tasks)


async def count_tasks(pool: Pool, tenant: str, request: tasks_pb.CountTasksRequest) -> tasks_pb.CountTasksResponse:
    """Returns the numbers of tasks that match, by state, each exact up to a limit."""
    parameters = filter_parameters(tenant, request.filter) | {"most_counted": MOST_COUNTED}
    async with pool_connection(pool) as connection:
        known = await _with_ids(connection, parameters)
        if known["words"]:
            known["most_counted"] = MOST_FOUND  # the words of each task are read
        rows = await fetch_all(connection, _counting(request.filter, known), known)
    counts = [
        tasks_pb.CountTasksResponse.StateCount(state=STATES.to_wire(TaskState(state)), count=count, at_least=more)
        for state, count, more in rows
    ]
    return tasks_pb.CountTasksResponse(counts=sorted(counts, key=lambda one: one.state))


def _counting(wanted: task_pb2.TaskFilter, parameters: dict[str, Any]) -> bytes:
    if parameters["any_ids"] is not None:
        return LISTS.count_ids
    in_index = {field.name for field, _ in wanted.ListFields()} <= _ONLY_IN_INDEX
    return LISTS.count_index if in_index else LISTS.count_read


async def group_tasks(pool: Pool, tenant: str, request: pb.GroupTasksRequest) -> pb.GroupTasksResponse:
    """Returns the numbers of tasks that match, by state and reason. It reads MAX_GROUPED tasks at most."""
    place, place_task_id = _NEWEST
    parameters = filter_parameters(tenant, request.filter) | {
        "place": place,
        "place_task_id": place_task_id,
        "page_size": MAX_GROUPED + 1,
        "most_read": MAX_GROUPED + 1,
    }
    async with pool_connection(pool) as connection:
        known, more = await _with_ids(connection, parameters), False
        listing = _listing(request.filter, known)
        if known["any_ids"] is None and listing not in _BY_STATE:
            kept = _complete(await fetch_all(connection, listing, known))
            known["any_ids"], more = [task_id for task_id, _ in kept.places], kept.reached is not None
        statement = LISTS.group_states if known["any_ids"] is None else LISTS.group_ids
        rows = await fetch_all(connection, statement, known)
    groups = [
        admin_pb.TaskGroup(state=STATES.to_wire(TaskState(state)), reason=reason, count=count, task_ids=task_ids)
        for state, reason, count, task_ids, _ in sorted(rows, key=lambda row: (-row[2], row[0], row[1]))
        if count
    ]
    return pb.GroupTasksResponse(groups=groups, more=more or sum(read for *_, read in rows) > MAX_GROUPED)


def filter_parameters(tenant: str, wanted: task_pb2.TaskFilter) -> dict[str, Any]:
    """Returns a filter as parameters of the statements. Raises InvalidRequest.

    `any_ids`: those of the tasks to read; None: an index of another kind finds them.
    """
    states, task_ids = sorted({_state(number) for number in wanted.states}), sorted(set(wanted.task_ids))
    first_id, last_id = id_range(wanted.task_id_prefix) or _ALL_IDS
    has_dearest, has_longest = wanted.HasField("max_nano_usd"), wanted.HasField("max_duration")
    return {
        "tenant": tenant,
        "states": states,
        "any_states": states or list(TaskState),
        "reasons": sorted(set(wanted.reasons)),
        "task_ids": task_ids,
        "any_ids": task_ids or None,
        "first_id": first_id,
        "last_id": last_id,
        "agent": wanted.agent,
        "agent_revision": wanted.agent_revision,
        "created_since": _time(wanted, "created_since") or "-infinity",
        "created_before": _time(wanted, "created_before") or "infinity",
        "ended_since": _time(wanted, "ended_since"),
        "ended_before": _time(wanted, "ended_before"),
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
        "words": searched_words(tenant, wanted.text),
        "model": wanted.model,
        "min_nano_usd": wanted.min_nano_usd,
        "max_nano_usd": wanted.max_nano_usd if has_dearest else _LAST_NANO_USD,
        "min_seconds": str(seconds(wanted.min_duration)),
        "max_seconds": str(seconds(wanted.max_duration)) if has_longest else "Infinity",
    }


def _time(wanted: task_pb2.TaskFilter, field: _TimeField) -> str:
    return moment(getattr(wanted, field)).isoformat() if wanted.HasField(field) else ""


def _state(number: int) -> str:
    try:
        return STATES.to_domain(number).value
    except ValueError:
        raise InvalidRequest(violations=[("filter.states", "contains an unknown state")]) from None
