"""Reads what a link answers, and answers it. The lock of the task's row makes the first answer the only one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import uuid_utils

from services.checkpoint.approvals.groups import APPROVALS, members_for
from services.checkpoint.audit import append_records
from services.checkpoint.commit.external_entries import AppendResult, append_external_entry
from services.checkpoint.queries import QUERIES, fetch_one
from services.checkpoint.reads import read_task
from tenure.domain.approvals import LinkToken, StoredLink, decisions_by_link, refuse_answerer, shown_digest, verify_link
from tenure.domain.audit import MAX_NAME, MAX_REASON, MAX_TARGET, AuditRecord, Decision
from tenure.domain.errors import InvalidRequest, NotFound, TenureError, TryLater, WrongState
from tenure.domain.waits import Wait
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2, task_pb2
from tenure.wire.common import STATES, timestamp
from tenure.wire.task import wait_to_domain

METHOD = "ApprovalService/AnswerByLink"


class _LinkRow(NamedTuple):
    """The columns of `link`, in their order."""

    link_id: str
    digest: bytes
    tenant: str
    task_id: str
    wait_id: str
    addressee: str
    is_expired: bool
    expires_at: datetime

    def stored(self) -> StoredLink:
        return StoredLink(*self[:-1])


@dataclass(frozen=True, slots=True)
class LinkView:
    """A valid link with the task and the wait that it answers."""

    link: StoredLink
    expires_at: datetime
    task: task_pb2.Task
    wait: Wait

    def message(self) -> pb.GetAnswerLinkResponse:
        """Returns what the link answers, as the page shows it."""
        return pb.GetAnswerLinkResponse(
            tenant=self.link.tenant,
            task=self.task,
            addressee=self.link.addressee,
            expire_time=timestamp(self.expires_at),
            decisions=decisions_by_link(self.wait),
            shown_digest=shown_digest(self.link.task_id, self.wait),
        )


async def read_link(pool: Pool, token: LinkToken) -> LinkView:
    """Returns what a link answers.

    Raises NotFound (ANSWER_LINK_NOT_FOUND), WrongState (ANSWER_LINK_EXPIRED, WAIT_OVER), PermissionDenied
    (NOT_AN_APPROVER).
    """
    async with pool_connection(pool) as connection:
        return await _view(connection, *await _verified(connection, token))


async def answer_by_link(
    pool: Pool, request: pb.AnswerByLinkRequest, note_refusal: Callable[[AuditRecord], None], recorder: str
) -> AppendResult:
    """Answers the wait of a link. Raises as `read_link`; WrongState (WAIT_CHANGED), InvalidRequest.

    `note_refusal` gets the audit record of an answer that is refused. `recorder`: the identity of this process, ""
    without TLS.
    """
    holder = _Holder()
    try:
        return await _answer(pool, request, holder, recorder)
    except TenureError as error:
        if not isinstance(error, TryLater):  # it may come again, and is not decided
            note_refusal(_record(holder.link, request, Decision.DENIED, error.reason))
        raise


@dataclass(slots=True)
class _Holder:
    """The link whose token the caller has proven to hold, also if it has expired."""

    link: StoredLink | None = None


async def _answer(pool: Pool, request: pb.AnswerByLinkRequest, holder: _Holder, recorder: str) -> AppendResult:
    async with pool_connection(pool) as connection:
        link, expires_at = await _verified(connection, LinkToken(request.link_id, request.digest), holder)
        answer = checkpoint_service_pb2.WaitAnswer(
            wait_id=link.wait_id,
            comment=request.comment,
            addressee=link.addressee,
            client_address=request.client_address,
            shown_digest=request.shown_digest,
        )
        if request.WhichOneof("answer") == "reply":
            answer.reply = request.reply
        elif request.calls:
            answer.calls.extend(request.calls)
        else:
            answer.decision = request.decision
        if not await _is_repeat(connection, link, request.request_id):
            view = await _view(connection, link, expires_at)
            decisions = decisions_by_link(view.wait)
            wanted = {answer.decision, *(call.decision for call in answer.calls)} - {""}
            if not wanted.issubset(decisions):
                rule = f"must be one of the decisions of the link: {', '.join(decisions) or 'none'}"
                raise InvalidRequest(violations=[("decision", rule)])
    await append_records(pool, [replace(_record(link, request, Decision.ALLOWED), recorder=recorder)])
    appended = await append_external_entry(pool, link.tenant, _entry(link, answer, request.request_id))
    metrics.count("tenure_answer_links_total", outcome="answered")
    return appended


def _entry(
    link: StoredLink, answer: checkpoint_service_pb2.WaitAnswer, request_id: str
) -> checkpoint_service_pb2.AppendForeignRequest:
    return checkpoint_service_pb2.AppendForeignRequest(
        task_id=link.task_id, request_id=request_id, actor=link.actor, wait_answer=answer
    )


async def _verified(
    connection: Connection, token: LinkToken, holder: _Holder | None = None
) -> tuple[StoredLink, datetime]:
    row = await fetch_one(connection, APPROVALS.link, {"link_id": token.link_id})
    stored = None if row is None else _LinkRow(*row)
    try:
        link = verify_link(token, None if stored is None else stored.stored())
    except WrongState:  # it has expired: the token is right
        if holder is not None and stored is not None:
            holder.link = stored.stored()
        raise
    if holder is not None:
        holder.link = link
    assert stored is not None, "verify_link refuses an unknown link"
    return link, stored.expires_at


async def _view(connection: Connection, link: StoredLink, expires_at: datetime) -> LinkView:
    try:
        task = await read_task(connection, link.tenant, link.task_id)
    except NotFound:
        raise WrongState("the task was deleted", reason="WAIT_OVER", metadata={"state": "PRUNED"}) from None
    if not task.HasField("wait") or task.wait.wait_id != link.wait_id:
        state = STATES.to_domain(task.state).value
        message = f"{link.wait_id} has its answer, or the task no longer waits for it: the task is {state}"
        raise WrongState(message, reason="WAIT_OVER", metadata={"state": state})
    wait = wait_to_domain(task.wait)
    refusal = refuse_answerer(wait, await members_for(connection, link.tenant, wait.approvers), link.addressee)
    if refusal is not None:
        raise refusal
    return LinkView(link, expires_at, task, wait)


async def _is_repeat(connection: Connection, link: StoredLink, request_id: str) -> bool:
    parameters = {"task_id": link.task_id, "request_id": request_id}
    return await fetch_one(connection, QUERIES.find_foreign, parameters) is not None


def _record(
    link: StoredLink | None, request: pb.AnswerByLinkRequest, decision: Decision, reason: str = ""
) -> AuditRecord:
    """Returns the audit record of an answer. `link` None: no link has the token, so the record names no person."""
    target = f"shown_digest={request.shown_digest} link_id={request.link_id}"
    if link is not None:
        target = f"task_id={link.task_id} wait_id={link.wait_id} {target}"
    return AuditRecord(
        record_id=str(uuid_utils.uuid7()),
        tenant="" if link is None else link.tenant,
        subject="" if link is None else link.actor[:MAX_NAME],
        peer=request.client_address[:MAX_NAME],
        method=METHOD,
        target=target[:MAX_TARGET],
        decision=decision,
        reason=reason[:MAX_REASON],
    )
