"""What the `messages` loop does next: a pure function of the resume point.

call the model ──▶ answer ──▶ run tools ──▶ call the model … ──▶ final answer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tenure.domain.compaction import MOST_OVERFLOWS
from tenure.domain.entries import ResultRejected, ToolIntent
from tenure.domain.fold import ResumePoint
from tenure.domain.result_schema import ResultValidation, rejection
from tenure.domain.states import Reason, TaskState
from tenure.domain.waiting_calls import asks

MAX_TRUNCATIONS: Final = 3
"""Answers in a row cut at the output limit before the task fails: a model that never finishes would go on for ever."""

CONTINUE_PROMPT: Final = "Your last message was cut off at the output limit. Go on exactly where it stopped."


@dataclass(frozen=True, slots=True)
class CallModel:
    """Send the messages as this attempt of this step; or ask for the summary that was begun."""

    step: int
    attempt_number: int
    summary_through_step: int = 0


@dataclass(frozen=True, slots=True)
class ExecuteTools:
    """Run these calls, in parallel; then wait for what the first of `asks` asks for."""

    step: int
    intents: tuple[ToolIntent, ...]
    asks: tuple[ToolIntent, ...] = ()


@dataclass(frozen=True, slots=True)
class ContinueTruncated:
    """The answer was cut: tell the model to go on, then call it."""

    step: int


@dataclass(frozen=True, slots=True)
class CloseOut:
    """The task ends."""

    to_state: TaskState
    reason: str
    message: str
    result: str
    result_json: str = ""


@dataclass(frozen=True, slots=True)
class ValidateResult:
    """A last word that must fit the result's schema: `after_validation` says what follows."""

    step: int
    schema_json: str
    text: str


@dataclass(frozen=True, slots=True)
class CorrectAnswer:
    """The answer is no result: tell the model, then call it."""

    step: int
    rejected: ResultRejected


NextMove = CallModel | ExecuteTools | ContinueTruncated | ValidateResult | CloseOut


def next_move(point: ResumePoint) -> NextMove:
    """What to do after the entries so far. Meets no open model attempt: Open settles what an old owner left."""
    if point.open_intents:
        return calls_to_make(point)
    if point.summary_through_step:
        return CallModel(point.step, point.attempts_in_step + 1, point.summary_through_step)
    if point.answer is None:
        if point.attempts_in_step:  # sent, and failed or lost: the same step again
            return CallModel(point.step, point.attempts_in_step + 1)
        return CallModel(point.step + 1, 1)
    if point.intents:
        return CallModel(point.step + 1, 1)
    return _after_answer(point, point.answer.stop_reason)


def calls_to_make(point: ResumePoint) -> ExecuteTools:
    """The open calls: those to run, and those that wait for somebody, which are asked for one after another."""
    tools = {tool.name for tool in point.tools or ()}
    approve_tools = point.spec.agent.approve_tools if point.spec is not None else ()
    runs: list[ToolIntent] = []
    waits: list[ToolIntent] = []
    for intent in point.open_intents:
        waiting = asks(intent, tools=tools, approve_tools=approve_tools, allowed=point.allowed_calls)
        (waits if waiting else runs).append(intent)
    return ExecuteTools(point.step, tuple(runs), tuple(waits))


def _after_answer(point: ResumePoint, stop_reason: str) -> NextMove:
    match stop_reason:
        case "pause_turn":
            return CallModel(point.step + 1, 1)
        case "max_tokens" if point.has_unread_messages:
            return CallModel(point.step + 1, 1)
        case "max_tokens" if point.truncations < MAX_TRUNCATIONS:
            return ContinueTruncated(point.step)
        case "max_tokens":
            return _failed(point, Reason.MODEL_TRUNCATED, f"{MAX_TRUNCATIONS} answers in a row were cut off")
        case "refusal":
            return _failed(point, Reason.MODEL_REFUSED, "the model declined to go on")
        case "model_context_window_exceeded" if point.overflows <= MOST_OVERFLOWS:
            return CallModel(point.step + 1, 1)
        case "model_context_window_exceeded":
            return _failed(point, Reason.CONTEXT_WINDOW_EXCEEDED, "the conversation no longer fits the model")
        case _ if point.has_unread_messages:  # somebody said something meanwhile: the answer is not the last word
            return CallModel(point.step + 1, 1)
        case _:
            return _after_final_answer(point)


def after_validation(point: ResumePoint, judgement: ResultValidation) -> CloseOut | CorrectAnswer:
    """What follows from a ValidateResult: the end, or another try, of which there are only so many."""
    assert point.spec is not None, "a ledger begins with the spec"
    if not judgement.violations:
        return CloseOut(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, "", point.last_text, judgement.result_json)
    if point.corrections < point.spec.policy.max_result_corrections:
        return CorrectAnswer(point.step, rejection(judgement.violations))
    message = f"the last answer does not fit the result's schema, after {point.corrections} corrections: "
    return _failed(point, Reason.RESULT_INVALID, message + "; ".join(judgement.violations))


def _after_final_answer(point: ResumePoint) -> NextMove:
    schema_json = point.spec.result_schema_json if point.spec is not None else ""
    if schema_json:
        return ValidateResult(point.step, schema_json, point.answer_text)
    return CloseOut(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, "", point.last_text)


def _failed(point: ResumePoint, reason: str, message: str) -> CloseOut:
    return CloseOut(TaskState.FAILED, reason, message, point.last_text)
