"""ApprovalService, as far as the ledger serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.checkpoint.approvals import answering, groups
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.approvals import LinkToken
from tenure.domain.audit import AuditRecord
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.postgres import Pool
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1.approval_service_pb2_grpc import ApprovalServiceServicer


class ApprovalServicer(ApprovalServiceServicer):
    """See protos/tenure/v1/approval_service.proto for what each method promises."""

    def __init__(
        self,
        pool: Pool,
        announce: Callable[[Announcement], None],
        note_refusal: Callable[[AuditRecord], None],
        recorder: str,
    ) -> None:
        self._pool, self._announce = pool, announce
        self._note_refusal, self._recorder = note_refusal, recorder

    async def SetApproverGroup(self, request: pb.SetApproverGroupRequest, _context: Any) -> pb.SetApproverGroupResponse:
        return pb.SetApproverGroupResponse(group=await groups.set_group(self._pool, current_tenant(), request))

    async def ListApproverGroups(
        self, _request: pb.ListApproverGroupsRequest, _context: Any
    ) -> pb.ListApproverGroupsResponse:
        return pb.ListApproverGroupsResponse(groups=await groups.list_groups(self._pool, current_tenant()))

    async def DeleteApproverGroup(
        self, request: pb.DeleteApproverGroupRequest, _context: Any
    ) -> pb.DeleteApproverGroupResponse:
        deleted = await groups.delete_group(self._pool, current_tenant(), request.name)
        return pb.DeleteApproverGroupResponse(deleted=deleted)

    async def GetAnswerLink(self, request: pb.GetAnswerLinkRequest, _context: Any) -> pb.GetAnswerLinkResponse:
        view = await answering.read_link(self._pool, LinkToken(request.link_id, request.digest))
        return view.message()

    async def AnswerByLink(self, request: pb.AnswerByLinkRequest, _context: Any) -> pb.AnswerByLinkResponse:
        answered = await answering.answer_by_link(self._pool, request, self._note_refusal, self._recorder)
        self._announce(answered.announcement)
        return pb.AnswerByLinkResponse(task=answered.task)
