"""ListTasks of A2A: the tasks of the tenant by the time of their status, the newest first.

The ledger lists tasks by the time of their creation. So this list reads all tasks that match, at most MAX_TASKS, and
sorts them: a page is exact, or the list is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from starlette.datastructures import QueryParams

from edges.a2a.history import history_of
from edges.a2a.shapes import (
    UNSUPPORTED,
    WIRE_STATES,
    base_url_of,
    context_of,
    refusal,
    state_of,
    task_json,
)
from services.gateway.http.call import HttpCall
from services.gateway.page_tokens import seal_of
from tenure.domain.errors import InvalidRequest, NotFound
from tenure.domain.task import SourceKind
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import SOURCES

MAX_TASKS: Final = 1000
DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 100
_LEDGER_PAGE: Final = 500
_UNSPECIFIED: Final = "TASK_STATE_UNSPECIFIED"


class _Position(NamedTuple):
    """Where a task is in the list. Larger ones come first."""

    at_ns: int
    task_id: str


def _position(task: task_pb2.Task) -> _Position:
    return _Position(task.update_time.ToNanoseconds(), task.task_id)


@dataclass(frozen=True, slots=True)
class TaskListQuery:
    """The parameters of ListTasks. `before`: the position of the last task of the page before."""

    context_id: str
    state: str
    page_size: int
    before: _Position | None
    history_length: int
    since_ns: int
    with_artifacts: bool

    @classmethod
    def read(cls, given: QueryParams) -> TaskListQuery:
        """Returns the parameters of a query string. Raises InvalidRequest, which names each wrong one."""
        wrong: list[tuple[str, str]] = []

        def read(name: str, convert: Callable[[str], Any], absent: Any, expected: str) -> Any:
            text = given.get(name, "")
            try:
                return convert(text) if text else absent
            except (ValueError, OverflowError, binascii.Error):
                wrong.append((name, expected))
                return absent

        query = cls(
            context_id=given.get("contextId", ""),
            state=read("status", _state, "", f"must be one of {', '.join(WIRE_STATES)}"),
            page_size=read("pageSize", _page_size, DEFAULT_PAGE, f"must be a number from 1 to {MAX_PAGE}"),
            before=read(
                "pageToken", partial(_read_token, _seal(given)), None, "must be the last nextPageToken of this list"
            ),
            history_length=read("historyLength", length_of_text, 0, "must be a number, 0 or more"),
            since_ns=read("statusTimestampAfter", _time_ns, 0, "must be an ISO 8601 time with Z or an offset"),
            with_artifacts=read("includeArtifacts", _flag, False, "must be true or false"),
        )
        if wrong:
            raise InvalidRequest(violations=wrong)
        return query

    def matches(self, task: task_pb2.Task) -> bool:
        """Returns whether the list has the task, on whichever page."""
        return (
            self.context_id in {"", context_of(task)}
            and self.state in {"", state_of(task)}
            and task.update_time.ToNanoseconds() >= self.since_ns
        )


def length_of_text(text: str) -> int:
    """Returns a historyLength of a query string. Raises ValueError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise ValueError(text)
    return int(text)


def _page_size(text: str) -> int:
    size = length_of_text(text)
    if not 1 <= size <= MAX_PAGE:
        raise ValueError(text)
    return size


def _state(text: str) -> str:
    if text != _UNSPECIFIED and text not in WIRE_STATES:
        raise ValueError(text)
    return "" if text == _UNSPECIFIED else text


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text] if text in {"true", "false"} else _refuse(text)


def _refuse(text: str) -> bool:
    raise ValueError(text)


def _time_ns(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(text)
    since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _seal(given: QueryParams) -> str:
    """Returns the beginning of the tokens of a list."""
    return seal_of(*(given.get(name, "").encode() for name in ("contextId", "status", "statusTimestampAfter")))


def _token(seal: str, position: _Position) -> str:
    return seal + base64.urlsafe_b64encode(f"{position.at_ns} {position.task_id}".encode()).decode()


def _read_token(seal: str, text: str) -> _Position:
    if not text.startswith(seal):
        raise ValueError(text)
    at_ns, _, task_id = base64.b64decode(text.removeprefix(seal), altchars=b"-_", validate=True).decode().partition(" ")
    return _Position(int(at_ns), str(UUID(task_id)))


async def list_json(call: HttpCall) -> dict[str, Any]:
    """Returns a page. Raises InvalidRequest, and HttpRefusal for more than MAX_TASKS tasks."""
    query = TaskListQuery.read(call.request.query_params)
    total, page = 0, list[task_pb2.Task]()
    async for tasks in _candidates(call, query):
        matching = [task for task in tasks if query.matches(task)]
        total += len(matching)
        page += [task for task in matching if query.before is None or _position(task) < query.before]
        page = sorted(page, key=_position, reverse=True)[: query.page_size + 1]
    shown = page[: query.page_size]
    return {
        "tasks": [await _listed(call, query, task) for task in shown],
        "nextPageToken": _token(_seal(call.request.query_params), _position(shown[-1]))
        if len(page) > query.page_size
        else "",
        "pageSize": query.page_size,
        "totalSize": total,
    }


async def _listed(call: HttpCall, query: TaskListQuery, task: task_pb2.Task) -> dict[str, Any]:
    history = await history_of(call, task, query.history_length)
    base_url = base_url_of(call)
    return task_json(task, base_url=base_url, history=history, with_artifacts=query.with_artifacts)


async def _candidates(call: HttpCall, query: TaskListQuery) -> AsyncGenerator[list[task_pb2.Task]]:
    """Yields pages of the tasks that may match, each task once."""
    seen = set[str]()
    for wanted in await _filters(call, query):
        token, more = "", True
        while more:
            request = api.ListTasksRequest(filter=wanted, page_size=_LEDGER_PAGE, page_token=token, fresh=True)
            listed = await call.one(call.stubs.tasks.ListTasks, request)
            yield [task for task in listed.tasks if task.task_id not in seen]
            seen.update(task.task_id for task in listed.tasks)
            token = listed.next_page_token
            more = bool(token)
            if len(seen) > MAX_TASKS:
                message = f"more than {MAX_TASKS:,} tasks would have to be sorted: give a contextId or a status"
                raise refusal(UNSUPPORTED, message)


async def _filters(call: HttpCall, query: TaskListQuery) -> list[task_pb2.TaskFilter]:
    """Returns the filters of the ledger that together find all tasks of the list, and few others."""
    states = WIRE_STATES.get(query.state, ())
    if query.state and not states:
        return []  # no task is ever in this state
    if not query.context_id:
        return [task_pb2.TaskFilter(states=states)]
    kind = SOURCES.to_wire(SourceKind.CONVERSATION)
    source = task_pb2.SourceFilter(kind=kind, source_id=query.context_id)
    filters = [task_pb2.TaskFilter(states=states, source=source)]
    if await _is_root(call, query.context_id):
        filters.append(task_pb2.TaskFilter(states=states, root_task_id=query.context_id))
    return filters


async def _is_root(call: HttpCall, context_id: str) -> bool:
    """Returns whether the context is a tree of tasks whose root did not begin by a message."""
    try:
        task = await call.one(call.stubs.tasks.GetTask, api.GetTaskRequest(task_id=str(UUID(context_id))))
    except (ValueError, NotFound):
        return False
    return context_of(task.task) == context_id
