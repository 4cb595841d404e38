"""Converts the entries of the ledger, and reads the answer to Open.

Each entry kind has a pair of functions. The tables `_TO_DOMAIN` and `_TO_WIRE` map the kinds to these functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tenure.domain import entries as domain
from tenure.domain.budget import BudgetWarning, TokenUsage
from tenure.domain.entries import (
    Compaction,
    Entry,
    GrantBudget,
    OperatorCloseOut,
    OperatorRequest,
    Requeue,
)
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import ResolveCall
from tenure.domain.quotas import QuotaWarning
from tenure.domain.waits import BeginWait, WaitDeadlinePolicy
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES, WAIT_DEADLINES, duration, seconds, timestamp, unix_seconds
from tenure.wire.control_steps import failure_to_domain, failure_to_wire, step_to_domain, step_to_wire
from tenure.wire.task import (
    allowlist_to_wire,
    budget_to_domain,
    budget_to_wire,
    escalation_step_to_domain,
    escalation_step_to_wire,
    prices_to_domain,
    prices_to_wire,
    resolution_to_domain,
    resolution_to_wire,
    spec_to_domain,
    spec_to_wire,
    usage_to_domain,
    usage_to_wire,
    wait_to_domain,
    wait_to_wire,
)
from tenure.wire.tenant_service import quota_warning_to_domain, quota_warning_to_wire
from tenure.wire.tool import (
    calls_in_doubt_to_domain,
    calls_in_doubt_to_wire,
    outcome_to_domain,
    outcome_to_wire,
    output_to_domain,
    output_to_wire,
    resolve_call_to_domain,
    resolve_call_to_wire,
    tool_to_domain,
    tool_to_wire,
)

# Compactions.


def compaction_to_domain(message: ledger_pb2.Compaction) -> Compaction:
    """Converts a compaction. Raises ValueError for a kind that this version does not know."""
    match message.WhichOneof("how"):
        case "cleared_results":
            cleared = message.cleared_results
            return Compaction(
                domain.ClearedResults(
                    cleared.through_step, cleared.results, cleared.input_tokens_before, cleared.input_tokens_after
                )
            )
        case "summary":
            return Compaction(domain.Summary(message.summary.through_step, message.summary.text))
        case _:
            raise ValueError("a compaction of a kind that this version does not know")


def compaction_to_wire(body: Compaction) -> ledger_pb2.Compaction:
    how = body.how
    if isinstance(how, domain.Summary):
        return ledger_pb2.Compaction(
            summary=ledger_pb2.Compaction.Summary(through_step=how.through_step, text=how.text)
        )
    return ledger_pb2.Compaction(
        cleared_results=ledger_pb2.Compaction.ClearedResults(
            through_step=how.through_step,
            results=how.results,
            input_tokens_before=how.input_tokens_before,
            input_tokens_after=how.input_tokens_after,
        )
    )


# Requests of operators.


def operator_request_to_domain(message: ledger_pb2.OperatorRequest) -> OperatorRequest:
    """Converts a request. Raises ValueError for an act that this version does not know."""
    match message.WhichOneof("act"):
        case "requeue":
            extras = message.requeue
            act = Requeue(extras.extra_tokens, extras.extra_steps, extras.extra_nano_usd)
            return OperatorRequest(message.reason, act)
        case "grant_budget":
            grant = GrantBudget(message.grant_budget.extra_tokens, message.grant_budget.extra_nano_usd)
            return OperatorRequest(message.reason, grant)
        case "close_out":
            end = OperatorCloseOut(STATES.to_domain(message.close_out.to_state), message.close_out.result)
            return OperatorRequest(message.reason, end)
        case "resolve_call":
            return OperatorRequest(message.reason, resolve_call_to_domain(message.resolve_call))
        case "begin_wait":
            wait = message.begin_wait
            at_deadline = WAIT_DEADLINES.to_domain(wait.at_deadline) if wait.at_deadline else WaitDeadlinePolicy.GO_ON
            return OperatorRequest(message.reason, BeginWait(wait.question, unix_seconds(wait.until), at_deadline))
        case _:
            raise ValueError("an operator request of a kind that this version does not know")


def operator_request_to_wire(body: OperatorRequest) -> ledger_pb2.OperatorRequest:
    message = ledger_pb2.OperatorRequest(reason=body.reason)
    match body.act:
        case Requeue(extra_tokens, extra_steps, extra_nano_usd):
            message.requeue.extra_tokens, message.requeue.extra_steps = extra_tokens, extra_steps
            message.requeue.extra_nano_usd = extra_nano_usd
            message.requeue.SetInParent()
        case GrantBudget(extra_tokens, extra_nano_usd):
            message.grant_budget.extra_tokens, message.grant_budget.extra_nano_usd = extra_tokens, extra_nano_usd
            message.grant_budget.SetInParent()
        case ResolveCall():
            message.resolve_call.CopyFrom(resolve_call_to_wire(body.act))
        case BeginWait(question, until, at_deadline):
            message.begin_wait.question, message.begin_wait.at_deadline = question, WAIT_DEADLINES.to_wire(at_deadline)
            message.begin_wait.until.CopyFrom(timestamp(datetime.fromtimestamp(until, UTC)))
        case OperatorCloseOut(to_state, result):
            message.close_out.to_state, message.close_out.result = STATES.to_wire(to_state), result
    return message


# The submit entry of a task, and the entry of a call that created sub-agents.


def submitted_to_domain(message: ledger_pb2.TaskSubmitted) -> domain.Submitted:
    spawned_by = None
    if message.HasField("spawned_by"):
        by = message.spawned_by
        spawned_by = domain.SpawnedBy(by.task_id, by.call_id, by.index)
    return domain.Submitted(spec_to_domain(message.spec), message.request_id, spawned_by, message.traceparent)


def submitted_to_wire(body: domain.Submitted) -> ledger_pb2.TaskSubmitted:
    message = ledger_pb2.TaskSubmitted(
        spec=spec_to_wire(body.spec), request_id=body.request_id, traceparent=body.traceparent
    )
    if body.spawned_by is not None:
        by = body.spawned_by
        spawned_by = ledger_pb2.SpawnedBy(task_id=by.task_id, call_id=by.call_id, index=by.index)
        message.spawned_by.CopyFrom(spawned_by)
    return message


def spawned_to_domain(message: ledger_pb2.SubAgentsSpawned) -> domain.SubAgentsSpawned:
    tools = tuple(message.tools.names) if message.HasField("tools") else None
    return domain.SubAgentsSpawned(message.call_id, tuple(message.task_ids), message.max_tokens, tools)


def spawned_to_wire(body: domain.SubAgentsSpawned) -> ledger_pb2.SubAgentsSpawned:
    """Converts the entry without its deadline: only the ledger knows the time of its database."""
    return ledger_pb2.SubAgentsSpawned(
        call_id=body.call_id,
        task_ids=body.task_ids,
        max_tokens=body.max_tokens,
        tools=allowlist_to_wire(body.tools),
    )


# The content blocks of an answer: JSON of a model provider or of a loop outside of this project.


def content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """Returns the blocks of an answer. Raises ValueError for content that the fold cannot handle."""
    try:
        blocks = json.loads(message.content_json or "[]")
    except RecursionError:
        raise ValueError("content_json nests too deeply") from None
    if not isinstance(blocks, list) or not all(map(_is_block, blocks)):
        raise ValueError("content_json is not a JSON array of content blocks")
    return tuple(blocks)


def readable_content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """Returns the blocks of an answer, or none when they are malformed: old entries were not validated."""
    try:
        return content_of(message)
    except ValueError:
        return ()


def _is_block(block: Any) -> bool:
    """Whether a block is an object with a type, and its text, if any, is a string."""
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)


def entry_to_domain(entry: ledger_pb2.Entry) -> domain.Entry:
    """Converts an entry. Raises ValueError for an unknown kind: a fold without the entry would be wrong."""
    return domain.Entry(
        sequence=entry.sequence,
        step=entry.step,
        body=body_to_domain(entry.body),
        epoch=entry.epoch,
        claim_id=entry.claim_id,
        attempt=entry.attempt,
        actor=entry.actor,
    )


def entry_for_ending(entry: ledger_pb2.Entry) -> domain.Entry | None:
    """Converts an entry for `tenure.domain.close_out.unfinished`. Returns None for a kind that it does not need.

    An answer with malformed content becomes an answer without content. Raises ValueError for a resolution of a call in
    a kind that only a newer version knows.
    """
    match entry.body.WhichOneof("body"):
        case "tools_defined" | "model_attempt" | "tool_intent" | "tool_outcome":
            return entry_to_domain(entry)
        case "operator_request" if entry.body.operator_request.HasField("resolve_call"):
            return entry_to_domain(entry)
        case "assistant_message":
            answer = entry.body.assistant_message
            body = domain.AssistantMessage(
                answer.attempt_number, readable_content_of(answer), answer.stop_reason, TokenUsage()
            )
            return domain.Entry(entry.sequence, entry.step, body)
        case _:
            return None


def entry_for_trace(entry: ledger_pb2.Entry, *, with_content: bool) -> domain.Entry | None:
    """Converts an entry for `tenure.domain.traces`. Returns None for one that only a newer version understands.

    Without content, the blocks of an answer are left out: to parse them costs the most.
    """
    try:
        if not entry.body.HasField("assistant_message"):
            return entry_to_domain(entry)
        answer = entry.body.assistant_message
        body = domain.AssistantMessage(
            attempt_number=answer.attempt_number,
            content=readable_content_of(answer) if with_content else (),
            stop_reason=answer.stop_reason,
            usage=usage_to_domain(answer.usage),
            model=answer.model,
            provider_request_id=answer.provider_request_id,
            latency_seconds=seconds(answer.latency),
            usage_estimated=answer.usage_estimated,
        )
    except ValueError:
        return None
    return domain.Entry(entry.sequence, entry.step, body, entry.epoch, entry.claim_id, entry.attempt, entry.actor)


def record_nanoseconds(entry: ledger_pb2.Entry) -> int:
    """Returns when an entry was recorded, in nanoseconds since 1970."""
    return entry.record_time.ToNanoseconds()


def entries_to_domain(entries: Iterable[ledger_pb2.Entry]) -> list[domain.Entry]:
    return [entry_to_domain(entry) for entry in entries]


def new_entry(step: int, body: domain.Body) -> ledger_pb2.NewEntry:
    """Returns the message of an entry to append."""
    return ledger_pb2.NewEntry(step=step, body=body_to_wire(body))


def body_to_domain(body: ledger_pb2.EntryBody) -> domain.Body:
    kind = body.WhichOneof("body")
    if kind is None:
        raise ValueError("an entry of a kind that this version does not know")
    return _TO_DOMAIN[kind](getattr(body, kind))


def body_to_wire(body: domain.Body) -> ledger_pb2.EntryBody:
    return _TO_WIRE[type(body)](body)


def _transition_to_domain(message: ledger_pb2.StateTransition) -> domain.Transition:
    return domain.Transition(
        to_state=STATES.to_domain(message.to_state),
        reason=message.reason,
        message=message.message,
        result=message.result,
        from_state=STATES.to_domain(message.from_state) if message.from_state else None,
        wait=wait_to_domain(message.wait) if message.HasField("wait") else None,
        result_json=message.result_json,
        error_class=message.error_class,
        calls_in_doubt=calls_in_doubt_to_domain(message.calls_in_doubt),
        outputs=tuple(output_to_domain(output) for output in message.outputs),
    )


def _transition_to_wire(body: domain.Transition) -> ledger_pb2.EntryBody:
    message = ledger_pb2.StateTransition(
        to_state=STATES.to_wire(body.to_state),
        reason=body.reason,
        message=body.message,
        result=body.result,
        result_json=body.result_json,
        error_class=body.error_class,
        calls_in_doubt=calls_in_doubt_to_wire(body.calls_in_doubt),
        outputs=[output_to_wire(output) for output in body.outputs],
    )
    if body.from_state is not None:
        message.from_state = STATES.to_wire(body.from_state)
    if body.wait is not None:
        message.wait.CopyFrom(wait_to_wire(body.wait))
    return ledger_pb2.EntryBody(transition=message)


def _failure_to_domain(message: ledger_pb2.ModelFailure) -> domain.ModelFailure:
    return domain.ModelFailure(
        attempt_number=message.attempt_number,
        error_class=message.error_class,
        message=message.message,
        retryable=message.retryable,
        status_code=message.status_code,
        retry_after_seconds=seconds(message.retry_after) if message.HasField("retry_after") else None,
        usage=usage_to_domain(message.usage),
        provider_request_id=message.provider_request_id,
    )


def _failure_to_wire(body: domain.ModelFailure) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        model_failure=ledger_pb2.ModelFailure(
            attempt_number=body.attempt_number,
            error_class=body.error_class,
            message=body.message,
            retryable=body.retryable,
            status_code=body.status_code,
            retry_after=None if body.retry_after_seconds is None else duration(body.retry_after_seconds),
            usage=usage_to_wire(body.usage),
            provider_request_id=body.provider_request_id,
        )
    )


def _attempt_to_domain(message: ledger_pb2.ModelAttempt) -> domain.ModelAttempt:
    return domain.ModelAttempt(
        message.attempt_number,
        message.model,
        message.input_tokens,
        message.max_output_tokens,
        message.reserved_tokens,
        message.summary_through_step,
        message.reserved_nano_usd,
        prices_to_domain(message.prices),
        message.outlives_worker,
    )


def _attempt_to_wire(body: domain.ModelAttempt) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        model_attempt=ledger_pb2.ModelAttempt(
            attempt_number=body.attempt_number,
            model=body.model,
            input_tokens=body.input_tokens,
            max_output_tokens=body.max_output_tokens,
            reserved_tokens=body.reserved_tokens,
            summary_through_step=body.summary_through_step,
            reserved_nano_usd=body.reserved_nano_usd,
            prices=prices_to_wire(body.prices),
            outlives_worker=body.outlives_worker,
        )
    )


def _answer_to_domain(message: ledger_pb2.AssistantMessage) -> domain.AssistantMessage:
    return domain.AssistantMessage(
        attempt_number=message.attempt_number,
        content=content_of(message),
        stop_reason=message.stop_reason,
        usage=usage_to_domain(message.usage),
        model=message.model,
        provider_request_id=message.provider_request_id,
        latency_seconds=seconds(message.latency),
        usage_estimated=message.usage_estimated,
    )


def _answer_to_wire(body: domain.AssistantMessage) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(
        assistant_message=ledger_pb2.AssistantMessage(
            attempt_number=body.attempt_number,
            content_json=json.dumps(body.content, ensure_ascii=False, separators=(",", ":")),
            stop_reason=body.stop_reason,
            usage=usage_to_wire(body.usage),
            model=body.model,
            provider_request_id=body.provider_request_id,
            latency=duration(body.latency_seconds),
            usage_estimated=body.usage_estimated,
        )
    )


_TO_DOMAIN: dict[str, Callable[[Any], domain.Body]] = {
    "submitted": submitted_to_domain,
    "transition": _transition_to_domain,
    "tools_defined": lambda m: domain.ToolsDefined(
        tuple(tool_to_domain(tool) for tool in m.tools), tuple(m.unknown_names)
    ),
    "model_attempt": _attempt_to_domain,
    "model_failure": _failure_to_domain,
    "attempt_lost": lambda m: domain.AttemptLost(m.attempt_number, usage_to_domain(m.usage)),
    "assistant_message": _answer_to_domain,
    "tool_intent": lambda m: domain.ToolIntent(m.call_id, m.tool_use_id, m.tool, m.arguments_json),
    "tool_outcome": lambda m: domain.ToolOutcome(m.call_id, outcome_to_domain(m.outcome)),
    "user_message": lambda m: domain.UserMessage(m.text, m.request_id),
    "cancel_request": lambda m: domain.CancelRequest(m.reason),
    "forked": lambda m: domain.Forked(m.forked_from.task_id, m.forked_from.sequence, m.copied_entries),
    "operator_request": operator_request_to_domain,
    "wait_resolution": resolution_to_domain,
    "control_step": step_to_domain,
    "control_failure": failure_to_domain,
    "result_rejected": lambda m: domain.ResultRejected(m.text, tuple(m.violations)),
    "compaction": compaction_to_domain,
    "quota_warning": quota_warning_to_domain,
    "budget_warning": lambda m: BudgetWarning(
        m.limit, budget_to_domain(m.budget), budget_to_domain(m.own) if m.HasField("own") else None
    ),
    "sub_agents_spawned": spawned_to_domain,
    "wait_escalated": lambda m: domain.WaitEscalated(m.wait_id, m.step_number, escalation_step_to_domain(m.step)),
}

_TO_WIRE: dict[type, Callable[[Any], ledger_pb2.EntryBody]] = {
    domain.Submitted: lambda f: ledger_pb2.EntryBody(submitted=submitted_to_wire(f)),
    domain.Transition: _transition_to_wire,
    domain.ToolsDefined: lambda f: ledger_pb2.EntryBody(
        tools_defined=ledger_pb2.ToolsDefined(
            tools=[tool_to_wire(tool) for tool in f.tools], unknown_names=f.unknown_names
        )
    ),
    domain.ModelAttempt: _attempt_to_wire,
    domain.ModelFailure: _failure_to_wire,
    domain.AttemptLost: lambda f: ledger_pb2.EntryBody(
        attempt_lost=ledger_pb2.AttemptLost(attempt_number=f.attempt_number, usage=usage_to_wire(f.usage))
    ),
    domain.AssistantMessage: _answer_to_wire,
    domain.ToolIntent: lambda f: ledger_pb2.EntryBody(
        tool_intent=ledger_pb2.ToolIntent(
            call_id=f.call_id, tool_use_id=f.tool_use_id, tool=f.tool, arguments_json=f.arguments_json
        )
    ),
    domain.ToolOutcome: lambda f: ledger_pb2.EntryBody(
        tool_outcome=ledger_pb2.ToolOutcome(call_id=f.call_id, outcome=outcome_to_wire(f.outcome))
    ),
    domain.UserMessage: lambda f: ledger_pb2.EntryBody(
        user_message=ledger_pb2.UserMessage(text=f.text, request_id=f.request_id)
    ),
    domain.CancelRequest: lambda f: ledger_pb2.EntryBody(cancel_request=ledger_pb2.CancelRequest(reason=f.reason)),
    domain.Forked: lambda f: ledger_pb2.EntryBody(
        forked=ledger_pb2.Forked(
            forked_from=task_pb2.ForkedFrom(task_id=f.task_id, sequence=f.sequence), copied_entries=f.copied_entries
        )
    ),
    domain.OperatorRequest: lambda f: ledger_pb2.EntryBody(operator_request=operator_request_to_wire(f)),
    domain.WaitResolution: lambda f: ledger_pb2.EntryBody(wait_resolution=resolution_to_wire(f)),
    domain.ControlStep: lambda f: ledger_pb2.EntryBody(control_step=step_to_wire(f)),
    domain.ControlFailure: lambda f: ledger_pb2.EntryBody(control_failure=failure_to_wire(f)),
    domain.ResultRejected: lambda f: ledger_pb2.EntryBody(
        result_rejected=ledger_pb2.ResultRejected(text=f.text, violations=f.violations)
    ),
    BudgetWarning: lambda f: ledger_pb2.EntryBody(
        budget_warning=ledger_pb2.BudgetWarning(
            limit=f.limit, budget=budget_to_wire(f.budget), own=None if f.own is None else budget_to_wire(f.own)
        )
    ),
    domain.Compaction: lambda f: ledger_pb2.EntryBody(compaction=compaction_to_wire(f)),
    QuotaWarning: lambda f: ledger_pb2.EntryBody(quota_warning=quota_warning_to_wire(f)),
    domain.WaitEscalated: lambda f: ledger_pb2.EntryBody(
        wait_escalated=ledger_pb2.WaitEscalated(
            wait_id=f.wait_id, step_number=f.step_number, step=escalation_step_to_wire(f.step)
        )
    ),
    domain.SubAgentsSpawned: lambda f: ledger_pb2.EntryBody(sub_agents_spawned=spawned_to_wire(f)),
}


def settled_usage(body: ledger_pb2.EntryBody) -> tuple[int, TokenUsage] | None:
    """Returns (attempt number, usage) when the entry settles a model attempt, else None."""
    match body.WhichOneof("body"):
        case "assistant_message":
            return body.assistant_message.attempt_number, usage_to_domain(body.assistant_message.usage)
        case "model_failure":
            return body.model_failure.attempt_number, usage_to_domain(body.model_failure.usage)
        case _:
            return None


# The answer to Open: a header, then the history in pages.


class OpenedTask(NamedTuple):
    """A task after Open, with its whole history."""

    task: task_pb2.Task
    next_commit_number: int
    entries: list[Entry]


def read_entries_to_end(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Converts only the entries that a close-out needs, so that no other entry can prevent it."""
    try:
        return [read for entry in entries if (read := entry_for_ending(entry)) is not None]
    except ValueError as error:
        raise _unreadable(error) from error


def read_entries(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Converts entries for the fold. Raises Unavailable for a kind that a newer version wrote.

    The error is not the task's fault: a process of that version can continue the task.
    """
    try:
        return entries_to_domain(entries)
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: ValueError) -> Unavailable:
    message = f"this version cannot read the task's history, which a newer version may have written: {error}"
    return Unavailable(message, reason="NEWER_LEDGER")
