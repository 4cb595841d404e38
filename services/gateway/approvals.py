"""Forwards the methods of approver groups to the ledger. Links are opened on the HTTP port, by people without a key."""

from __future__ import annotations

from typing import Any

from services.gateway.peers import Peers, with_retries
from services.gateway.tasks import caller
from tenure.domain.errors import NotFound
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1.approval_service_pb2_grpc import ApprovalServiceServicer


class ApprovalForwarder(ApprovalServiceServicer):
    """Adds retries for replicas that restart, and the caller as actor."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def SetApproverGroup(self, request: pb.SetApproverGroupRequest, _context: Any) -> pb.SetApproverGroupResponse:
        forwarded_request = pb.SetApproverGroupRequest(name=request.name, members=request.members, actor=caller())
        return await with_retries(lambda: self._peers.approvals.SetApproverGroup(forwarded_request))

    async def ListApproverGroups(
        self, request: pb.ListApproverGroupsRequest, _context: Any
    ) -> pb.ListApproverGroupsResponse:
        return await with_retries(lambda: self._peers.approvals.ListApproverGroups(request))

    async def DeleteApproverGroup(
        self, request: pb.DeleteApproverGroupRequest, _context: Any
    ) -> pb.DeleteApproverGroupResponse:
        """Deletes a group. A repeat may answer that the first try deleted it."""
        return await with_retries(lambda: self._peers.approvals.DeleteApproverGroup(request))

    async def GetAnswerLink(self, _request: pb.GetAnswerLinkRequest, _context: Any) -> pb.GetAnswerLinkResponse:
        """Is for gateways, which ask the ledger."""
        raise NotFound("links are opened on the HTTP port", reason="NOT_FOR_CLIENTS")

    async def AnswerByLink(self, _request: pb.AnswerByLinkRequest, _context: Any) -> pb.AnswerByLinkResponse:
        """Is for gateways, which ask the ledger."""
        raise NotFound("links are answered on the HTTP port", reason="NOT_FOR_CLIENTS")
