"""AdminService: what operators look at. Reads only."""

from __future__ import annotations

from typing import Any

from services.gateway.peers import Peers, patiently
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import tool_service_pb2 as tools
from tenure.v1.admin_service_pb2_grpc import AdminServiceServicer


class AdminServicer(AdminServiceServicer):
    """Asks the services that know."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def ListWorkers(self, _request: api.ListWorkersRequest, _context: Any) -> api.ListWorkersResponse:
        asked = coordinator.CoordinatorServiceListWorkersRequest()
        listed = await patiently(lambda: self._peers.coordinator.ListWorkers(asked))
        return api.ListWorkersResponse(workers=listed.workers)

    async def ListClaims(self, request: api.ListClaimsRequest, _context: Any) -> api.ListClaimsResponse:
        asked = coordinator.CoordinatorServiceListClaimsRequest(task_id=request.task_id)
        listed = await patiently(lambda: self._peers.coordinator.ListClaims(asked))
        return api.ListClaimsResponse(claims=listed.claims)

    async def ListRefusals(self, request: api.ListRefusalsRequest, _context: Any) -> api.ListRefusalsResponse:
        """The ledger is asked first: it knows whose task it is, the tools know only tasks that called them."""
        asked = ledger.ListRefusedWritesRequest(task_id=request.task_id)
        writes = await patiently(lambda: self._peers.checkpoint.ListRefusedWrites(asked))
        of_tools = tools.ListRefusedCallsRequest(task_id=request.task_id)
        calls = await patiently(lambda: self._peers.tools.ListRefusedCalls(of_tools))
        return api.ListRefusalsResponse(ledger=writes.refused_writes, tools=calls.refused_calls)

    async def ListBills(
        self, request: api.AdminServiceListBillsRequest, _context: Any
    ) -> api.AdminServiceListBillsResponse:
        page = ledger.ListBillsRequest(
            task_id=request.task_id,
            after_step=request.after_step,
            after_attempt_number=request.after_attempt_number,
            page_size=request.page_size,
        )
        listed = await patiently(lambda: self._peers.checkpoint.ListBills(page))
        return api.AdminServiceListBillsResponse(bills=listed.bills, more=listed.more)

    async def ListCalls(
        self, request: api.AdminServiceListCallsRequest, _context: Any
    ) -> api.AdminServiceListCallsResponse:
        """The ledger knows whose task it is; asked with the first page only."""
        if not request.after_call_id:
            asked = ledger.CheckpointServiceGetTaskRequest(task_id=request.task_id)
            await patiently(lambda: self._peers.checkpoint.GetTask(asked))
        page = tools.ListCallsRequest(
            task_id=request.task_id, after_call_id=request.after_call_id, page_size=request.page_size
        )
        listed = await patiently(lambda: self._peers.tools.ListCalls(page))
        fence = listed.fence if listed.HasField("fence") else None
        return api.AdminServiceListCallsResponse(calls=listed.calls, fence=fence, more=listed.more)
