"""How one entry of the ledger is said in one line: for `tenure entries`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tenure.cli.formatting import (
    arguments_text,
    budget_text,
    count_text,
    program_text,
    seconds_text,
    state_style,
    usage_text,
)
from tenure.domain.budget import WARNING_PERCENT, money_text
from tenure.domain.states import Reason
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import OUTCOME_STATUSES, seconds, state_name
from tenure.wire.tenant_service import describe_use


def describe(entry: ledger_pb2.Entry) -> str:
    """What the entry says, on one line, not yet cut."""
    kind = entry.body.WhichOneof("body")
    if kind is None:
        return "(of a kind that this version does not know)"
    return " ".join(_OF_KIND[kind](getattr(entry.body, kind)).split())


def kind_name(entry: ledger_pb2.Entry) -> str:
    """The contract's name of the entry's kind."""
    return entry.body.WhichOneof("body") or "?"


def style_of(entry: ledger_pb2.Entry) -> str:
    """Colour for what a reader looks for: moves, failures."""
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
    """The domain's name of an outcome's status."""
    return OUTCOME_STATUSES.to_domain(outcome.status).value


def answer_text(content_json: str) -> str:
    """The words of an answer: its text blocks."""
    try:
        blocks: Any = json.loads(content_json or "[]")
    except ValueError:
        return ""
    texts = [block.get("text", "") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "\n\n".join(text.strip() for text in texts if text.strip())


def _transition(fact: ledger_pb2.StateTransition) -> str:
    before = f"{state_name(fact.from_state)} → " if fact.from_state else ""
    reason = f" ({fact.reason})" if fact.reason else ""
    return f"{before}{state_name(fact.to_state)}{reason}{f': {fact.message}' if fact.message else ''}"


def _tools(fact: ledger_pb2.ToolsDefined) -> str:
    missing = f"; {unknown_tools(fact)}" if fact.unknown_names else ""
    return f"{', '.join(tool.name for tool in fact.tools) or 'none'}{missing}"


def unknown_tools(fact: ledger_pb2.ToolsDefined) -> str:
    """That names of the submit's list are no tools here."""
    return f"no such tool: {', '.join(fact.unknown_names)}"


def _attempt(fact: ledger_pb2.ModelAttempt) -> str:
    wanted = f"for a summary through step {fact.summary_through_step}, " if fact.summary_through_step else ""
    money = f" and {money_text(fact.reserved_nano_usd)}" if fact.reserved_nano_usd else ""
    return f"attempt {fact.attempt_number} at {fact.model}, {wanted}{fact.reserved_tokens:,} tokens{money} set aside"


def _failure(fact: ledger_pb2.ModelFailure) -> str:
    code = f" {fact.status_code}" if fact.status_code else ""
    return f"attempt {fact.attempt_number}: {fact.error_class}{code}: {fact.message}"


def _answer(fact: ledger_pb2.AssistantMessage) -> str:
    message = f"{fact.stop_reason}, {seconds_text(seconds(fact.latency))}, {usage_text(fact.usage)}"
    return f"{message}: {answer_text(fact.content_json)}"


def _outcome(fact: ledger_pb2.ToolOutcome) -> str:
    outcome = fact.outcome
    detail = f" ({outcome.detail})" if outcome.detail else ""
    used = program_text(outcome.usage)
    lasted = f"{seconds_text(seconds(outcome.duration))}{f' ({used})' if used else ''}"
    return f"{fact.call_id} {outcome_name(outcome)}{detail}, {lasted}: {outcome.content}"


def _operator(fact: ledger_pb2.OperatorRequest) -> str:
    match fact.WhichOneof("act"):
        case "requeue":
            extras = {"tokens": fact.requeue.extra_tokens, "steps": fact.requeue.extra_steps}
            message = "".join(f", {count:,} {thing} more" for thing, count in extras.items() if count)
            money = f", {money_text(fact.requeue.extra_nano_usd)} more" if fact.requeue.extra_nano_usd else ""
            return f"requeues it{message}{money}: {fact.reason}"
        case "grant_budget":
            tokens, nano_usd = fact.grant_budget.extra_tokens, fact.grant_budget.extra_nano_usd
            more = [*([f"{tokens:,} tokens"] if tokens else []), *([money_text(nano_usd)] if nano_usd else [])]
            return f"grants {' and '.join(more)} more: {fact.reason}"
        case "close_out":
            return f"closes it out as {state_name(fact.close_out.to_state)}: {fact.reason}"
        case "resolve_call":
            return _resolution_line(fact)
        case _:
            return f"intervenes: {fact.reason}"


def _resolution_line(fact: ledger_pb2.OperatorRequest) -> str:
    """On a call in doubt."""
    word = fact.resolve_call
    call = f"{word.call_id}{f' (attempt {word.call_attempt})' if word.call_attempt > 1 else ''}"
    match word.decision.WhichOneof("decision"):
        case "happened":
            result = word.decision.happened.result
            return f"says that call {call} happened{f', with {result!r}' if result else ''}: {fact.reason}"
        case "did_not_happen":
            gone = " and that its runner is gone" if word.decision.did_not_happen.runner_is_gone else ""
            return f"says that call {call} did not happen{gone}; it is run again: {fact.reason}"
        case "abandon":
            return f"gives call {call} up as in doubt for good: {fact.reason}"
        case _:
            return f"says something of call {call}: {fact.reason}"


def _resolution(fact: ledger_pb2.WaitResolution) -> str:
    if fact.wait_kind == task_pb2.WAIT_KIND_SUB_AGENTS:
        late = fact.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_NO_ANSWER
        return f"{fact.wait_id}: {'not all sub-agents ended in time' if late else 'all sub-agents have ended'}"
    if fact.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_NO_ANSWER:
        message = f"{fact.wait_id} was not answered in time"
    else:
        message = f"{fact.wait_id} is answered: {fact.answer}"
    edited = f", with {arguments_text(fact.edited_arguments_json)}" if fact.edited_arguments_json else ""
    extra = f", {fact.extra_budget_tokens:,} tokens more" if fact.extra_budget_tokens else ""
    return f"{message}{edited}{extra}{f' ({fact.comment})' if fact.comment else ''}"


def _warning(fact: ledger_pb2.BudgetWarning) -> str:
    what = "money" if fact.limit == Reason.MONEY_LIMIT else "tokens"
    return f"more than {WARNING_PERCENT} % of the {what} are used: {budget_text(fact.budget)}"


def _control_step(fact: ledger_pb2.ControlStep) -> str:
    lasted = seconds_text(seconds(fact.duration))
    if fact.HasField("failure"):
        return f"{fact.name}, {lasted}, failed: {_control_failure(fact.failure)}"
    return f"{fact.name}, {lasted}: {fact.result_json}"


def _control_failure(fact: ledger_pb2.ControlFailure) -> str:
    again = ", may be tried again" if fact.retryable else ""
    return f"{fact.error_class}{again}: {fact.message}"


def goal_text(spec: task_pb2.TaskSpec) -> str:
    """What a task is for: its goal, or the function and what it is given."""
    if not spec.HasField("control"):
        return spec.goal
    call = f"{spec.control.function}({spec.control.input_json})"
    return f"{call}: {spec.goal}" if spec.goal else call


def _forked(fact: ledger_pb2.Forked) -> str:
    origin = f"{fact.forked_from.task_id} after entry {fact.forked_from.sequence}"
    return f"goes on from {origin}: {count_text(fact.copied_entries, 'entry', 'entries')} copied"


def _compaction(fact: ledger_pb2.Compaction) -> str:
    match fact.WhichOneof("how"):
        case "cleared_results":
            cleared = fact.cleared_results
            message = f"cleared {count_text(cleared.results, 'tool result')} through step {cleared.through_step}"
            return f"{message}: about {cleared.input_tokens_before:,} → {cleared.input_tokens_after:,} tokens"
        case "summary":
            return f"a summary stands for all through step {fact.summary.through_step}: {fact.summary.text}"
        case _:
            return "made the conversation shorter"


def _spawned(fact: ledger_pb2.SubAgentsSpawned) -> str:
    tools = f", with {', '.join(fact.tools.names) or 'no tools'}" if fact.HasField("tools") else ""
    ids = ", ".join(fact.task_ids)
    return f"{fact.call_id}: {count_text(len(fact.task_ids), 'sub-agent')} of {fact.max_tokens:,} tokens{tools}: {ids}"


_OF_KIND: Final[dict[str, Callable[[Any], str]]] = {
    "submitted": lambda fact: goal_text(fact.spec),
    "transition": _transition,
    "tools_defined": _tools,
    "model_attempt": _attempt,
    "model_failure": _failure,
    "attempt_lost": lambda fact: f"attempt {fact.attempt_number}, billed as {usage_text(fact.usage)}",
    "assistant_message": _answer,
    "tool_intent": lambda fact: f"{fact.call_id} {fact.tool} {arguments_text(fact.arguments_json)}",
    "tool_outcome": _outcome,
    "user_message": lambda fact: fact.text,
    "forked": _forked,
    "cancel_request": lambda fact: fact.reason or "(no reason given)",
    "operator_request": _operator,
    "wait_resolution": _resolution,
    "control_step": _control_step,
    "control_failure": _control_failure,
    "result_rejected": lambda fact: "; ".join(fact.violations),
    "compaction": _compaction,
    "quota_warning": lambda fact: f"the tenant has used {describe_use(fact.kind, fact.used, fact.most)}",
    "budget_warning": _warning,
    "sub_agents_spawned": _spawned,
}
