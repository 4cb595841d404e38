"""Waits and their answers. Times of a wait are the ledger's alone: the rules do not know them."""

from __future__ import annotations

from tenure.domain.entries import WaitResolution
from tenure.domain.waits import Wait
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.enums import WAIT_ANSWERS, WAIT_DEADLINES, WAIT_KINDS


def wait_to_domain(wait: task_pb2.Wait) -> Wait:
    """ValueError for a kind that this version does not know."""
    return Wait(
        kind=WAIT_KINDS.to_domain(wait.kind),
        call_id=wait.call_id,
        question=wait.question,
        options=tuple(wait.options),
        context=wait.context,
        reference=wait.reference,
        correlation_id=wait.correlation_id,
        at_deadline=WAIT_DEADLINES.to_domain(wait.at_deadline),
        tool=wait.tool,
        arguments_json=wait.arguments_json,
        wait_id=wait.wait_id,
        sub_agents=tuple(wait.sub_agent_task_ids),
    )


def wait_to_wire(wait: Wait) -> task_pb2.Wait:
    return task_pb2.Wait(
        wait_id=wait.wait_id,
        kind=WAIT_KINDS.to_wire(wait.kind),
        call_id=wait.call_id,
        question=wait.question,
        options=wait.options,
        context=wait.context,
        reference=wait.reference,
        correlation_id=wait.correlation_id,
        at_deadline=WAIT_DEADLINES.to_wire(wait.at_deadline),
        tool=wait.tool,
        arguments_json=wait.arguments_json,
        sub_agent_task_ids=wait.sub_agents,
        call_digest=wait.call_digest,
    )


def resolution_to_domain(message: ledger_pb2.WaitResolution) -> WaitResolution:
    return WaitResolution(
        wait_id=message.wait_id,
        call_id=message.call_id,
        wait_kind=WAIT_KINDS.to_domain(message.wait_kind),
        answer_kind=WAIT_ANSWERS.to_domain(message.answer_kind),
        answer=message.answer,
        comment=message.comment,
        edited_arguments_json=message.edited_arguments_json,
        extra_budget_tokens=message.extra_budget_tokens,
        request_id=message.request_id,
    )


def resolution_to_wire(fact: WaitResolution) -> ledger_pb2.WaitResolution:
    return ledger_pb2.WaitResolution(
        wait_id=fact.wait_id,
        call_id=fact.call_id,
        wait_kind=WAIT_KINDS.to_wire(fact.wait_kind),
        answer_kind=WAIT_ANSWERS.to_wire(fact.answer_kind),
        answer=fact.answer,
        comment=fact.comment,
        edited_arguments_json=fact.edited_arguments_json,
        extra_budget_tokens=fact.extra_budget_tokens,
        request_id=fact.request_id,
    )
