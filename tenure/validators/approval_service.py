"""Checks the requests of ApprovalService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.approvals import GROUP_NAME_RULE, MEMBER_RULE, is_group_name, is_link_id, is_member
from tenure.v1 import approval_service_pb2 as approvals
from tenure.validators.common import Check
from tenure.validators.rules import Violations

DIGEST_BYTES: Final = 32


def _set(request: approvals.SetApproverGroupRequest, v: Violations) -> None:
    _group(request, v)
    v.require(all(map(is_member, request.members)), "members", MEMBER_RULE)
    v.require(len(set(request.members)) == len(request.members), "members", "must be different")


def _group(request: Any, v: Violations) -> None:
    v.require(is_group_name(request.name), "name", GROUP_NAME_RULE)


def _link(request: Any, v: Violations) -> None:
    v.require(is_link_id(request.link_id), "link_id", "must be the 12 characters after tal_ of a token")
    v.require(len(request.digest) == DIGEST_BYTES, "digest", f"must have {DIGEST_BYTES} bytes")


def _answer(request: approvals.AnswerByLinkRequest, v: Violations) -> None:
    _link(request, v)
    is_one = (request.WhichOneof("answer") is not None) != bool(request.calls)
    v.require(is_one, "answer", "must be a decision, a reply, or decisions on calls")


CHECKS: Final[dict[type[Any], Check]] = {
    approvals.SetApproverGroupRequest: _set,
    approvals.DeleteApproverGroupRequest: _group,
    approvals.GetAnswerLinkRequest: _link,
    approvals.AnswerByLinkRequest: _answer,
}
