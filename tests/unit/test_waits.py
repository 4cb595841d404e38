"""Waits by the rules: which calls wait, what their arguments make, which answers fit, and what the model reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.domain.budget import TokenUsage
from tenure.domain.entries import (
    AssistantMessage,
    Entry,
    ModelAttempt,
    Submitted,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    WaitResolution,
)
from tenure.domain.fold import fold
from tenure.domain.next_action import CallModel, ExecuteTools, next_action
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, TaskSpec
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus, ToolDefinition
from tenure.domain.waiting_calls import move_to_wait, wait_of
from tenure.domain.waits import (
    NO_ANSWER,
    TOOL_DECISIONS,
    Wait,
    WaitAnswer,
    WaitAnswerKind,
    WaitDeadlinePolicy,
    WaitKind,
    outcome_of_answer,
    refuse_answer,
)

DECISION, REPLY, PAYLOAD = WaitAnswerKind.DECISION, WaitAnswerKind.REPLY, WaitAnswerKind.PAYLOAD


def intent(tool: Any, call_id: str = "1.0", **arguments: Any) -> Any:
    return ToolIntent(call_id, f"use-{call_id}", tool, json.dumps(arguments))


def turn(
    *intents: Any,
    approve: Any = (),
    tools: Any = ("request_approval", "ask_user", "wait_external", "pay", "read"),
    more: Any = (),
) -> Any:
    """The point after an answer with these calls, and after `more`."""
    defined = tuple(ToolDefinition(name, "", "{}", EffectClass.UNSAFE) for name in tools)
    bodies = [
        Submitted(TaskSpec("do it", AgentSpec(approve_tools=approve))),
        ToolsDefined(defined),
        ModelAttempt(1, "m", 1, 1, 2),
        AssistantMessage(1, (), "tool_use", TokenUsage()),
        *intents,
        *more,
    ]
    return fold(Entry(number, 1, body) for number, body in enumerate(bodies, 1))


def approval(call_id: str = "1.0", answer: str = "allow", **fields: Any) -> Any:
    return WaitResolution("w1", call_id, WaitKind.TOOL_APPROVAL, DECISION, answer, **fields)


def test_calls_that_ask_wait_and_the_others_are_run_first() -> None:
    calls = (intent("read", "1.0"), intent("ask_user", "1.1", question="?"), intent("pay", "1.2"))
    move = next_action(turn(*calls, approve=("pay",)))
    assert move == ExecuteTools(1, calls[:1], calls[1:])


def test_a_tool_that_the_task_does_not_have_is_not_waited_for() -> None:
    call = intent("ask_user", question="?")
    assert next_action(turn(call, tools=("read",))) == ExecuteTools(1, (call,))


def test_approved_call_is_run_as_approved() -> None:
    call = intent("pay", amount=100)
    assert next_action(turn(call, approve=("pay",), more=[approval()])) == ExecuteTools(1, (call,))
    given = approval(answer="edit", edited_arguments_json='{"amount": 5}', comment="less")
    point = turn(call, approve=("pay",), more=[given])
    move = next_action(point)
    assert isinstance(move, ExecuteTools)
    (edited,) = move.intents
    assert (edited.call_id, json.loads(edited.arguments_json)) == ("1.0", {"amount": 5})
    done = turn(call, approve=("pay",), more=[given, ToolOutcome("1.0", Outcome(OutcomeStatus.SUCCEEDED, "paid"))])
    assert isinstance(next_action(done), CallModel)
    assert [part["type"] for part in done.pending_content] == ["tool_result", "text"]
    assert "less" in done.pending_content[-1]["text"]


def test_approval_is_for_one_call() -> None:
    calls = (intent("pay", "1.0"), intent("pay", "1.1"))
    assert next_action(turn(*calls, approve=("pay",), more=[approval("1.0")])) == ExecuteTools(1, calls[:1], calls[1:])


def test_arguments_make_the_wait() -> None:
    wait = wait_of(intent("request_approval", question="Ship?", options=["now", "never"], at_deadline="go_on"))
    assert isinstance(wait, Wait)
    assert (wait.kind, wait.options, wait.timeout_seconds) == (WaitKind.APPROVAL, ("now", "never"), 24 * 3600.0)
    assert wait.at_deadline is WaitDeadlinePolicy.GO_ON
    event = wait_of(intent("wait_external", correlation_id="order-1"))
    assert isinstance(event, Wait)
    assert (event.timeout_seconds, move_to_wait(event).to_state) == (7200.0, TaskState.WAITING_EXTERNAL)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ask_user", {}),
        ("ask_user", {"question": " "}),
        ("ask_user", {"question": 7}),
        ("ask_user", {"question": "?", "options": ["a"]}),
        ("request_approval", {"question": "?", "options": ["a", "a"]}),
        ("request_approval", {"question": "?", "options": [1]}),
        ("request_approval", {"question": "?", "options": [["a"]]}),
        ("request_approval", {"question": "?", "timeout_seconds": 0}),
        ("request_approval", {"question": "?", "timeout_seconds": True}),
        ("request_approval", {"question": "?", "at_deadline": "never"}),
        ("request_approval", {"question": "?", "at_deadline": ["time_out"]}),
        ("wait_external", {}),
    ],
)
def test_arguments_that_make_no_wait_are_an_outcome(tool: str, arguments: Any) -> None:
    outcome = wait_of(intent(tool, **arguments))
    assert isinstance(outcome, Outcome)
    assert outcome.status is OutcomeStatus.INVALID_ARGUMENTS


def test_arguments_without_an_object_are_an_outcome() -> None:
    for text in ("[]", "{", "7", "[" * 100_000):
        assert isinstance(wait_of(ToolIntent("1.0", "u", "ask_user", text)), Outcome)


def test_model_reads_the_answer_with_its_author() -> None:
    wait = Wait(WaitKind.EVENT, "1.0", correlation_id="c")
    outcome = outcome_of_answer(wait, WaitAnswer(PAYLOAD, '{"n": [1]}'), actor="carol", at="2026-01-01T00:00:00+00:00")
    assert outcome is not None
    assert json.loads(outcome.content) == {
        "payload": {"n": [1]},
        "answered_by": "carol",
        "answered_at": "2026-01-01T00:00:00+00:00",
    }


def test_a_missing_answer_approves_no_call() -> None:
    wait = Wait(WaitKind.TOOL_APPROVAL, "1.0", options=TOOL_DECISIONS, tool="pay")
    outcome = outcome_of_answer(wait, NO_ANSWER, actor="checkpoint", at="then")
    assert outcome is not None
    assert outcome.status is OutcomeStatus.NOT_ALLOWED


def test_an_event_is_not_answered_by_a_person() -> None:
    assert refuse_answer(Wait(WaitKind.EVENT, "1.0", correlation_id="c"), WaitAnswer(REPLY, "x")) is not None
    assert refuse_answer(Wait(WaitKind.QUESTION, "1.0", "?"), WaitAnswer(DECISION, "approve")) is not None
    assert refuse_answer(Wait(WaitKind.QUESTION, "1.0", "?"), WaitAnswer(REPLY, "x")) is None
