"""The ledger's facts. One table says which message is which class; each pair of functions below is one kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tenure.domain import entries as facts
from tenure.domain.budget import BudgetWarning, TokenUsage
from tenure.domain.quotas import QuotaWarning
from tenure.domain.spawned import SubAgentsSpawned
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire import control, sub_agents
from tenure.wire.compaction import compaction_to_domain, compaction_to_wire
from tenure.wire.content import content_of, readable_content_of
from tenure.wire.enums import STATES
from tenure.wire.in_doubt import calls_in_doubt_to_domain, calls_in_doubt_to_wire
from tenure.wire.operators import operator_request_to_domain, operator_request_to_wire
from tenure.wire.quotas import quota_warning_to_domain, quota_warning_to_wire
from tenure.wire.task import (
    budget_to_domain,
    budget_to_wire,
    prices_to_domain,
    prices_to_wire,
    usage_to_domain,
    usage_to_wire,
)
from tenure.wire.times import duration, seconds
from tenure.wire.tools import outcome_to_domain, outcome_to_wire, tool_to_domain, tool_to_wire
from tenure.wire.waits import resolution_to_domain, resolution_to_wire, wait_to_domain, wait_to_wire


def entry_to_domain(entry: ledger_pb2.Entry) -> facts.Entry:
    """An appended fact. ValueError for a kind this version does not know: folding past it would be a lie."""
    return facts.Entry(
        sequence=entry.sequence,
        step=entry.step,
        body=body_to_domain(entry.body),
        epoch=entry.epoch,
        claim_id=entry.claim_id,
        attempt=entry.attempt,
        actor=entry.actor,
    )


def entry_for_ending(entry: ledger_pb2.Entry) -> facts.Entry | None:
    """An entry as `tenure.domain.endings.unfinished` takes it; None: it needs none of this kind.

    An answer whose content is malformed is one without words. ValueError for a newer version's word on a call.
    """
    match entry.body.WhichOneof("body"):
        case "tools_defined" | "model_attempt" | "tool_intent" | "tool_outcome":
            return entry_to_domain(entry)
        case "operator_request" if entry.body.operator_request.HasField("resolve_call"):
            return entry_to_domain(entry)
        case "assistant_message":
            answer = entry.body.assistant_message
            body = facts.AssistantMessage(
                answer.attempt_number, readable_content_of(answer), answer.stop_reason, TokenUsage()
            )
            return facts.Entry(entry.sequence, entry.step, body)
        case _:
            return None


def entries_to_domain(entries: Iterable[ledger_pb2.Entry]) -> list[facts.Entry]:
    return [entry_to_domain(entry) for entry in entries]


def new_entry(step: int, body: facts.Body) -> ledger_pb2.NewEntry:
    """A fact to be appended."""
    return ledger_pb2.NewEntry(step=step, body=body_to_wire(body))


def body_to_domain(body: ledger_pb2.EntryBody) -> facts.Body:
    kind = body.WhichOneof("body")
    if kind is None:
        raise ValueError("an entry of a kind that this version does not know")
    return _TO_DOMAIN[kind](getattr(body, kind))


def body_to_wire(body: facts.Body) -> ledger_pb2.EntryBody:
    return _TO_WIRE[type(body)](body)


def _transition_to_domain(message: ledger_pb2.StateTransition) -> facts.Transition:
    return facts.Transition(
        to_state=STATES.to_domain(message.to_state),
        reason=message.reason,
        message=message.message,
        result=message.result,
        from_state=STATES.to_domain(message.from_state) if message.from_state else None,
        wait=wait_to_domain(message.wait) if message.HasField("wait") else None,
        result_json=message.result_json,
        error_class=message.error_class,
        calls_in_doubt=calls_in_doubt_to_domain(message.calls_in_doubt),
    )


def _transition_to_wire(fact: facts.Transition) -> ledger_pb2.EntryBody:
    message = ledger_pb2.StateTransition(
        to_state=STATES.to_wire(fact.to_state),
        reason=fact.reason,
        message=fact.message,
        result=fact.result,
        result_json=fact.result_json,
        error_class=fact.error_class,
        calls_in_doubt=calls_in_doubt_to_wire(fact.calls_in_doubt),
    )
    if fact.from_state is not None:
        message.from_state = STATES.to_wire(fact.from_state)
    if fact.wait is not None:
        message.wait.CopyFrom(wait_to_wire(fact.wait))
    return ledger_pb2.EntryBody(transition=message)


def _failure_to_domain(message: ledger_pb2.ModelFailure) -> facts.ModelFailure:
    return facts.ModelFailure(
        attempt_number=message.attempt_number,
        error_class=message.error_class,
        message=message.message,
        retryable=message.retryable,
        status_code=message.status_code,
        retry_after_seconds=seconds(message.retry_after) if message.HasField("retry_after") else None,
        usage=usage_to_domain(message.usage),
        provider_request_id=message.provider_request_id,
    )


def _failure_to_wire(fact: facts.ModelFailure) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        model_failure=ledger_pb2.ModelFailure(
            attempt_number=fact.attempt_number,
            error_class=fact.error_class,
            message=fact.message,
            retryable=fact.retryable,
            status_code=fact.status_code,
            retry_after=None if fact.retry_after_seconds is None else duration(fact.retry_after_seconds),
            usage=usage_to_wire(fact.usage),
            provider_request_id=fact.provider_request_id,
        )
    )


def _attempt_to_domain(message: ledger_pb2.ModelAttempt) -> facts.ModelAttempt:
    return facts.ModelAttempt(
        message.attempt_number,
        message.model,
        message.input_tokens,
        message.max_output_tokens,
        message.reserved_tokens,
        message.summary_through_step,
        message.reserved_nano_usd,
        prices_to_domain(message.prices),
    )


def _attempt_to_wire(fact: facts.ModelAttempt) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        model_attempt=ledger_pb2.ModelAttempt(
            attempt_number=fact.attempt_number,
            model=fact.model,
            input_tokens=fact.input_tokens,
            max_output_tokens=fact.max_output_tokens,
            reserved_tokens=fact.reserved_tokens,
            summary_through_step=fact.summary_through_step,
            reserved_nano_usd=fact.reserved_nano_usd,
            prices=prices_to_wire(fact.prices),
        )
    )


def _answer_to_domain(message: ledger_pb2.AssistantMessage) -> facts.AssistantMessage:
    return facts.AssistantMessage(
        attempt_number=message.attempt_number,
        content=content_of(message),
        stop_reason=message.stop_reason,
        usage=usage_to_domain(message.usage),
        model=message.model,
        provider_request_id=message.provider_request_id,
        latency_seconds=seconds(message.latency),
    )


def _answer_to_wire(fact: facts.AssistantMessage) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        assistant_message=ledger_pb2.AssistantMessage(
            attempt_number=fact.attempt_number,
            content_json=json.dumps(fact.content, ensure_ascii=False, separators=(",", ":")),
            stop_reason=fact.stop_reason,
            usage=usage_to_wire(fact.usage),
            model=fact.model,
            provider_request_id=fact.provider_request_id,
            latency=duration(fact.latency_seconds),
        )
    )


_TO_DOMAIN: dict[str, Callable[[Any], facts.Body]] = {
    "submitted": sub_agents.submitted_to_domain,
    "transition": _transition_to_domain,
    "tools_defined": lambda m: facts.ToolsDefined(
        tuple(tool_to_domain(tool) for tool in m.tools), tuple(m.unknown_names)
    ),
    "model_attempt": _attempt_to_domain,
    "model_failure": _failure_to_domain,
    "attempt_lost": lambda m: facts.AttemptLost(m.attempt_number, usage_to_domain(m.usage)),
    "assistant_message": _answer_to_domain,
    "tool_intent": lambda m: facts.ToolIntent(m.call_id, m.tool_use_id, m.tool, m.arguments_json),
    "tool_outcome": lambda m: facts.ToolOutcome(m.call_id, outcome_to_domain(m.outcome)),
    "user_message": lambda m: facts.UserMessage(m.text, m.request_id),
    "cancel_request": lambda m: facts.CancelRequest(m.reason),
    "forked": lambda m: facts.Forked(m.forked_from.task_id, m.forked_from.sequence, m.copied_entries),
    "operator_request": operator_request_to_domain,
    "wait_resolution": resolution_to_domain,
    "control_step": control.step_to_domain,
    "control_failure": control.failure_to_domain,
    "result_rejected": lambda m: facts.ResultRejected(m.text, tuple(m.violations)),
    "compaction": compaction_to_domain,
    "quota_warning": quota_warning_to_domain,
    "budget_warning": lambda m: BudgetWarning(m.limit, budget_to_domain(m.budget)),
    "sub_agents_spawned": sub_agents.spawned_to_domain,
}

_TO_WIRE: dict[type, Callable[[Any], ledger_pb2.EntryBody]] = {
    facts.Submitted: lambda f: ledger_pb2.EntryBody(submitted=sub_agents.submitted_to_wire(f)),
    facts.Transition: _transition_to_wire,
    facts.ToolsDefined: lambda f: ledger_pb2.EntryBody(
        tools_defined=ledger_pb2.ToolsDefined(
            tools=[tool_to_wire(tool) for tool in f.tools], unknown_names=f.unknown_names
        )
    ),
    facts.ModelAttempt: _attempt_to_wire,
    facts.ModelFailure: _failure_to_wire,
    facts.AttemptLost: lambda f: ledger_pb2.EntryBody(
        attempt_lost=ledger_pb2.AttemptLost(attempt_number=f.attempt_number, usage=usage_to_wire(f.usage))
    ),
    facts.AssistantMessage: _answer_to_wire,
    facts.ToolIntent: lambda f: ledger_pb2.EntryBody(
        tool_intent=ledger_pb2.ToolIntent(
            call_id=f.call_id, tool_use_id=f.tool_use_id, tool=f.tool, arguments_json=f.arguments_json
        )
    ),
    facts.ToolOutcome: lambda f: ledger_pb2.EntryBody(
        tool_outcome=ledger_pb2.ToolOutcome(call_id=f.call_id, outcome=outcome_to_wire(f.outcome))
    ),
    facts.UserMessage: lambda f: ledger_pb2.EntryBody(
        user_message=ledger_pb2.UserMessage(text=f.text, request_id=f.request_id)
    ),
    facts.CancelRequest: lambda f: ledger_pb2.EntryBody(cancel_request=ledger_pb2.CancelRequest(reason=f.reason)),
    facts.Forked: lambda f: ledger_pb2.EntryBody(
        forked=ledger_pb2.Forked(
            forked_from=task_pb2.ForkedFrom(task_id=f.task_id, sequence=f.sequence), copied_entries=f.copied_entries
        )
    ),
    facts.OperatorRequest: lambda f: ledger_pb2.EntryBody(operator_request=operator_request_to_wire(f)),
    facts.WaitResolution: lambda f: ledger_pb2.EntryBody(wait_resolution=resolution_to_wire(f)),
    facts.ControlStep: lambda f: ledger_pb2.EntryBody(control_step=control.step_to_wire(f)),
    facts.ControlFailure: lambda f: ledger_pb2.EntryBody(control_failure=control.failure_to_wire(f)),
    facts.ResultRejected: lambda f: ledger_pb2.EntryBody(
        result_rejected=ledger_pb2.ResultRejected(text=f.text, violations=f.violations)
    ),
    BudgetWarning: lambda f: ledger_pb2.EntryBody(
        budget_warning=ledger_pb2.BudgetWarning(limit=f.limit, budget=budget_to_wire(f.budget))
    ),
    facts.Compaction: lambda f: ledger_pb2.EntryBody(compaction=compaction_to_wire(f)),
    QuotaWarning: lambda f: ledger_pb2.EntryBody(quota_warning=quota_warning_to_wire(f)),
    SubAgentsSpawned: lambda f: ledger_pb2.EntryBody(sub_agents_spawned=sub_agents.spawned_to_wire(f)),
}


def settled_usage(body: ledger_pb2.EntryBody) -> tuple[int, TokenUsage] | None:
    """(attempt number, usage) when the fact settles a model attempt, else None."""
    match body.WhichOneof("body"):
        case "assistant_message":
            return body.assistant_message.attempt_number, usage_to_domain(body.assistant_message.usage)
        case "model_failure":
            return body.model_failure.attempt_number, usage_to_domain(body.model_failure.usage)
        case _:
            return None
