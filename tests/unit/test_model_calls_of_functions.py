"""The rules of control functions' model calls: what the fold keeps, how attempts are numbered, and how errors count."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from services.checkpoint.submit.fork_rules import ForkPiece, fork_points, pieces_to_copy
from services.worker.claim_ledger import size_bytes
from services.worker.control.model_calls import (
    AttemptReport,
    after_denial,
    answer_entries,
    check_request,
    failure_entry,
    size_of_prompt,
)
from tenure.agents.output_report import OutputReport
from tenure.control import ModelCallAnswer, ModelCallReport, ModelCallRequest, TokenUsage
from tenure.control.failures import CallFailure, ModelCallLate, failure_of_call
from tenure.control.model_calls import PromptPart
from tenure.domain.control import Diverged, FunctionToolCall, missing_calls, next_attempt, recorded_step
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    ControlFailure,
    ControlStep,
    Entry,
    ModelAttempt,
    ModelFailure,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
)
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import ControlWork, TaskSpec
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.wire.checkpoint_service import MAX_BYTES

SPEC = TaskSpec(goal="the goal", control=ControlWork("research"))
DONE = Outcome(OutcomeStatus.SUCCEEDED, "done")
REQUEST = ModelCallRequest(model="m", input_tokens=10, max_output_tokens=20)


def after(*bodies: tuple[int, Body]) -> ResumePoint:
    begin: list[tuple[int, Body]] = [(0, Submitted(SPEC)), (0, Transition(TaskState.QUEUED, "SUBMITTED"))]
    return fold(Entry(sequence, *body) for sequence, body in enumerate([*begin, *bodies], 1))


def attempt(number: int = 1) -> ModelAttempt:
    return ModelAttempt(number, "m", 10, 20, 30)


def answer(text: str = "hello", stop_reason: str = "end_turn") -> AssistantMessage:
    return AssistantMessage(1, ({"type": "text", "text": text},), stop_reason, TokenUsage(5, 5))


def failure(number: int = 1, error_class: str = "OVERLOADED") -> ModelFailure:
    return ModelFailure(number, error_class, "not now", retryable=True)


CALLED: list[tuple[int, Body]] = [(1, ToolIntent("1.0", "", "pay", "{}")), (1, ToolOutcome("1.0", DONE))]
ANSWERED: list[tuple[int, Body]] = [(2, attempt()), (2, answer()), (2, ControlStep("ask", '"hello"'))]


def test_a_model_call_forgets_nothing_of_the_function() -> None:
    point = after(*CALLED, *ANSWERED, (3, attempt()), (3, answer("cut", "max_tokens")), (3, ControlStep("more", "1")))
    assert missing_calls(point, 1, [FunctionToolCall("pay", "{}")]) == []
    assert point.outcomes["1.0"] == DONE
    recorded = recorded_step(point, 2, "ask", is_model_call=True)
    assert recorded is not None
    assert recorded.result_json == '"hello"'
    assert (point.step, point.last_text, point.messages, point.progress.unusable) == (3, "cut", [], 0)


@pytest.mark.parametrize(
    ("bodies", "number"),
    [
        ([], 1),
        ([(2, attempt()), (2, failure())], 2),
        ([(2, attempt()), (2, AttemptLost(1, TokenUsage(5))), (2, attempt(2)), (2, failure(2))], 3),
        ([(2, attempt()), (2, failure(error_class="PROMPT_TOO_LONG"))], 2),
    ],
    ids=["first", "after a failure", "after a loss and a failure", "after a prompt that was too long"],
)
def test_attempts_of_a_call_are_counted(bodies: list[tuple[int, Body]], number: int) -> None:
    point = after(*CALLED, *bodies)
    assert recorded_step(point, 2, "ask", is_model_call=True) is None
    assert next_attempt(point, 2) == number


def test_failures_of_one_call_do_not_count_for_the_next() -> None:
    caught = ControlStep("ask", failure=ControlFailure("OVERLOADED", "not now", True))
    assert len(after((1, attempt()), (1, failure())).failures) == 1
    point = after((1, attempt()), (1, failure()), (1, caught))
    assert point.failures == []
    assert next_attempt(point, 2) == 1


def test_another_request_than_the_begun_call_is_a_divergence() -> None:
    point = after((1, attempt()), (1, failure()))
    with pytest.raises(Diverged, match="step 1"):
        recorded_step(point, 1, "ask")
    with pytest.raises(Diverged, match="step 1"):
        missing_calls(point, 1, [FunctionToolCall("pay", "{}")])


@pytest.mark.parametrize("bodies", [CALLED, [(1, ControlStep("count", "3"))]], ids=["tool call", "step"])
def test_call_instead_of_other_work_is_a_divergence(bodies: list[tuple[int, Body]]) -> None:
    with pytest.raises(Diverged):
        recorded_step(after(*bodies), 1, "ask", is_model_call=True)


def test_attempts_of_an_earlier_step_do_not_excuse_a_later_one() -> None:
    point = after((1, attempt()), (1, answer()), (1, ControlStep("ask", "1")), (2, ToolIntent("2.0", "", "pay", "{}")))
    with pytest.raises(Diverged):
        recorded_step(point, 2, "ask", is_model_call=True)


def test_a_fork_never_parts_an_answer_from_its_step() -> None:
    kinds = ["submitted", "transition", "model_attempt", "assistant_message", "control_step", "transition"]
    steps = [0, 0, 1, 1, 1, 1]
    pieces = [ForkPiece(index, step, kind) for index, (step, kind) in enumerate(zip(steps, kinds, strict=True), 1)]
    assert fork_points(pieces) == [1, 2, 5, 6]
    copied = [piece.kind for piece in pieces_to_copy(pieces, 5, with_tools=True)]
    assert copied == ["model_attempt", "assistant_message", "control_step"]


class Refused(Exception):  # noqa: N818
    def __init__(self, status_code: int, retryable: bool | None = None) -> None:
        super().__init__("refused")
        self.status_code = status_code
        if retryable is not None:
            self.retryable = retryable


@pytest.mark.parametrize(
    ("error", "error_class", "retryable", "status_code"),
    [
        (Refused(529), "OVERLOADED", True, 529),
        (Refused(400), "INVALID_REQUEST", False, 400),
        (Refused(429, retryable=False), "RATE_LIMITED", False, 429),
        (Refused(7), "Refused", False, 0),
        (TimeoutError("slow"), "SILENT", True, 0),
        (ModelCallLate("within 7 s"), "TIMEOUT", True, 0),
        (ExceptionGroup("all", [Refused(529), Refused(401)]), "OVERLOADED", True, 0),
        (ExceptionGroup("all", [Refused(401), Refused(403)]), "AUTHENTICATION", False, 0),
        (ExceptionGroup("all", [Refused(529), KeyError("x")]), "ExceptionGroup", True, 0),
        (ConnectionResetError("gone"), "CONNECTION", True, 0),
        (KeyError("x"), "KeyError", False, 0),
    ],
)
def test_errors_of_a_call_have_a_class(error: Exception, error_class: str, retryable: bool, status_code: int) -> None:
    failed = failure_of_call(error)
    assert (failed.failure.error_class, failed.failure.retryable) == (error_class, retryable)
    assert failed.status_code == status_code


@pytest.mark.parametrize(
    "request_values",
    [
        {"model": ""},
        {"model": "m" * 201},
        {"input_tokens": -1},
        {"input_tokens": 1.5},
        {"max_output_tokens": 0},
        {"max_output_tokens": True},
    ],
)
def test_a_request_that_cannot_be_reserved_is_refused(request_values: dict[str, Any]) -> None:
    check_request(REQUEST)
    with pytest.raises(ValueError, match=r"model call needs|must be a number"):
        check_request(ModelCallRequest(**{"model": "m", "input_tokens": 1, "max_output_tokens": 1, **request_values}))


def report_of(shown: list[str] | None = None) -> AttemptReport:
    texts = [] if shown is None else shown
    return AttemptReport("task", 2, attempt(), 60.0, lambda _block, text: texts.append(text), lambda: None)


def test_text_after_the_newest_usage_is_estimated() -> None:
    report = report_of()
    report.on_text(0, "12345678")
    assert report.usage == TokenUsage(0, 2)
    report.on_usage(TokenUsage(9, 1), "req_1")
    assert report.usage == TokenUsage(9, 1)
    report.on_text(0, "1234")
    assert (report.usage, report.request_id) == (TokenUsage(9, 2), "req_1")
    entry = failure_entry(report, failure_of_call(Refused(529)))
    assert (entry.usage, entry.provider_request_id) == (TokenUsage(9, 2), "req_1")


def test_a_usage_that_is_stated_again_erases_no_estimate() -> None:
    """Anthropic states the input first and the output last: in between its libraries have the first usage."""
    report = report_of()
    output, first = OutputReport(report), TokenUsage(9, 1)
    output.on_usage(first)
    for _ in range(2):
        output.on_text(0, "12345678")
        output.on_usage(first)
    assert report.usage == TokenUsage(9, 4)
    output.on_hidden("12345678")
    assert report.usage == TokenUsage(9, 7)
    output.on_usage(TokenUsage(9, 5))
    assert report.usage == TokenUsage(9, 5)


def test_a_begun_answer_without_usage_bills_the_reserved_input() -> None:
    silent, begun = report_of(), report_of()
    begun.on_text(0, "1234")
    assert failure_entry(silent, failure_of_call(TimeoutError())).usage == TokenUsage()
    assert failure_entry(begun, failure_of_call(TimeoutError())).usage == TokenUsage(10, 1)


@pytest.mark.parametrize("usage", [TokenUsage(-1), TokenUsage(10**13), "usage"])
def test_usage_that_the_ledger_refuses_is_refused_at_once(usage: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="usage"):
        report_of().on_usage(usage)


async def test_nothing_is_shown_after_the_end_of_an_attempt() -> None:
    shown: list[str] = []
    report = report_of(shown)

    async def run(given: ModelCallReport) -> ModelCallAnswer:
        given.on_text(0, "in \ud800 time")
        return ModelCallAnswer(result=1, text="", usage=TokenUsage(3, 4))

    await report.make(run)
    report.on_text(0, "late")
    report.on_usage(TokenUsage(100, 100))
    assert (shown, report.usage) == (["in ? time"], TokenUsage(3, 4))


@pytest.mark.parametrize("streamed", ["x" * 8000, ""])
async def test_answer_without_usage_is_billed_by_its_size(streamed: str) -> None:
    report = report_of()

    async def run(given: ModelCallReport) -> ModelCallAnswer:
        given.on_text(0, streamed)
        return ModelCallAnswer(result=1, text="x" * 8000, usage=TokenUsage())

    (_, message), _ = answer_entries(report, await report.make(run), ControlStep("ask", "1"))
    assert isinstance(message, AssistantMessage)
    assert (message.usage, message.usage_estimated) == (TokenUsage(10, 2000), True)


async def test_late_attempt_names_its_timeout() -> None:
    report = AttemptReport("task", 2, attempt(), 0.01, lambda _block, _text: None, lambda: None)

    async def run(_given: ModelCallReport) -> ModelCallAnswer:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        await report.make(run)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "\x01" * 400_000])
def test_an_answer_of_any_size_fits_into_one_commit(text: str) -> None:
    entries = answer_entries(
        report_of(),
        ModelCallAnswer(result=1, text=text, usage=TokenUsage(1, 1)),
        ControlStep("ask", f'"{"r" * 250_000}"'),
    )
    assert sum(map(size_bytes, entries)) <= MAX_BYTES
    (_, message), (_, recorded) = entries
    assert isinstance(message, AssistantMessage)
    assert text.startswith(message.content[0]["text"])
    assert isinstance(recorded, ControlStep)


def test_size_of_a_prompt_names_the_call_of_the_largest_part() -> None:
    point = ResumePoint()
    for index, content in enumerate(("short", "x" * 1000)):
        point.intents[f"2.{index}"] = ToolIntent(f"2.{index}", "", "big", "{}")
        point.outcomes[f"2.{index}"] = Outcome(OutcomeStatus.SUCCEEDED, content)
    part = PromptPart(name="the result of big", size_bytes=3_250_000, tool="big")
    request = ModelCallRequest(model="claude-x", input_tokens=900_000, max_output_tokens=10, largest_part=part)
    said = (
        "the prompt has up to 900,000 tokens, the window of claude-x 200,000; its largest part is the result of big, "
    )
    assert size_of_prompt(point, request) == said + "call 2.1, 3.1 MiB"
    assert size_of_prompt(point, replace(request, input_tokens=90_000)) == ""
    denied = Transition(TaskState.COST_EXCEEDED, Reason.MONEY_LIMIT, "no")
    assert after_denial(point, request, denied).reason == Reason.CONTEXT_WINDOW_EXCEEDED
    assert after_denial(point, replace(request, input_tokens=300_000), denied) is denied


def test_refusal_of_a_large_request_names_its_largest_part() -> None:
    report = AttemptReport("task", 2, attempt(), 60.0, lambda *_: None, lambda: None, "its largest part is big")
    refused = CallFailure(ControlFailure("INVALID_REQUEST", "too long", retryable=False), 400)
    assert report.with_size(refused).failure.message == "too long (its largest part is big)"
    busy = CallFailure(ControlFailure("OVERLOADED", "busy", retryable=True), 529)
    assert report.with_size(busy) is busy
