"""What a record gives to a replay, and where a replay differs from it: the rules, on ledgers made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.client.replays import replay_request
from tenure.domain.budget import TokenUsage
from tenure.domain.entries import (
    AssistantMessage,
    Body,
    Entry,
    ModelAttempt,
    ModelFailure,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    UserMessage,
    WaitResolution,
)
from tenure.domain.fold import fold
from tenure.domain.next_action import CONTINUE_PROMPT, next_action
from tenure.domain.replay import NOT_RECORDED, RecordedRun, divergences, messages_due
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import spawns_at_once
from tenure.domain.task import REPLAY_LOOP, AgentSpec, TaskSpec
from tenure.domain.tools import UNUSABLE_CALL, Outcome, OutcomeStatus
from tenure.domain.waits import WaitAnswerKind, WaitKind
from tenure.v1 import task_pb2

SUBMIT: tuple[int, Body] = (0, Submitted(TaskSpec("Count")))
QUEUED: tuple[int, Body] = (0, Transition(TaskState.QUEUED, "SUBMITTED"))


def ledger(*bodies: tuple[int, Body]) -> list[Entry]:
    return [Entry(number, step, body) for number, (step, body) in enumerate((SUBMIT, QUEUED, *bodies), 1)]


def attempt(step: int, number: int = 1, summary: int = 0) -> tuple[int, Body]:
    return step, ModelAttempt(number, "m", 1, 1, 1, summary)


def answer(step: int, stop: str = "end_turn", text: str = "x") -> tuple[int, Body]:
    return step, AssistantMessage(1, ({"type": "text", "text": text},), stop, TokenUsage())


def call(step: int, index: int = 0, **arguments: Any) -> tuple[int, Body]:
    return step, ToolIntent(f"{step}.{index}", "u", "append", json.dumps(arguments))


def outcome(step: int, content: str, index: int = 0) -> tuple[int, Body]:
    return step, ToolOutcome(f"{step}.{index}", Outcome(OutcomeStatus.SUCCEEDED, content))


def message(step: int, text: str, request_id: str = "r") -> tuple[int, Body]:
    return step, UserMessage(text, request_id)


def end(step: int, state: TaskState = TaskState.SUCCEEDED, reason: str = "FINAL_ANSWER") -> tuple[int, Body]:
    return step, Transition(state, reason, from_state=TaskState.RUNNING)


def texts_due(record: list[Entry], replay: list[Entry]) -> list[str]:
    point = fold(replay)
    return [due.text for due in messages_due(RecordedRun(record), point, next_action(point))]


def test_repeats_of_a_call_get_the_outcomes_in_order() -> None:
    record = ledger(attempt(1), answer(1), call(1, a=1, b=2), call(1, 1, b=2, a=1), outcome(1, "1", 1), outcome(1, "0"))
    run = RecordedRun(record)
    same = ToolIntent("9.0", "u", "append", '{"b": 2, "a": 1}')
    assert [run.outcome(same, repeat).content for repeat in range(3)] == ["1", "0", "0"]
    assert run.outcome(ToolIntent("9.0", "u", "append", '{"a": 1}'), 0).content == NOT_RECORDED


def test_outcome_without_its_call_is_not_a_recording() -> None:
    unusable = (1, ToolOutcome("1.0", Outcome(OutcomeStatus.INVALID_ARGUMENTS, "cut off", detail=UNUSABLE_CALL)))
    record = ledger(attempt(1), answer(1), call(1), unusable, attempt(2), answer(2), call(2), outcome(2, "ran"))
    made = ToolIntent("9.0", "u", "append", "{}")
    assert RecordedRun(record).outcome(made, 0).content == "ran"


def test_a_message_belongs_to_the_step_that_read_it() -> None:
    """A call for a summary reads none, and neither does the worker's own request to continue become a message."""
    run = RecordedRun(
        ledger(
            message(0, "early"),
            attempt(1),
            message(1, "during"),
            answer(1, "max_tokens"),
            message(1, CONTINUE_PROMPT, ""),
            attempt(2, summary=1),
            answer(2),
            attempt(3),
            message(3, "in a failed attempt", "r2"),
            (3, ModelFailure(1, "OVERLOADED", "", retryable=True)),
            attempt(3, 2),
            answer(3),
            message(3, "never read", "r3"),
        )
    )
    read = {step: [one.text for one in run.messages_at(step)] for step in range(5)}
    assert read == {0: [], 1: ["early"], 2: [], 3: ["during", "in a failed attempt"], 4: []}


@pytest.mark.parametrize(
    ("replay", "due"),
    [
        ([], []),
        ([attempt(1), answer(1)], ["twice", "twice"]),
        ([attempt(1), answer(1), message(1, "twice")], ["twice"]),
        ([attempt(1), answer(1), message(1, "twice"), message(1, "twice", "r2")], []),
        ([attempt(1), answer(1), call(1)], ["twice", "twice"]),
        ([attempt(1), (1, ModelFailure(1, "OVERLOADED", "", retryable=True))], []),
    ],
)
def test_a_message_is_due_before_its_step_once(replay: list[tuple[int, Body]], due: list[str]) -> None:
    """Also if the worker opens the task again after it wrote some of them."""
    record = ledger(attempt(1), answer(1), message(1, "twice"), message(1, "twice", "r2"), attempt(2), answer(2))
    assert texts_due(record, ledger(*replay)) == due


def test_approver_message_belongs_to_the_call() -> None:
    wait = WaitResolution("w", "1.0", WaitKind.TOOL_APPROVAL, WaitAnswerKind.DECISION, "allow", comment="once")
    run = RecordedRun(ledger(attempt(1), answer(1), call(1, a=1), (1, wait), outcome(1, "ok"), attempt(2)))
    assert run.outcome(ToolIntent("5.0", "u", "append", '{"a": 1}'), 0).note == "A person allowed append and says: once"
    assert run.messages_at(2) == ()
    assert run.outcome(ToolIntent("5.0", "u", "append", '{"a": 2}'), 0).note == ""


def test_the_same_course_has_no_differences() -> None:
    """Other texts, another order of parallel calls, and failed attempts do not count."""
    record = ledger(attempt(1), answer(1), call(1, a=1), call(1, 1, a=2), attempt(2), answer(2), end(2))
    failed = (1, ModelFailure(1, "OVERLOADED", "", retryable=True))
    again = [attempt(1), failed, attempt(1, 2), answer(1, text="y"), call(1, a=2), call(1, 1, a=1)]
    assert divergences(record, ledger(*again, attempt(2), answer(2), end(2))) == []
    assert divergences(record[:-1], ledger(*again, attempt(2), answer(2), end(2))) == []


def test_each_kind_of_difference_is_named() -> None:
    record = ledger(attempt(1), answer(1), call(1, a=1), message(1, "now"), attempt(2), answer(2), end(2))
    other = ledger(attempt(1), answer(1), attempt(2), answer(2), end(2, TaskState.FAILED, "MODEL_REFUSED"))
    assert [str(each) for each in divergences(record, other)] == [
        'step 1: expected the call append {"a": 1}; got an answer without calls',
        "step 2: expected the message 'now'; got no message",
        "step 2: expected the end as SUCCEEDED (FINAL_ANSWER); got the end as FAILED (MODEL_REFUSED)",
    ]
    short = ledger(attempt(1), answer(1), call(1, a=1), end(1))
    assert [str(each) for each in divergences(record, short)] == [
        "step 2: expected an answer without calls; got the end as SUCCEEDED (FINAL_ANSWER) at step 1",
        "step 2: expected the message 'now'; got the end as SUCCEEDED (FINAL_ANSWER) at step 1",
    ]
    (longer,) = divergences(short, record)
    assert str(longer) == "step 2: expected the end as SUCCEEDED (FINAL_ANSWER); got an answer without calls"


def test_the_ledger_spawns_nothing_for_a_replay() -> None:
    assert spawns_at_once(TaskSpec("Count"), "spawn_sub_agents")
    assert not spawns_at_once(TaskSpec("Count", AgentSpec(loop=REPLAY_LOOP)), "spawn_sub_agents")


def test_a_replay_undoes_nothing_when_it_fails() -> None:
    """The effects that its ledger lists are those of the recorded run."""
    policy = task_pb2.TaskPolicy(
        on_failure=task_pb2.FAILURE_POLICY_UNDO, on_in_doubt=task_pb2.IN_DOUBT_POLICY_TELL_MODEL
    )
    made = replay_request(task_pb2.TaskSpec(goal="Pay", policy=policy), "run.jsonl", "m").spec.policy
    assert made.on_failure == task_pb2.FAILURE_POLICY_UNSPECIFIED
    assert made.on_in_doubt == policy.on_in_doubt
