"""The ledger's facts. One table says which message is which class; each pair of functions below is one kind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, NamedTuple

from tenure.domain import entries as facts
from tenure.domain.budget import BudgetWarning, TokenUsage
from tenure.domain.entries import (
    ClearedResults,
    Compaction,
    ControlFailure,
    ControlStep,
    Entry,
    GrantBudget,
    OperatorCloseOut,
    OperatorRequest,
    Requeue,
    SpawnedBy,
    SubAgentsSpawned,
    Summary,
)
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import ResolveCall
from tenure.domain.quotas import QuotaWarning
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES, duration, seconds
from tenure.wire.task import (
    allowlist_to_wire,
    budget_to_domain,
    budget_to_wire,
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
    resolve_call_to_domain,
    resolve_call_to_wire,
    tool_to_domain,
    tool_to_wire,
)

# What is left out of the conversation, or stands for a part of it.


def compaction_to_domain(message: ledger_pb2.Compaction) -> Compaction:
    """ValueError for a way that this version does not know."""
    match message.WhichOneof("how"):
        case "cleared_results":
            cleared = message.cleared_results
            return Compaction(
                ClearedResults(
                    cleared.through_step, cleared.results, cleared.input_tokens_before, cleared.input_tokens_after
                )
            )
        case "summary":
            return Compaction(Summary(message.summary.through_step, message.summary.text))
        case _:
            raise ValueError("a compaction in a way that this version does not know")


def compaction_to_wire(fact: Compaction) -> ledger_pb2.Compaction:
    how = fact.how
    if isinstance(how, Summary):
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


# Control work's facts on the wire.


def failure_to_domain(message: ledger_pb2.ControlFailure) -> ControlFailure:
    return ControlFailure(
        error_class=message.error_class,
        message=message.message,
        retryable=message.retryable,
        retry_after_seconds=seconds(message.retry_after) if message.HasField("retry_after") else None,
    )


def failure_to_wire(fact: ControlFailure) -> ledger_pb2.ControlFailure:
    return ledger_pb2.ControlFailure(
        error_class=fact.error_class,
        message=fact.message,
        retryable=fact.retryable,
        retry_after=None if fact.retry_after_seconds is None else duration(fact.retry_after_seconds),
    )


def step_to_domain(message: ledger_pb2.ControlStep) -> ControlStep:
    return ControlStep(
        name=message.name,
        result_json=message.result_json,
        failure=failure_to_domain(message.failure) if message.HasField("failure") else None,
        duration_seconds=seconds(message.duration),
    )


def step_to_wire(fact: ControlStep) -> ledger_pb2.ControlStep:
    message = ledger_pb2.ControlStep(name=fact.name, duration=duration(fact.duration_seconds))
    if fact.failure is None:
        message.result_json = fact.result_json
    else:
        message.failure.CopyFrom(failure_to_wire(fact.failure))
    return message


# What operators asked of a task.


def operator_request_to_domain(message: ledger_pb2.OperatorRequest) -> OperatorRequest:
    """ValueError for an act that this version does not know."""
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
        case _:
            raise ValueError("an operator's request of a kind that this version does not know")


def operator_request_to_wire(fact: OperatorRequest) -> ledger_pb2.OperatorRequest:
    message = ledger_pb2.OperatorRequest(reason=fact.reason)
    match fact.act:
        case Requeue(extra_tokens, extra_steps, extra_nano_usd):
            message.requeue.extra_tokens, message.requeue.extra_steps = extra_tokens, extra_steps
            message.requeue.extra_nano_usd = extra_nano_usd
            message.requeue.SetInParent()
        case GrantBudget(extra_tokens, extra_nano_usd):
            message.grant_budget.extra_tokens, message.grant_budget.extra_nano_usd = extra_tokens, extra_nano_usd
            message.grant_budget.SetInParent()
        case ResolveCall():
            message.resolve_call.CopyFrom(resolve_call_to_wire(fact.act))
        case OperatorCloseOut(to_state, result):
            message.close_out.to_state, message.close_out.result = STATES.to_wire(to_state), result
    return message


# Sub-agents: where a task comes from, and what a call spawned.


def submitted_to_domain(message: ledger_pb2.TaskSubmitted) -> facts.Submitted:
    spawned_by = None
    if message.HasField("spawned_by"):
        spawned_by_value = message.spawned_by
        spawned_by = SpawnedBy(
            spawned_by_value.task_id, spawned_by_value.call_id, spawned_by_value.index, spawned_by_value.traceparent
        )
    return facts.Submitted(spec_to_domain(message.spec), message.request_id, spawned_by)


def submitted_to_wire(fact: facts.Submitted) -> ledger_pb2.TaskSubmitted:
    message = ledger_pb2.TaskSubmitted(spec=spec_to_wire(fact.spec), request_id=fact.request_id)
    if fact.spawned_by is not None:
        by = fact.spawned_by
        spawned_by = ledger_pb2.SpawnedBy(
            task_id=by.task_id, call_id=by.call_id, index=by.index, traceparent=by.traceparent
        )
        message.spawned_by.CopyFrom(spawned_by)
    return message


def spawned_to_domain(message: ledger_pb2.SubAgentsSpawned) -> SubAgentsSpawned:
    tools = tuple(message.tools.names) if message.HasField("tools") else None
    return SubAgentsSpawned(message.call_id, tuple(message.task_ids), message.max_tokens, tools)


def spawned_to_wire(fact: SubAgentsSpawned) -> ledger_pb2.SubAgentsSpawned:
    """Without the deadline: only the ledger knows its database's time."""
    return ledger_pb2.SubAgentsSpawned(
        call_id=fact.call_id,
        task_ids=fact.task_ids,
        max_tokens=fact.max_tokens,
        tools=allowlist_to_wire(fact.tools),
    )


# The content blocks of an answer, which are a provider's or a foreign loop's JSON.


def content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """The blocks. ValueError for what the fold could not take."""
    try:
        blocks = json.loads(message.content_json or "[]")
    except RecursionError:
        raise ValueError("content_json nests too deeply") from None
    if not isinstance(blocks, list) or not all(map(_is_block, blocks)):
        raise ValueError("content_json is no JSON array of content blocks")
    return tuple(blocks)


def readable_content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """The blocks; none when they are malformed, as entries of before may be."""
    try:
        return content_of(message)
    except ValueError:
        return ()


def _is_block(block: Any) -> bool:
    """An object with a type; the words of a text are a string."""
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)


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
    """An entry as `tenure.domain.close_out.unfinished` takes it; None: it needs none of this kind.

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
    "submitted": submitted_to_domain,
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
    "control_step": step_to_domain,
    "control_failure": failure_to_domain,
    "result_rejected": lambda m: facts.ResultRejected(m.text, tuple(m.violations)),
    "compaction": compaction_to_domain,
    "quota_warning": quota_warning_to_domain,
    "budget_warning": lambda m: BudgetWarning(m.limit, budget_to_domain(m.budget)),
    "sub_agents_spawned": spawned_to_domain,
}

_TO_WIRE: dict[type, Callable[[Any], ledger_pb2.EntryBody]] = {
    facts.Submitted: lambda f: ledger_pb2.EntryBody(submitted=submitted_to_wire(f)),
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
    facts.ControlStep: lambda f: ledger_pb2.EntryBody(control_step=step_to_wire(f)),
    facts.ControlFailure: lambda f: ledger_pb2.EntryBody(control_failure=failure_to_wire(f)),
    facts.ResultRejected: lambda f: ledger_pb2.EntryBody(
        result_rejected=ledger_pb2.ResultRejected(text=f.text, violations=f.violations)
    ),
    BudgetWarning: lambda f: ledger_pb2.EntryBody(
        budget_warning=ledger_pb2.BudgetWarning(limit=f.limit, budget=budget_to_wire(f.budget))
    ),
    facts.Compaction: lambda f: ledger_pb2.EntryBody(compaction=compaction_to_wire(f)),
    QuotaWarning: lambda f: ledger_pb2.EntryBody(quota_warning=quota_warning_to_wire(f)),
    SubAgentsSpawned: lambda f: ledger_pb2.EntryBody(sub_agents_spawned=spawned_to_wire(f)),
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


# The answer to Open: a header, then the history in pages.


class OpenedTask(NamedTuple):
    """A task as Open left it, with its whole history."""

    task: task_pb2.Task
    next_commit_number: int
    entries: list[Entry]


async def read_opened(parts: AsyncIterable[pb.OpenResponse]) -> OpenedTask:
    """The parts put together. Unavailable when the end of the history is missing, or it is a newer version's."""
    header, entries = await _read_parts(parts)
    return OpenedTask(header.task, header.next_commit_number, read_entries(entries))


async def read_opened_to_end(parts: AsyncIterable[pb.OpenResponse]) -> OpenedTask:
    """As read_opened, with the entries alone that ending the task needs: no other one can hold that up."""
    header, entries = await _read_parts(parts)
    try:
        needed = [read for entry in entries if (read := entry_for_ending(entry)) is not None]
    except ValueError as error:
        raise _unreadable(error) from error
    return OpenedTask(header.task, header.next_commit_number, needed)


async def _read_parts(parts: AsyncIterable[pb.OpenResponse]) -> tuple[pb.OpenHeader, list[ledger_pb2.Entry]]:
    header: pb.OpenHeader | None = None
    entries: list[ledger_pb2.Entry] = []
    async for part in parts:
        if part.HasField("header"):
            header = part.header
        else:
            entries.extend(part.page.entries)
    if header is None or header.task.sequence != (entries[-1].sequence if entries else 0):
        raise Unavailable("the answer to Open was cut off", reason="CUT_OFF")
    return header, entries


def read_entries(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Entries as the fold takes them. Unavailable for a kind that a newer version wrote: the task is not at fault, and
    a process of that version can go on with it.
    """
    try:
        return entries_to_domain(entries)
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: ValueError) -> Unavailable:
    message = f"this version cannot read the task's history, which a newer one may have written: {error}"
    return Unavailable(message, reason="NEWER_LEDGER")
