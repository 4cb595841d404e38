"""Describes one entry of the ledger in one line, for `tenure tasks entries` and, in parts, for `tenure watch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tenure.cli.answering import step_text
from tenure.cli.formatting import (
    arguments_text,
    budget_text,
    count_text,
    goal_text,
    program_text,
    seconds_text,
    state_style,
    usage_text,
)
from tenure.domain.budget import WARNING_PERCENT, money_text, usd
from tenure.domain.states import Reason
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.call_plans import plan_to_domain
from tenure.wire.common import OUTCOME_STATUSES, seconds, state_name
from tenure.wire.ledger import lease_end_to_domain
from tenure.wire.tenant_service import describe_use


def describe(entry: ledger_pb2.Entry, *, is_verbose: bool = False) -> str:
    """Returns the content of the entry on one line, which is not cut to a width.

    With `is_verbose` a model attempt also shows what it reserved.
    """
    kind = entry.body.WhichOneof("body")
    if kind is None:
        return "(this version does not know the kind of this entry)"
    reserved = _reserved(entry.body.model_attempt) if is_verbose and kind == "model_attempt" else ""
    return " ".join(f"{_OF_KIND[kind](getattr(entry.body, kind))}{reserved}".split())


def kind_name(entry: ledger_pb2.Entry) -> str:
    """Returns the entry kind: the name of its field in `EntryBody`."""
    return entry.body.WhichOneof("body") or "?"


def style_of(entry: ledger_pb2.Entry) -> str:
    """Returns the colour of an entry: transitions, failures and warnings stand out."""
    body = entry.body
    match body.WhichOneof("body"):
        case "transition":
            return state_style(state_name(body.transition.to_state))
        case "model_failure" | "attempt_lost" | "control_failure" | "result_rejected":
            return "yellow"
        case "quota_warning" | "budget_warning":
            return "yellow"
        case "cancel_request" | "operator_request":
            return "yellow"
        case "tool_outcome":
            return "default" if outcome_name(body.tool_outcome.outcome) == "SUCCEEDED" else "yellow"
        case _:
            return "default"


def outcome_name(outcome: tool_pb2.Outcome) -> str:
    """Returns the name of an outcome's status, for example `SUCCEEDED`."""
    return OUTCOME_STATUSES.to_domain(outcome.status).value


def answer_text(content_json: str) -> str:
    """Returns the text blocks of a model's answer."""
    try:
        blocks: Any = json.loads(content_json or "[]")
    except ValueError:
        return ""
    texts = [block.get("text", "") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "\n\n".join(text.strip() for text in texts if text.strip())


def _transition(body: ledger_pb2.StateTransition) -> str:
    before = f"{state_name(body.from_state)} → " if body.from_state else ""
    reason = f" ({body.reason})" if body.reason else ""
    end = f"; {lease_end_text(body)}" if body.HasField("lease_end") else ""
    return f"{before}{state_name(body.to_state)}{reason}{f': {body.message}' if body.message else ''}{end}"


def lease_end_text(body: ledger_pb2.StateTransition) -> str:
    """Returns when the worker of a lost claim last renewed its lease, and when the loss was noticed."""
    return lease_end_to_domain(body.lease_end).describe()


def _tools(body: ledger_pb2.ToolsDefined) -> str:
    missing = f"; {unknown_tools(body)}" if body.unknown_names else ""
    return f"{', '.join(tool.name for tool in body.tools) or 'none'}{missing}"


def unknown_tools(body: ledger_pb2.ToolsDefined) -> str:
    """Returns the message that no tools have some names of the submit's list."""
    return f"no such tool: {', '.join(body.unknown_names)}"


def _attempt(body: ledger_pb2.ModelAttempt) -> str:
    purpose = f", for a summary through step {body.summary_through_step}" if body.summary_through_step else ""
    return f"attempt {body.attempt_number} at {body.model}{purpose}"


def _reserved(body: ledger_pb2.ModelAttempt) -> str:
    money = f" and {usd(body.reserved_nano_usd)}" if body.reserved_nano_usd else ""
    return f", {body.reserved_tokens:,} tokens{money} reserved"


def _failure(body: ledger_pb2.ModelFailure) -> str:
    code = f" {body.status_code}" if body.status_code else ""
    return f"attempt {body.attempt_number}: {body.error_class}{code}: {body.message}"


def _answer(body: ledger_pb2.AssistantMessage) -> str:
    message = f"{body.stop_reason}, {seconds_text(seconds(body.latency))}, {usage_text(body.usage)}"
    message += " (estimated)" if body.usage_estimated else ""
    return f"{message}: {answer_text(body.content_json)}"


def _outcome(body: ledger_pb2.ToolOutcome) -> str:
    outcome = body.outcome
    detail = f" ({outcome.detail})" if outcome.detail else ""
    used = program_text(outcome.usage)
    lasted = f"{seconds_text(seconds(outcome.duration))}{f' ({used})' if used else ''}"
    note = f" {outcome.note}" if outcome.note else ""
    return f"{body.call_id} {outcome_name(outcome)}{detail}, {lasted}: {outcome.content}{note}"


def _operator(body: ledger_pb2.OperatorRequest) -> str:
    match body.WhichOneof("act"):
        case "requeue":
            extras = {"tokens": body.requeue.extra_tokens, "steps": body.requeue.extra_steps}
            message = "".join(f", {count:,} {thing} more" for thing, count in extras.items() if count)
            money = f", {money_text(body.requeue.extra_nano_usd)} more" if body.requeue.extra_nano_usd else ""
            return f"requeues the task{message}{money}: {body.reason}"
        case "grant_budget":
            tokens, nano_usd = body.grant_budget.extra_tokens, body.grant_budget.extra_nano_usd
            more = [*([f"{tokens:,} tokens"] if tokens else []), *([money_text(nano_usd)] if nano_usd else [])]
            if not more:  # the ledger's entry in a sub-agent, after a grant to the root
                return f"continues the task: {body.reason}"
            return f"grants {' and '.join(more)} more: {body.reason}"
        case "close_out":
            return f"closes the task out as {state_name(body.close_out.to_state)}: {body.reason}"
        case "resolve_call":
            return _resolution_line(body)
        case "begin_wait":
            return f"lets the task wait for {body.begin_wait.question}: {body.reason}"
        case _:
            return f"intervenes: {body.reason}"


def _resolution_line(body: ledger_pb2.OperatorRequest) -> str:
    """Describes a resolution of a call in doubt."""
    resolution = body.resolve_call
    call = f"{resolution.call_id}{f' (attempt {resolution.call_attempt})' if resolution.call_attempt > 1 else ''}"
    match resolution.decision.WhichOneof("decision"):
        case "happened":
            result = resolution.decision.happened.result
            return f"resolves call {call}: it happened{f', with {result!r}' if result else ''}: {body.reason}"
        case "did_not_happen":
            gone = ", its runner is gone" if resolution.decision.did_not_happen.runner_is_gone else ""
            return f"resolves call {call}: it did not happen{gone}, so it runs again: {body.reason}"
        case "abandon":
            return f"abandons call {call}, which stays in doubt: {body.reason}"
        case _:
            return f"resolves call {call}: {body.reason}"


def _resolution(body: ledger_pb2.WaitResolution) -> str:
    if body.wait_kind == task_pb2.WAIT_KIND_SUB_AGENTS:
        late = body.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_NO_ANSWER
        return f"{body.wait_id}: {'not all sub-agents ended in time' if late else 'all sub-agents have ended'}"
    if body.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_NO_ANSWER:
        message = f"{body.wait_id} was not answered in time"
    else:
        message = f"{body.wait_id} is answered: {body.answer}"
    edited = f", with {arguments_text(body.edited_arguments_json)}" if body.edited_arguments_json else ""
    extra = f", {body.extra_budget_tokens:,} tokens more" if body.extra_budget_tokens else ""
    extra += f", {money_text(body.extra_budget_nano_usd)} more" if body.extra_budget_nano_usd else ""
    link = f", by the link of {body.addressee}" if body.addressee else ""
    if body.HasField("plan"):
        until = body.plan.end_time.ToDatetime().strftime("%Y-%m-%d %H:%M UTC")
        extra += f", and without asking {plan_to_domain(body.plan).describe()}, until {until}"
    return f"{message}{edited}{extra}{link}{f' ({body.comment})' if body.comment else ''}"


def _warning(body: ledger_pb2.BudgetWarning) -> str:
    if body.limit == Reason.MODEL_UNPRICED:
        return (
            "the ledger has no price for the model of a call (MODEL_UNPRICED): the call costs nothing here, and the "
            "default cap in money does not hold for it. TENURE_CHECKPOINT_PRICES_FILE names prices"
        )
    what = "money" if body.limit == Reason.MONEY_LIMIT else "tokens"
    if body.HasField("own"):
        return f"more than {WARNING_PERCENT} % of this sub-agent's own {what} are used: {budget_text(body.own)}"
    return f"more than {WARNING_PERCENT} % of the {what} are used: {budget_text(body.budget)}"


def _control_step(body: ledger_pb2.ControlStep) -> str:
    lasted = seconds_text(seconds(body.duration))
    if body.HasField("failure"):
        return f"{body.name}, {lasted}, failed: {_control_failure(body.failure)}"
    if body.HasField("kept"):
        return f"{body.name}, {lasted}: {body.kept.size_bytes:,} bytes in {body.kept.path}"
    return f"{body.name}, {lasted}: {body.result_json}"


def _control_failure(body: ledger_pb2.ControlFailure) -> str:
    retryable = ", may be tried again" if body.retryable else ""
    return f"{body.error_class}{retryable}: {body.message}"


def _forked(body: ledger_pb2.Forked) -> str:
    origin = f"{body.forked_from.task_id} after entry {body.forked_from.sequence}"
    return f"continues from {origin}: {count_text(body.copied_entries, 'entry', 'entries')} copied"


def _compaction(body: ledger_pb2.Compaction) -> str:
    match body.WhichOneof("how"):
        case "cleared_results":
            cleared = body.cleared_results
            message = f"cleared {count_text(cleared.results, 'tool result')} through step {cleared.through_step}"
            return f"{message}: about {cleared.input_tokens_before:,} → {cleared.input_tokens_after:,} tokens"
        case "summary":
            return (
                f"replaced the conversation through step {body.summary.through_step} by a summary: {body.summary.text}"
            )
        case _:
            return "shortened the conversation"


def _escalated(body: Any) -> str:
    """Returns the step's number and what it does."""
    return f"{body.wait_id}, step {body.step_number}: {step_text(body.step)}"


def _spawned(body: ledger_pb2.SubAgentsSpawned) -> str:
    tools = f", with {', '.join(body.tools.names) or 'no tools'}" if body.HasField("tools") else ""
    ids = ", ".join(body.task_ids)
    return f"{body.call_id}: {count_text(len(body.task_ids), 'sub-agent')} of {body.max_tokens:,} tokens{tools}: {ids}"


_OF_KIND: Final[dict[str, Callable[[Any], str]]] = {
    "submitted": lambda body: goal_text(body.spec),
    "transition": _transition,
    "tools_defined": _tools,
    "model_attempt": _attempt,
    "model_failure": _failure,
    "attempt_lost": lambda body: f"attempt {body.attempt_number}, billed as {usage_text(body.usage)}",
    "assistant_message": _answer,
    "tool_intent": lambda body: (
        f"{body.call_id} {body.tool} {arguments_text(body.arguments_json)}"
        f"{f' (undoes {body.undoes})' if body.undoes else ''}"
    ),
    "tool_outcome": _outcome,
    "user_message": lambda body: " ".join(
        [*["[interrupt]"] * body.interrupt, body.text, *(f"[{file.path}]" for file in body.files)]
    ),
    "forked": _forked,
    "cancel_request": lambda body: body.reason or "(no reason given)",
    "operator_request": _operator,
    "wait_resolution": _resolution,
    "control_step": _control_step,
    "control_failure": _control_failure,
    "result_rejected": lambda body: "; ".join(body.violations),
    "compaction": _compaction,
    "quota_warning": lambda body: f"the tenant has used {describe_use(body.kind, body.used, body.most)}",
    "budget_warning": _warning,
    "sub_agents_spawned": _spawned,
    "wait_escalated": _escalated,
}
