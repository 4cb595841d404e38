"""AdminService: what operators look at, and what they do to tasks: through the ledger's doors, like everybody."""

from __future__ import annotations

from typing import Any

from services.gateway.peers import Peers, patiently
from services.gateway.tasks import caller, new_id
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import ledger_pb2, task_pb2
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

    async def RequeueTask(self, request: api.RequeueTaskRequest, _context: Any) -> api.RequeueTaskResponse:
        requeue = ledger_pb2.OperatorRequest.Requeue(extra_tokens=request.extra_tokens, extra_steps=request.extra_steps)
        asked = ledger_pb2.OperatorRequest(reason=request.reason, requeue=requeue)
        return api.RequeueTaskResponse(task=await self._intervene(request.task_id, request.request_id, asked))

    async def CloseOutTask(self, request: api.CloseOutTaskRequest, _context: Any) -> api.CloseOutTaskResponse:
        close_out = ledger_pb2.OperatorRequest.CloseOut(to_state=request.to_state, result=request.result)
        asked = ledger_pb2.OperatorRequest(reason=request.reason, close_out=close_out)
        return api.CloseOutTaskResponse(task=await self._intervene(request.task_id, request.request_id, asked))

    async def _intervene(self, task_id: str, request_id: str, asked: ledger_pb2.OperatorRequest) -> task_pb2.Task:
        """Recorded is acknowledged, as with a cancel: what is left to do is found in the ledger by those who do it."""
        fact = ledger.AppendForeignRequest(
            task_id=task_id, request_id=request_id or new_id(), actor=caller(), operator_request=asked
        )
        return (await patiently(lambda: self._peers.checkpoint.AppendForeign(fact))).task
