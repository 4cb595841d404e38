"""The tool service as the coordinator uses it: to close a task's fence before its end or for ever, to look at calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenure.domain.in_doubt import AttemptStatus
from tenure.v1 import tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.common import CALL_STATES
from tenure.wire.tool import call_statuses_to_domain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.domain.tools import CallStatuses
    from tenure.runtime.rpc_client import TenureChannel
    from tenure.v1 import token_pb2

_TIMEOUT_SECONDS: Final = 10.0


class ToolsClient:
    """Raises what the tool service answers, and Unavailable when it does not."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = ToolServiceStub(channel)

    async def close(self, token: token_pb2.FencingToken) -> CallStatuses:
        """End every call of the task, this epoch's included, and say how each one stands. Repeatable."""
        request = tool_service_pb2.FenceRequest(token=token, close=True)
        return call_statuses_to_domain((await self._stub.Fence(request, timeout=_TIMEOUT_SECONDS)).calls)

    async def look(self, task_id: str, call_ids: Sequence[str]) -> dict[str, AttemptStatus]:
        """How these calls of a task stand, as far as they are known; at most 64."""
        request = tool_service_pb2.ListCallsRequest(task_id=task_id, call_ids=call_ids)
        listed = (await self._stub.ListCalls(request, timeout=_TIMEOUT_SECONDS)).calls
        return {
            one.record.call_id: AttemptStatus(CALL_STATES.to_domain(one.record.state), one.record.call_attempt)
            for one in listed
        }

    async def forget(self, token: token_pb2.FencingToken) -> None:
        """All that the tools have of a pruned task goes, but its closed fence. Repeatable."""
        await self._stub.Forget(tool_service_pb2.ForgetRequest(token=token), timeout=_TIMEOUT_SECONDS)
