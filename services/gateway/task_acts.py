"""ActOnTasks: acts on the tasks that match a filter, page by page, each through the method for one task.

It stores nothing: an operation's id is the request id of each of its acts, and the ledger knows which acts it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from services.gateway.peers import Peers, with_retries
from tenure.domain.acts import ACTS, Act
from tenure.domain.errors import InvalidRequest, Refused, Unavailable
from tenure.domain.states import TaskState
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.wire.common import STATES

if TYPE_CHECKING:
    from tenure.v1.admin_service_pb2 import ActOnTasksResponse

DEFAULT_TASKS_PER_SECOND: Final = 20
PAGE_SECONDS: Final = 5
MAX_PAGE: Final = 100
STILL_HELD: Final = "STILL_HELD"
"""The reason of Unavailable for a wait that is recorded, and begins when the task's worker has lost it."""

ActOnOne = Callable[[task_pb2.Task], Awaitable[task_pb2.Task]]
"""Acts on a task as it was listed, and returns it as it is then. Raises the errors of the method for one task."""


async def count_tasks(peers: Peers, request: api.ActOnTasksRequest) -> ActOnTasksResponse:
    """Returns the numbers of the tasks that match."""
    counted = await with_retries(lambda: peers.checkpoint.GroupTasks(ledger.GroupTasksRequest(filter=_filter(request))))
    return api.ActOnTasksResponse(groups=counted.groups, more=counted.more)


async def act_on_page(peers: Peers, request: api.ActOnTasksRequest, act_on: ActOnOne) -> ActOnTasksResponse:
    """Acts on the next page of tasks, at the rate of the request. Raises Unavailable: repeat the page."""
    rate = request.tasks_per_second or DEFAULT_TASKS_PER_SECOND
    page = await _page(peers, request, min(MAX_PAGE, PAGE_SECONDS * rate))
    outcomes = [_not_found(task_id) for task_id in page.missing]
    clock = asyncio.get_running_loop().time
    for task in page.tasks:
        began = clock()
        outcomes.append(await _outcome(ACTS[_name(request)], task, act_on))
        await asyncio.sleep(began + 1 / rate - clock())  # also after the last one: the next page follows at once
    return api.ActOnTasksResponse(outcomes=outcomes, next_page_token=page.next_token)


class _Page(NamedTuple):
    """The tasks of a page, and the ids of the request that are not among them."""

    tasks: Sequence[task_pb2.Task]
    next_token: str
    missing: Sequence[str] = ()


async def _page(peers: Peers, request: api.ActOnTasksRequest, size: int) -> _Page:
    wanted = _filter(request)
    if not wanted.task_ids:
        page = await _list(peers, wanted, size, request.page_token)
        return _Page(page.tasks, page.next_page_token)
    begin = _place(request.page_token, len(wanted.task_ids))
    task_ids = [task_id.lower() for task_id in wanted.task_ids[begin : begin + size]]
    wanted.task_ids[:] = task_ids
    listed, token = list[task_pb2.Task](), ""
    while True:  # large specs make a page of the list shorter
        page = await _list(peers, wanted, size, token)
        listed += page.tasks
        token = page.next_page_token
        if not token:
            break
    known = {task.task_id for task in listed}
    rest = request.filter.task_ids[begin + size :]
    missing = [task_id for task_id in dict.fromkeys(task_ids) if task_id not in known]
    return _Page(listed, str(begin + size) if rest else "", missing)


async def _list(peers: Peers, wanted: task_pb2.TaskFilter, size: int, token: str) -> tasks.ListTasksResponse:
    request = tasks.ListTasksRequest(filter=wanted, page_size=size, page_token=token, fresh=True)
    return await with_retries(lambda: peers.checkpoint.ListTasks(request))


def _place(token: str, ids: int) -> int:
    """Returns how many of the ids earlier pages had: fewer than all, because a filter without ids selects any task."""
    if token and not (token.isascii() and token.isdigit() and len(token) <= 3 and int(token) < ids):
        raise InvalidRequest(violations=[("page_token", "is not a token of this operation")])
    return int(token or 0)


def _name(request: api.ActOnTasksRequest) -> str:
    return request.WhichOneof("act") or ""


def _filter(request: api.ActOnTasksRequest) -> task_pb2.TaskFilter:
    """Returns the filter of a request; without states and ids, of the tasks that the act can change."""
    wanted = task_pb2.TaskFilter()
    wanted.CopyFrom(request.filter)
    if not wanted.task_ids and not wanted.states:
        act = ACTS[_name(request)]
        wanted.states.extend(STATES.to_wire(state) for state in sorted(act.states))
        if not wanted.reasons:
            wanted.reasons.extend(sorted(act.reasons))
    return wanted


async def _outcome(act: Act, task: task_pb2.Task, act_on: ActOnOne) -> ActOnTasksResponse.Outcome:
    try:
        after = await act_on(task)
    except Refused as refusal:
        state = TaskState(refusal.metadata.get("state") or STATES.to_domain(task.state))
        known = api.ActOnTasksResponse.Outcome(task_id=task.task_id, state=STATES.to_wire(state))
        if act.is_done(state, task.reason):
            known.result = api.ACT_RESULT_ALREADY
            return known
        known.result, known.reason, known.message = api.ACT_RESULT_REFUSED, refusal.reason, refusal.message
        return known
    except Unavailable as error:
        if error.reason != STILL_HELD:
            raise
        return api.ActOnTasksResponse.Outcome(task_id=task.task_id, result=api.ACT_RESULT_DONE, state=task.state)
    # A request that the ledger had before, and a cancel of a cancelled task, append no entry.
    is_new = after.sequence > task.sequence
    result = api.ACT_RESULT_DONE if is_new else api.ACT_RESULT_ALREADY
    return api.ActOnTasksResponse.Outcome(task_id=task.task_id, result=result, state=after.state)


def _not_found(task_id: str) -> ActOnTasksResponse.Outcome:
    return api.ActOnTasksResponse.Outcome(
        task_id=task_id,
        result=api.ACT_RESULT_REFUSED,
        reason="TASK_NOT_FOUND",
        message="task not found, or the filter does not match it",
    )
