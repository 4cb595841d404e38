"""AgentService at the gateway: adds retries for replicas that restart, and the caller as actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.gateway.peers import with_retries
from services.gateway.tasks import caller
from services.gateway.tool_names import check_tool_names
from tenure.domain.errors import InvalidRequest
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1.agent_service_pb2_grpc import AgentServiceServicer

if TYPE_CHECKING:
    from services.gateway.peers import Peers


class AgentForwarder(AgentServiceServicer):
    """Forwards each method to the ledger. A repeat is safe: each finds what the first try did."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def RegisterAgent(self, request: pb.RegisterAgentRequest, _context: Any) -> pb.RegisterAgentResponse:
        """Registers an agent without code. Those with code come from their workers, through coordinators."""
        if request.definition.kind != pb.AGENT_KIND_MODEL:
            raise InvalidRequest(violations=[("definition.kind", "must be AGENT_KIND_MODEL: workers register code")])
        await check_tool_names(self._peers, task_pb2.TaskSpec(agent=request.definition.agent), "definition.")
        forwarded_request = pb.RegisterAgentRequest(
            name=request.name, definition=request.definition, make_current=request.make_current, actor=caller()
        )
        return await with_retries(lambda: self._peers.agents.RegisterAgent(forwarded_request))

    async def ListAgents(self, request: pb.ListAgentsRequest, _context: Any) -> pb.ListAgentsResponse:
        return await with_retries(lambda: self._peers.agents.ListAgents(request))

    async def GetAgent(self, request: pb.GetAgentRequest, _context: Any) -> pb.GetAgentResponse:
        return await with_retries(lambda: self._peers.agents.GetAgent(request))

    async def RampAgent(self, request: pb.RampAgentRequest, _context: Any) -> pb.RampAgentResponse:
        forwarded_request = pb.RampAgentRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.actor = caller()
        return await with_retries(lambda: self._peers.agents.RampAgent(forwarded_request))

    async def RetireAgentRevision(
        self, request: pb.RetireAgentRevisionRequest, _context: Any
    ) -> pb.RetireAgentRevisionResponse:
        forwarded_request = pb.RetireAgentRevisionRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.actor = caller()
        return await with_retries(lambda: self._peers.agents.RetireAgentRevision(forwarded_request))
