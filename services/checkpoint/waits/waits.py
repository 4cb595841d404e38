"""Waits in drafts: an owner's transition begins a wait, one answer ends it, and the task's next transition closes it.

The task row has the wait while it lasts. An answer needs the row's lock, so a wait gets exactly one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait
from services.checkpoint.entries import KINDS
from tenure.domain.approvals import refuse_answerer, refuse_other_view, shown_digest
from tenure.domain.call_plans import approve
from tenure.domain.close_out import PendingEnding
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import TenureError
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import STOPPED
from tenure.domain.tools import NOT_RUN, Outcome, PlannedCalls
from tenure.domain.waits import (
    APPROVE,
    NO_ANSWER,
    WITHOUT_CALL,
    Wait,
    WaitAnswer,
    WaitAnswerKind,
    WaitKind,
    decided_calls,
    ends_at_cap,
    grant_of,
    leaves_call_open,
    outcome_of_answer,
    refuse_answer,
    refuse_grant,
    refuse_other_wait,
)
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.call_plans import plan_to_domain, plan_to_wire
from tenure.wire.common import WAIT_ANSWERS, WAIT_KINDS
from tenure.wire.task import call_decision_to_domain
from tenure.wire.tool import outcome_to_wire

_OF_PEOPLE: Final = frozenset({WaitAnswerKind.DECISION, WaitAnswerKind.REPLY})


class RecordedAnswer(NamedTuple):
    """An answer with its actor and its request id. `outcome`: the outcome of the call, unless it follows from the
    answer. `plan_call`: the call beside whose approval the answer's plan is recorded.
    """

    content: WaitAnswer
    actor: str
    request_id: str
    outcome: Outcome | None = None
    plan_call: str = ""


class Approved(NamedTuple):
    """What an answer approves: calls of the wait, and later calls by a plan. `approvers`: who could answer the wait."""

    calls: list[ToolIntent]
    plan: PlannedCalls | None
    approvers: tuple[str, ...]


def answered_by(answer: pb.WaitAnswer) -> WaitAnswer:
    """Returns the answer of a request as a domain value."""
    kind = WaitAnswerKind.REPLY if answer.WhichOneof("answer") == "reply" else WaitAnswerKind.DECISION
    return WaitAnswer(
        kind,
        answer.reply or answer.decision,
        answer.comment,
        answer.edited_arguments_json,
        answer.extra_budget_tokens,
        answer.call_digest,
        answer.extra_budget_nano_usd,
        answer.addressee,
        answer.client_address,
        answer.shown_digest,
        tuple(map(call_decision_to_domain, answer.calls)),
        plan_to_domain(answer.plan) if answer.HasField("plan") else None,
    )


def approvers_of(draft: Draft) -> tuple[str, ...]:
    """Returns who may answer the task's wait; none: everyone, or there is no wait."""
    wait = current_wait(draft.row)
    return () if wait is None else wait.approvers


def answer_wait(
    draft: Draft,
    answer_message: pb.WaitAnswer,
    actor: str,
    request_id: str,
    members: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Approved:
    """Applies a person's answer. Returns what it approved. `members`: of the groups that may answer.

    A refusal of budget leaves a pending ending, which the caller carries out. Raises WrongState when the answer is for
    another wait (WAIT_OVER), another call (OTHER_CALL) or another view of the wait (WAIT_CHANGED), PermissionDenied
    (NOT_AN_APPROVER), BudgetExhausted for a grant that is too small, and InvalidRequest. For a plan also WrongState
    (NO_SAME_VALUE).
    """
    wait = current_wait(draft.row)
    message = answered_by(answer_message)
    other = refuse_other_wait(wait, answer_message.wait_id, message, draft.row.state.value)
    if other is not None:
        raise other
    assert wait is not None, "refuse_other_wait refuses an answer without a wait"
    refusal: TenureError | None = refuse_answerer(wait, members, message.addressee or actor)
    refusal = refusal or refuse_other_view(wait, draft.row.task_id, message.shown_digest)
    if refusal is not None:
        raise refusal
    decided = decided_calls(wait, message)
    refusals = (
        refuse_other_wait(own, wait.wait_id, one, draft.row.state.value) or refuse_answer(own, one)
        for own, one in decided
    )
    refusal = next(filter(None, refusals), None)
    message = grant_of(wait, message)
    refusal = refusal or refuse_grant(wait, message, draft.budget.budget, draft.row.own_budget)
    if refusal is not None:
        raise refusal
    calls = [
        ToolIntent(own.call_id, "", own.tool, one.edited_arguments_json or own.arguments_json)
        for own, one in decided
        if leaves_call_open(own.kind, one.kind, one.text)
    ]
    if message.plan is not None:
        plan_id, by = f"{draft.row.task_id}/{wait.wait_id}", message.addressee or actor
        allowed = _planned_like(wait, message, calls)
        plan = approve(message.plan, allowed, plan_id, by, draft.row.locked_at.timestamp())
        message = replace(message, plan=plan)
    plan_call = calls[0].call_id if calls else wait.call_id
    end_wait_with_answer(draft, wait, RecordedAnswer(message, actor, request_id, plan_call=plan_call))
    return Approved(calls, message.plan, wait.approvers)


def _planned_like(wait: Wait, answer: WaitAnswer, calls: Sequence[ToolIntent]) -> list[tuple[str, str]]:
    """Returns tool and arguments of the calls that the plan of an answer continues: the calls that the answer allows.

    For an agent that asked for an approval itself it is the plan's tool, without arguments.
    """
    if wait.kind is WaitKind.APPROVAL and answer.text == APPROVE and answer.plan is not None and answer.plan.tool:
        return [(answer.plan.tool, "{}")]
    return [(call.tool, call.arguments_json) for call in calls]


def deliver(draft: Draft, payload: str, actor: str, request_id: str) -> None:
    """Answers the wait with a signal's payload."""
    wait = current_wait(draft.row)
    assert wait is not None, "the caller checked it under the lock"
    assert wait.kind is WaitKind.EVENT, "only event waits have a correlation id"
    end_wait_with_answer(draft, wait, RecordedAnswer(WaitAnswer(WaitAnswerKind.PAYLOAD, payload), actor, request_id))


def end_wait_with_answer(draft: Draft, wait: Wait, answer: RecordedAnswer) -> None:
    """Records the answer and the call's outcome, and queues the task, or requests its ending at a cap."""
    message = "no answer came in time" if answer.content is NO_ANSWER else f"answered by {answer.actor}"
    if wait.kind is WaitKind.SUB_AGENTS:
        message = "not all sub-agents ended in time" if answer.content is NO_ANSWER else "all sub-agents have ended"
    reason = Reason.WAIT_EXPIRED if answer.content is NO_ANSWER else Reason.WAIT_RESOLVED
    record(draft, wait, answer)
    if ends_at_cap(wait, answer.content):
        request = wait.budget_request
        limit = Reason.TOKEN_LIMIT if request is None else request.limit
        why = message if answer.content is NO_ANSWER else f"{answer.actor} granted no budget: {answer.content.comment}"
        draft.request_ending(PendingEnding(TaskState.COST_EXCEEDED, limit, why.removesuffix(": "), answer.actor))
        return
    draft.move(TaskState.QUEUED, reason, message, actor=answer.actor)


def record(draft: Draft, wait: Wait, answer: RecordedAnswer) -> None:
    """Appends the answer, and the outcomes of the calls that it decides on, unless it approved them."""
    shown = shown_digest(draft.row.task_id, wait) if answer.content.kind in _OF_PEOPLE else ""
    for own, message in decided_calls(wait, answer.content):
        _record_one(draft, own, answer._replace(content=message), shown)


def _record_one(draft: Draft, wait: Wait, answer: RecordedAnswer, shown: str) -> None:
    message = answer.content
    resolution = ledger_pb2.WaitResolution(
        wait_id=wait.wait_id,
        call_id=wait.call_id,
        wait_kind=WAIT_KINDS.to_wire(wait.kind),
        answer_kind=WAIT_ANSWERS.to_wire(message.kind),
        answer=message.text,
        comment=message.comment,
        edited_arguments_json=message.edited_arguments_json,
        extra_budget_tokens=message.extra_budget_tokens,
        request_id=answer.request_id,
        extra_budget_nano_usd=message.extra_budget_nano_usd,
        addressee=message.addressee,
        client_address=message.client_address,
        shown_digest=shown,
    )
    if message.plan is not None and wait.call_id == answer.plan_call:
        resolution.plan.CopyFrom(plan_to_wire(message.plan))
    _append(draft, ledger_pb2.EntryBody(wait_resolution=resolution), answer.actor)
    if message.extra_budget_tokens or message.extra_budget_nano_usd:
        draft.budget.raise_caps(message.extra_budget_tokens, message.extra_budget_nano_usd)
        draft.row.raise_own_caps(message.extra_budget_tokens, message.extra_budget_nano_usd)
    if wait.kind in WITHOUT_CALL:
        return
    at = draft.row.locked_at.astimezone(UTC).isoformat(timespec="seconds")
    outcome = answer.outcome or outcome_of_answer(wait, message, actor=answer.actor, at=at)
    if outcome is not None:
        close_call(draft, wait.call_id, outcome, answer.actor)


def abandon(draft: Draft) -> None:
    """Closes the waiting calls of a task that must end. They were never executed, so this needs no claim."""
    wait = current_wait(draft.row)
    for call in () if wait is None else wait.all_calls:
        if wait is not None and call.call_id in draft.row.open_calls:
            close_call(draft, call.call_id, STOPPED if wait.kind is WaitKind.SUB_AGENTS else NOT_RUN, LEDGER)


def close_call(draft: Draft, call_id: str, outcome: Outcome, actor: str) -> None:
    """Appends a call's outcome that is known without a claim, and removes the call from the open calls."""
    outcome_entry = ledger_pb2.ToolOutcome(call_id=call_id, outcome=outcome_to_wire(outcome))
    _append(draft, ledger_pb2.EntryBody(tool_outcome=outcome_entry), actor)
    draft.row.open_calls = tuple(call for call in draft.row.open_calls if call != call_id)


def _append(draft: Draft, body: ledger_pb2.EntryBody, actor: str) -> None:
    kind = KINDS[body.WhichOneof("body") or ""]
    draft.append(kind, body.SerializeToString(), step=draft.row.step, actor=actor, by_claim=False)
