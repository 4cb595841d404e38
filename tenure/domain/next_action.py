"""Decides the next action of the `messages` loop, as a pure function of the resume point.

call the model ──▶ answer ──▶ run tools ──▶ call the model … ──▶ final answer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tenure.domain.compaction import MAX_OVERFLOWS
from tenure.domain.entries import ResultRejected, ToolIntent, ToolOutcome, Transition
from tenure.domain.fold import ResumePoint
from tenure.domain.progress import leave_without_progress, note_of
from tenure.domain.result_schema import ResultValidation, rejection
from tenure.domain.retry import MAX_UNUSABLE_ANSWERS, unusable_text
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import NoProgressPolicy
from tenure.domain.tools import UNUSABLE_CALL
from tenure.domain.waiting_calls import WAITING_TOOLS, asks

CONTINUE_PROMPT: Final = "Your last message was cut off at the output limit. Go on exactly where it stopped."
EMPTY_PROMPT: Final = "Your last message was empty. Give your final answer as a text, or go on with your work."


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model, as this model attempt of this step. `summary_through_step` not 0: ask for the summary again."""

    step: int
    attempt_number: int
    summary_through_step: int = 0


@dataclass(frozen=True, slots=True)
class JoinModelCall:
    """Join the open model attempt, whose call outlived its owner. Its tokens are reserved."""

    step: int
    attempt_number: int


@dataclass(frozen=True, slots=True)
class StopModelCall:
    """Stop the open model attempt, whose call outlived its owner: a message interrupted it, which the next one has."""


@dataclass(frozen=True, slots=True)
class ExecuteTools:
    """Execute `intents` in parallel, then begin the first wait of the calls in `asks`."""

    step: int
    intents: tuple[ToolIntent, ...]
    asks: tuple[ToolIntent, ...] = ()


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Say to the model why its answer is not final, then call it."""

    step: int
    prompt: str


@dataclass(frozen=True, slots=True)
class CloseOut:
    """End the task."""

    to_state: TaskState
    reason: str
    message: str
    result: str
    result_json: str = ""


@dataclass(frozen=True, slots=True)
class ValidateResult:
    """Validate a final answer against the result's schema. `after_validation` decides the next action."""

    step: int
    schema_json: str
    text: str


@dataclass(frozen=True, slots=True)
class CorrectAnswer:
    """Report the schema violations of the answer to the model, then call it."""

    step: int
    rejected: ResultRejected


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave this worker with this transition."""

    transition: Transition


NextAction = CallModel | JoinModelCall | StopModelCall | ExecuteTools | AskAgain | ValidateResult | CloseOut | Leave


def next_action(point: ResumePoint) -> NextAction:
    """Returns the next action.

    An attempt that is open here belongs to a call that outlives its worker: Open settles every other attempt that a
    former owner left open.
    """
    if point.is_interrupted:
        return StopModelCall()
    if point.open_attempt is not None:
        return JoinModelCall(point.step, point.open_attempt.attempt_number)
    if point.open_intents:
        return calls_to_make(point)
    if point.summary_through_step:
        return CallModel(point.step, point.attempts_in_step + 1, point.summary_through_step)
    if point.answer is None:
        if point.attempts_in_step:  # the model call failed or was lost
            return CallModel(point.step, point.attempts_in_step + 1)
        return CallModel(point.step + 1, 1)
    if (stuck := without_progress(point)) is not None:
        return Leave(stuck)
    if point.intents:
        return CallModel(point.step + 1, 1)
    return _after_answer(point, point.answer.stop_reason)


def calls_to_make(point: ResumePoint, own_approvals: Sequence[str] = ()) -> ExecuteTools:
    """Returns the open calls: those to execute now, and those that begin a wait, one after another.

    `own_approvals`: the worker's own tools whose calls need an approval, beside those that the task names.
    """
    tools = {tool.name for tool in point.tools or ()}
    approve_tools = (*(point.spec.agent.approve_tools if point.spec is not None else ()), *own_approvals)
    runs: list[ToolIntent] = []
    waits: list[ToolIntent] = []
    for intent in point.open_intents:
        waiting = asks(intent, tools=tools, approve_tools=approve_tools, allowed=point.allowed_calls)
        waiting = waiting and not (intent.tool in point.planned_tools and intent.tool not in WAITING_TOOLS)
        (waits if waiting else runs).append(intent)
    return ExecuteTools(point.step, tuple(runs), tuple(waits))


def without_progress(point: ResumePoint, outcomes: Iterable[ToolOutcome] = ()) -> Transition | None:
    """Returns the transition of a task whose agent repeats itself, or whose model gives no answer that can be used.

    `outcomes`: those that are not in the ledger yet.
    """
    policy = point.spec.policy.on_no_progress if point.spec is not None else NoProgressPolicy.END
    progress = point.progress_after(outcomes)
    fault = point.fault_of_answer()
    if fault and progress.unusable >= MAX_UNUSABLE_ANSWERS:
        message = unusable_text(progress.unusable, _what_was_received(point, fault))
        return Transition(TaskState.FAILED, fault, message, point.last_text)
    return leave_without_progress(progress, policy, point.last_text)


def _what_was_received(point: ResumePoint, fault: str) -> str:
    for call_id, outcome in point.outcomes.items():
        if outcome.detail == UNUSABLE_CALL:
            return f"a call of {point.intents[call_id].tool}: {outcome.content}"
    return "it was cut off at the output limit" if fault == Reason.MODEL_TRUNCATED else "it had neither text nor calls"


def with_notes(point: ResumePoint, outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
    """Returns new outcomes of the newest step with their notes: about approvals, and that the agent repeats itself."""
    noted = [_noted(each, point.approval_notes.get(each.call_id, "")) for each in outcomes]
    policy = point.spec.policy.on_no_progress if point.spec is not None else NoProgressPolicy.END
    progress = point.progress_after(noted)
    note = note_of(progress, policy)
    repeated = [each for each in noted if progress.is_newest(point.intents[each.call_id], each.outcome)] if note else []
    return [_noted(each, note) if each in repeated[:1] else each for each in noted]


def _noted(each: ToolOutcome, note: str) -> ToolOutcome:
    both = "\n".join(one for one in (each.outcome.note, note) if one)
    return ToolOutcome(each.call_id, replace(each.outcome, note=both)) if note else each


def _after_answer(point: ResumePoint, stop_reason: str) -> NextAction:
    match stop_reason:
        case "pause_turn":
            return CallModel(point.step + 1, 1)
        case "max_tokens" if point.has_unread_messages:
            return CallModel(point.step + 1, 1)
        case "max_tokens":
            return AskAgain(point.step, CONTINUE_PROMPT)
        case "refusal":
            return _failed(point, Reason.MODEL_REFUSED, "the model refused to continue")
        case "model_context_window_exceeded" if point.overflows <= MAX_OVERFLOWS:
            return CallModel(point.step + 1, 1)
        case "model_context_window_exceeded":
            return _failed(
                point, Reason.CONTEXT_WINDOW_EXCEEDED, "the conversation no longer fits the model's context window"
            )
        case _ if point.has_unread_messages:  # a message arrived during the call: the answer is not final
            return CallModel(point.step + 1, 1)
        case _:
            return _after_final_answer(point)


def after_validation(point: ResumePoint, validation: ResultValidation) -> CloseOut | CorrectAnswer:
    """Returns the move after a ValidateResult: the close-out, or a correction while the policy allows one more."""
    assert point.spec is not None, "a ledger begins with the spec"
    if not validation.violations:
        return CloseOut(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, "", point.answer_text, validation.result_json)
    if point.corrections < point.spec.policy.max_result_corrections:
        return CorrectAnswer(point.step, rejection(validation.violations))
    message = f"the last answer does not fit the result's schema, after {point.corrections} corrections: "
    return _failed(point, Reason.RESULT_INVALID, message + "; ".join(validation.violations))


def _after_final_answer(point: ResumePoint) -> NextAction:
    schema_json = point.spec.result_schema_json if point.spec is not None else ""
    if schema_json:
        return ValidateResult(point.step, schema_json, point.answer_text)
    if point.answer_text:
        return CloseOut(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, "", point.answer_text)
    return AskAgain(point.step, EMPTY_PROMPT)


def _failed(point: ResumePoint, reason: str, message: str) -> CloseOut:
    return CloseOut(TaskState.FAILED, reason, message, point.last_text)
