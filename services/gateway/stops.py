"""Stops and their ends: writes them to the ledger, takes them to the other services, and lists what was in flight.

The ledger decides. Whatever dies after its answer, a coordinator gives the tool service the ledger's stops within a
second, and model runners read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from services.gateway.peers import Peers, with_retries
from tenure.domain.errors import TenureError
from tenure.domain.stops import keeps_unknown
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import tool_service_pb2 as tools
from tenure.wire.stops import in_force_of, selected

TOOLS_SECONDS: Final = 8.0
READERS_SECONDS: Final = 2.0
LIST_SECONDS: Final = 4.0
MAX_TASKS: Final = 1000
_POLL_SECONDS: Final = 0.05
TOOLS: Final = "tools"


async def begin_stop(peers: Peers, request: api.BeginStopRequest) -> api.BeginStopResponse:
    """Begins a stop in all services. The answer names each service that did not confirm it.

    Raises InvalidRequest, LimitReached (TOO_MANY_STOPS), and Unavailable when the ledger does not confirm it.
    """
    selected(request)
    stop = (await with_retries(lambda: peers.checkpoint.BeginStop(request))).stop
    covered = ledger.ListStoppedTasksRequest(stop=stop)
    before = await with_retries(lambda: peers.checkpoint.ListStoppedTasks(covered))
    unconfirmed = await take_to_services(peers)
    # A task that a worker has opened meanwhile may have begun a call before the tool service had the stop.
    after = await with_retries(lambda: peers.checkpoint.ListStoppedTasks(covered))
    tasks = list({task.task_id: task for task in (*before.tasks, *after.tasks)}.values())
    listed = await _calls_in_flight(peers, stop, tasks[:MAX_TASKS]) if TOOLS not in unconfirmed else None
    if listed is None:
        listed, unconfirmed = tools.ListCallsInFlightResponse(more=True), sorted({TOOLS, *unconfirmed})
    calls, more = list(listed.calls), listed.more or before.more or after.more or len(tasks) > MAX_TASKS
    if not stop.tool:
        reserved = {task.task_id: task for task in (*after.tasks, *before.tasks) if task.model_open}
        calls += map(_model_call, reserved.values())
    return api.BeginStopResponse(stop=stop, calls=calls, more=more, unconfirmed=unconfirmed)


async def end_stop(peers: Peers, request: api.EndStopRequest) -> api.EndStopResponse:
    """Ends a stop in all services. Raises InvalidRequest, NotFound (NO_SUCH_STOP), Unavailable."""
    selected(request)
    stop = (await with_retries(lambda: peers.checkpoint.EndStop(request))).stop
    return api.EndStopResponse(stop=stop, unconfirmed=await take_to_services(peers))


async def take_to_services(peers: Peers) -> list[str]:
    """Takes the stops in force to the tool service, and waits for the readers of the ledger. Returns who is late."""
    unconfirmed = []
    try:
        async with asyncio.timeout(TOOLS_SECONDS):
            await _take_to_tools(peers)
    except (TenureError, PeerFailed, TimeoutError):
        unconfirmed.append(TOOLS)
    until = asyncio.get_running_loop().time() + READERS_SECONDS
    late = (await _listed(peers)).late_readers
    while late and asyncio.get_running_loop().time() < until:  # other processes confirm: no event here
        await asyncio.sleep(_POLL_SECONDS)
        late = (await _listed(peers)).late_readers
    return [*unconfirmed, *late]


async def _take_to_tools(peers: Peers) -> None:
    """Gives the tool service the stops, after the ledger has taken those that it lost when it was restored."""
    listed = await _listed(peers)
    kept = await _set_stops(peers, listed)
    if keeps_unknown(in_force_of(kept), in_force_of(listed)):
        await _set_stops(peers, await _listed(peers, applied_epoch=kept.epoch, applied=kept.stops))


async def _set_stops(peers: Peers, listed: api.ListStopsResponse) -> tools.SetStopsResponse:
    taken = tools.SetStopsRequest(epoch=listed.epoch, stops=listed.stops)
    return await with_retries(lambda: peers.tools.SetStops(taken))


async def _listed(peers: Peers, **applied: Any) -> api.ListStopsResponse:
    return await with_retries(lambda: peers.checkpoint.ListStops(api.ListStopsRequest(**applied)))


async def _calls_in_flight(
    peers: Peers, stop: api.Stop, tasks: Sequence[ledger.ListStoppedTasksResponse.StoppedTask]
) -> tools.ListCallsInFlightResponse | None:
    """Returns the calls of the tasks; None if the tool service does not say: the stop is in force all the same."""
    if not tasks:
        return tools.ListCallsInFlightResponse()
    task_ids = [task.task_id for task in tasks]
    request = tools.ListCallsInFlightRequest(task_ids=task_ids, stop_time=stop.stop_time, tool=stop.tool)
    try:
        async with asyncio.timeout(LIST_SECONDS):
            return await with_retries(lambda: peers.tools.ListCallsInFlight(request))
    except (TenureError, PeerFailed, TimeoutError):
        return None


def _model_call(task: ledger.ListStoppedTasksResponse.StoppedTask) -> api.CallInFlight:
    certainty = api.CALL_CERTAINTY_MODEL_CALL
    return api.CallInFlight(task_id=task.task_id, tenant=task.tenant, certainty=certainty)
