"""Lists and resolves calls in doubt.

The tool service knows the calls, and the ledger knows the tasks that wait for their resolutions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.gateway.peers import Peers, read_task, with_retries
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.in_doubt import RUNNER_NOT_GONE
from tenure.domain.states import Reason
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_pb2, tool_pb2

DEFAULT_PAGE: Final = 50
_MAX_PAGES: Final = 10
"""The limit of the tool service's pages per answer: most calls in doubt of a tenant may be of tasks that went on."""
_AT_ONCE: Final = 16


async def list_in_doubt(peers: Peers, request: api.ListInDoubtCallsRequest) -> api.ListInDoubtCallsResponse:
    """Returns a page. Raises NotFound for a task that is not the caller's."""
    if request.task_id:
        await read_task(peers, request.task_id)
    if request.task_id or request.all:
        return await _look_through(peers, request)
    return await _list_waited_for(peers, request)


async def _list_waited_for(peers: Peers, request: api.ListInDoubtCallsRequest) -> api.ListInDoubtCallsResponse:
    """Returns the resolvable calls, found through the tasks that wait.

    The tool service also keeps many calls in doubt that can no longer be resolved.
    """
    ledger_request = ledger.ListDoubtsRequest(
        page_size=request.page_size or DEFAULT_PAGE, page_token=request.page_token
    )
    page = await with_retries(lambda: peers.checkpoint.ListDoubts(ledger_request))
    known = await _named(peers, [(doubt.task_id, doubt.call.call_id) for doubt in page.doubts])
    listed = []
    for doubt in page.doubts:
        call = known.get((doubt.task_id, doubt.call.call_id))
        # The outcome came late, or the task waits for another call attempt: the task goes on soon.
        if call is not None and doubt.call.call_attempt in {0, call.call_attempt}:
            listed.append(_waited_for(call))
    return api.ListInDoubtCallsResponse(calls=listed, next_page_token=page.next_page_token)


async def _look_through(peers: Peers, request: api.ListInDoubtCallsRequest) -> api.ListInDoubtCallsResponse:
    listed_calls: list[api.ListInDoubtCallsResponse.Listed] = []
    page_size, token = request.page_size or DEFAULT_PAGE, request.page_token
    for _ in range(_MAX_PAGES):
        tools_request = api.ListInDoubtCallsRequest(
            task_id=request.task_id, page_size=page_size - len(listed_calls), page_token=token
        )
        page = await _page(peers, tools_request)
        listed = await _with_tasks(peers, [one.call for one in page.calls])
        listed_calls += [each for each in listed if each.resolvable or request.all]
        token = page.next_page_token
        if not token or len(listed_calls) == page_size:
            break
    return api.ListInDoubtCallsResponse(calls=listed_calls, next_page_token=token)


async def prove(peers: Peers, request: api.ResolveInDoubtCallRequest) -> None:
    """Adds to a resolution whether its runner is proven gone.

    Raises WrongState (RUNNER_NOT_GONE) for "it did not happen" while the runner may still make the call happen, unless
    the caller states that the runner is gone. A repeated resolution is recorded in the same form: a proof is never
    withdrawn.
    """
    if request.decision.HasField("did_not_happen"):
        by_proof = not request.decision.did_not_happen.runner_is_gone and await _is_proven(peers, request)
        request.decision.did_not_happen.runner_proven_gone = by_proof


async def _is_proven(peers: Peers, request: api.ResolveInDoubtCallRequest) -> bool:
    """Whether the runner of that call attempt is proven gone.

    True for an attempt that is no longer in doubt and that no task waits for: then the ledger decides about a
    resolution.
    """
    task = await read_task(peers, request.task_id)
    waits = _waits(task, request.call_id, request.call_attempt)
    name = request.task_id, request.call_id
    call = (await _named(peers, [name])).get(name)
    if call is not None and call.call_attempt == request.call_attempt:
        if not call.runner_gone and waits:
            raise _not_gone(call)
        return call.runner_gone
    if waits:
        raise _not_there(request.call_id)
    return True


def _not_gone(call: tool_pb2.InDoubtCall) -> WrongState:
    metadata = {"runner_id": call.runner_id, "runner_instance": call.runner_instance}
    if call.acts_elsewhere:
        return WrongState(
            f"call {call.call_id} acts in another system that may still work on it. Wait longer than its maximum run. "
            "Then check again whether the call happened; if it did not, resolve it again with the statement that the "
            "other system no longer works on it",
            reason=RUNNER_NOT_GONE,
            metadata=metadata,
        )
    runner = f"the process that ran call {call.call_id} ({call.runner_instance or call.runner_id})"
    return WrongState(
        f"{runner} is not proven gone: if paused or cut off, it may still make the call happen. Make sure that it is "
        "gone: end it, or restart its machine. Then check again whether the call happened; if it did not, resolve it "
        "again with the statement that the runner is gone",
        reason=RUNNER_NOT_GONE,
        metadata=metadata,
    )


def _not_there(call_id: str) -> WrongState:
    return WrongState(
        f"the tool service does not have call {call_id} in doubt. Either its outcome came late: then its task goes on "
        "within a minute. Or the tool service lost the call, for example when its database was restored: then it "
        "cannot prove that the runner is gone. Check whether the call happened; if it did not, resolve it again with "
        "the statement that the runner is gone",
        reason=RUNNER_NOT_GONE,
    )


async def _with_tasks(peers: Peers, calls: Sequence[tool_pb2.InDoubtCall]) -> list[api.ListInDoubtCallsResponse.Listed]:
    """Returns each call with its task, or without one if the ledger has pruned it."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def find(task_id: str) -> task_pb2.Task | None:
        async with at_once:
            try:
                return await read_task(peers, task_id)
            except NotFound:
                return None

    task_ids = list(dict.fromkeys(call.task_id for call in calls))
    tasks = dict(zip(task_ids, await asyncio.gather(*map(find, task_ids)), strict=True))
    return [_listed(call, tasks[call.task_id]) for call in calls]


def _listed(call: tool_pb2.InDoubtCall, task: task_pb2.Task | None) -> api.ListInDoubtCallsResponse.Listed:
    if task is None:
        return api.ListInDoubtCallsResponse.Listed(call=call)
    return api.ListInDoubtCallsResponse.Listed(
        call=call,
        task_state=task.state,
        task_reason=task.reason,
        resolvable=_waits(task, call.call_id, call.call_attempt),
    )


def _waited_for(call: tool_pb2.InDoubtCall) -> api.ListInDoubtCallsResponse.Listed:
    return api.ListInDoubtCallsResponse.Listed(
        call=call,
        task_state=task_pb2.TASK_STATE_WAITING_USER,
        task_reason=Reason.TOOL_IN_DOUBT,
        resolvable=True,
    )


def _waits(task: task_pb2.Task, call_id: str, call_attempt: int) -> bool:
    """Whether the task waits for a resolution of this call attempt.

    A task whose worker did not name the calls waits for any resolution.
    """
    if task.state != task_pb2.TASK_STATE_WAITING_USER or task.reason != Reason.TOOL_IN_DOUBT:
        return False
    named = [each for each in task.calls_in_doubt if each.call_id == call_id]
    return not task.calls_in_doubt or any(each.call_attempt in {0, call_attempt} for each in named)


async def _named(peers: Peers, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tool_pb2.InDoubtCall]:
    """Returns those of the named calls (task id, call id) that are in doubt."""
    if not names:
        return {}
    call_names = [api.ListInDoubtCallsRequest.CallName(task_id=task_id, call_id=call_id) for task_id, call_id in names]
    page = await _page(peers, api.ListInDoubtCallsRequest(calls=call_names))
    return {(one.call.task_id, one.call.call_id): one.call for one in page.calls}


async def _page(peers: Peers, request: api.ListInDoubtCallsRequest) -> api.ListInDoubtCallsResponse:
    return await with_retries(lambda: peers.tools.ListInDoubtCalls(request))
