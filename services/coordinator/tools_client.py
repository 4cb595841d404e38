"""The coordinator's client of the tool service: closes fences, reads call states, forgets pruned tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tenure.domain.in_doubt import AttemptStatus, ResolvedCall
from tenure.domain.stops import StopsInForce
from tenure.domain.tools import CallStatuses
from tenure.runtime.rpc.client import TenureChannel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.common import CALL_STATES
from tenure.wire.stops import in_force_of, stop_to_wire
from tenure.wire.tool import call_statuses_to_domain, resolved_call_to_wire

_TIMEOUT_SECONDS: Final = 10.0
_PAGE: Final = 1000


class ToolsClient:
    """Raises the tool service's domain errors, and Unavailable when it does not answer."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = ToolServiceStub(channel)

    async def close(self, token: token_pb2.FencingToken, resolved: Iterable[ResolvedCall] = ()) -> CallStatuses:
        """Ends every call of the task, this epoch's included, and returns each call's state. A repeat is safe.

        `resolved`: the resolutions that no owner has sent yet.
        """
        calls = map(resolved_call_to_wire, resolved)
        request = tool_service_pb2.FenceRequest(token=token, close=True, resolved_calls=calls)
        return call_statuses_to_domain((await self._stub.Fence(request, timeout=_TIMEOUT_SECONDS)).calls)

    async def look(self, task_id: str, call_ids: Sequence[str]) -> dict[str, AttemptStatus]:
        """Returns the state of each known call among these calls of a task; at most 64."""
        request = admin_pb.ListCallsRequest(task_id=task_id, call_ids=call_ids)
        listed = (await self._stub.ListCalls(request, timeout=_TIMEOUT_SECONDS)).calls
        return {
            one.record.call_id: AttemptStatus(CALL_STATES.to_domain(one.record.state), one.record.call_attempt)
            for one in listed
        }

    async def calls(self, task_id: str) -> tuple[tool_pb2.ToolFence, list[tool_pb2.CallTrail]]:
        """Returns the fence of a task of the request's tenant, and all its call records, which it reads later."""
        first = admin_pb.ListCallsRequest(task_id=task_id, page_size=1)
        fence = (await self._stub.ListCalls(first, timeout=_TIMEOUT_SECONDS)).fence
        trails: list[tool_pb2.CallTrail] = []
        request, more = admin_pb.ListCallsRequest(task_id=task_id, page_size=_PAGE), True
        while more:
            page = await self._stub.ListCalls(request, timeout=_TIMEOUT_SECONDS)
            trails += page.calls
            request.after_call_id = trails[-1].record.call_id if trails else ""
            more = page.more
        return fence, trails

    async def set_stops(self, stops: StopsInForce) -> StopsInForce:
        """Gives it the ledger's stops, and returns those that it keeps to."""
        request = tool_service_pb2.SetStopsRequest(epoch=stops.epoch, stops=map(stop_to_wire, stops.stops))
        return in_force_of(await self._stub.SetStops(request, timeout=_TIMEOUT_SECONDS))

    async def forget(self, token: token_pb2.FencingToken) -> None:
        """Deletes the tool service's data of a pruned task except its closed fence. A repeat is safe."""
        await self._stub.Forget(tool_service_pb2.ForgetRequest(token=token), timeout=_TIMEOUT_SECONDS)
