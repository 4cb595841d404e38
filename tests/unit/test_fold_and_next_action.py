"""The fold of a ledger, and what the agent's loop does next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.close_out import CallOpened, CallSettled, open_calls_after
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.next_action import (
    CONTINUE_PROMPT,
    EMPTY_PROMPT,
    AskAgain,
    CallModel,
    CloseOut,
    ExecuteTools,
    JoinModelCall,
    Leave,
    StopModelCall,
    next_action,
)
from tenure.domain.retry import MAX_UNUSABLE_ANSWERS
from tenure.domain.states import TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.tools import UNUSABLE_CALL, EffectClass, Outcome, OutcomeStatus, ToolDefinition
from tenure.domain.waits import WaitAnswerKind, WaitKind

START = (0, facts.Submitted(TaskSpec(goal="find out"))), (0, facts.Transition(TaskState.QUEUED, "SUBMITTED"))


def ledger(*bodies: tuple[int, facts.Body]) -> list[facts.Entry]:
    all_of_them: tuple[tuple[int, facts.Body], ...] = (*START, *bodies)
    return [facts.Entry(number, step, body) for number, (step, body) in enumerate(all_of_them, start=1)]


def attempt(number: int = 1) -> facts.ModelAttempt:
    return facts.ModelAttempt(number, "m", 10, 20, 30)


def answer(*content: dict[str, Any], stop: str = "end_turn", number: int = 1) -> facts.AssistantMessage:
    return facts.AssistantMessage(number, content, stop, TokenUsage(10, 5))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}


def intent(call: str, name: str) -> facts.ToolIntent:
    return facts.ToolIntent(call, f"toolu_{name}", name, "{}")


def outcome(call: str, content: str) -> facts.ToolOutcome:
    return facts.ToolOutcome(call, Outcome(OutcomeStatus.SUCCEEDED, content))


CALLED_TWO = (
    (1, attempt()),
    (1, answer(text("I look"), use("a"), use("b"), stop="tool_use")),
    (1, intent("1.0", "a")),
    (1, intent("1.1", "b")),
)


def test_a_new_task_calls_the_model_with_its_goal() -> None:
    assert next_action(fold(ledger())) == CallModel(1, 1)
    sent = fold(ledger((1, attempt())))
    assert sent.messages == [{"role": "user", "content": [text("find out")]}]


def test_intents_without_outcome_are_executed() -> None:
    point = fold(ledger(*CALLED_TWO, (1, outcome("1.1", "B"))))
    move = next_action(point)
    assert isinstance(move, ExecuteTools)
    assert [open_intent.call_id for open_intent in move.intents] == ["1.0"]


def test_all_results_of_one_answer_make_one_message_in_its_order() -> None:
    outcomes = (1, outcome("1.1", "B")), (1, outcome("1.0", "A"))
    assert next_action(fold(ledger(*CALLED_TWO, *outcomes))) == CallModel(2, 1)
    sent = fold(ledger(*CALLED_TWO, *outcomes, (2, attempt())))
    results = sent.messages[-1]["content"]
    assert [(block["tool_use_id"], block["content"]) for block in results] == [("toolu_a", "A"), ("toolu_b", "B")]


def test_messages_take_effect_at_the_next_attempt() -> None:
    before = ledger(*CALLED_TWO, (0, facts.UserMessage("hurry")), (1, outcome("1.0", "A")), (1, outcome("1.1", "B")))
    sent = fold([*before, facts.Entry(len(before) + 1, 2, attempt())])
    kinds = [block["type"] for block in sent.messages[-1]["content"]]
    assert kinds == ["tool_result", "tool_result", "text"]


@pytest.mark.parametrize(
    "settled", [facts.AttemptLost(1, TokenUsage(10, 0)), facts.ModelFailure(1, "OVERLOADED", "busy", retryable=True)]
)
def test_a_lost_or_failed_call_is_the_steps_next_attempt(settled: facts.Body) -> None:
    point = fold(ledger((1, attempt()), (1, settled)))
    assert next_action(point) == CallModel(1, 2)
    resent = fold(ledger((1, attempt()), (1, settled), (1, attempt(2))))
    assert resent.messages == [{"role": "user", "content": [text("find out")]}]


def test_an_open_attempt_is_joined_with_the_same_messages() -> None:
    outliving = facts.ModelAttempt(2, "m", 10, 20, 30, outlives_worker=True)
    taken_over = (
        (0, facts.Transition(TaskState.QUEUED, "WORKER_LOST", from_state=TaskState.RUNNING)),
        (0, facts.UserMessage("meanwhile")),
        (0, facts.Transition(TaskState.RUNNING, "OPENED", from_state=TaskState.QUEUED)),
    )
    point = fold(ledger((1, outliving), *taken_over))
    assert next_action(point) == JoinModelCall(1, 2)
    assert point.messages == [{"role": "user", "content": [text("find out")]}]
    answered = fold(ledger((1, outliving), *taken_over, (1, answer(text("done"), number=2))))
    assert next_action(answered) == CallModel(2, 1)  # the message arrived during the call


def test_a_message_interrupts_the_open_attempt_once() -> None:
    """Whoever holds the task then: the next attempt has the message, and an answer that was recorded counts."""
    outliving = facts.ModelAttempt(1, "m", 10, 20, 30, outlives_worker=True)
    stop = (0, facts.UserMessage("in French", "r-1", interrupt=True))
    early = fold(ledger(stop, (1, outliving)))
    assert (early.is_interrupted, next_action(early)) == (False, JoinModelCall(1, 1))
    begun = ((1, outliving), stop)
    assert next_action(fold(ledger(*begun))) == StopModelCall()
    settled = (*begun, (1, facts.ModelFailure(1, "INTERRUPTED", "stopped", retryable=True)))
    assert next_action(fold(ledger(*settled))) == CallModel(1, 2)
    again = fold(ledger(*settled, (1, replace(outliving, attempt_number=2))))
    assert next_action(again) == JoinModelCall(1, 2)
    assert again.messages[-1]["content"] == [text("in French")]
    lost = (*begun, (1, facts.AttemptLost(1, TokenUsage(10, 0))))
    assert next_action(fold(ledger(*lost))) == CallModel(1, 2)
    assert next_action(fold(ledger(*begun, (1, answer(text("done")))))) == CallModel(2, 1)


def test_a_message_lets_a_summary_finish() -> None:
    summary = facts.ModelAttempt(1, "m", 10, 20, 30, summary_through_step=1, outlives_worker=True)
    answered = ((1, attempt()), (1, answer(text("part"), stop="max_tokens")))
    point = fold(ledger(*answered, (2, summary), (0, facts.UserMessage("in French", "r-1", interrupt=True))))
    assert next_action(point) == JoinModelCall(2, 1)


def test_the_final_answer_closes_the_task_out() -> None:
    move = next_action(fold(ledger((1, attempt()), (1, answer(text("done"))))))
    assert move == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "done")


def test_a_paused_turn_goes_on_with_the_same_messages() -> None:
    assert next_action(fold(ledger((1, attempt()), (1, answer(text("…"), stop="pause_turn"))))) == CallModel(2, 1)


def test_truncated_answer_is_continued() -> None:
    cut = ledger((1, attempt()), (1, answer(text("so f"), stop="max_tokens")))
    assert next_action(fold(cut)) == AskAgain(1, CONTINUE_PROMPT)
    nudged = [*cut, facts.Entry(len(cut) + 1, 1, facts.UserMessage("go on"))]
    assert next_action(fold(nudged)) == CallModel(2, 1)


def test_a_model_that_never_finishes_fails_with_its_text() -> None:
    bodies: list[tuple[int, facts.Body]] = []
    for step in range(1, MAX_UNUSABLE_ANSWERS + 1):
        bodies += [(step, attempt()), (step, answer(text(f"part {step}"), stop="max_tokens"))]
    message = "3 answers of the model in a row could not be used. The last one: it was cut off at the output limit"
    move = next_action(fold(ledger(*bodies)))
    assert move == Leave(facts.Transition(TaskState.FAILED, "MODEL_TRUNCATED", message, "part 3"))


def test_model_whose_calls_are_always_cut_fails_the_task() -> None:
    """Its calls are answered, and still count: the same answer would be bought until the step limit."""
    bodies: list[tuple[int, facts.Body]] = []
    for step in range(1, MAX_UNUSABLE_ANSWERS + 1):
        call = {"type": "tool_use", "id": f"t{step}", "name": "mail", "input": {}}
        intent = facts.ToolIntent(f"{step}.0", f"t{step}", "mail", "{}")
        cut = facts.ToolOutcome(f"{step}.0", Outcome(OutcomeStatus.INVALID_ARGUMENTS, "cut", detail=UNUSABLE_CALL))
        bodies += [(step, attempt()), (step, answer(call, stop="max_tokens")), (step, intent), (step, cut)]
        expected = CallModel if step < MAX_UNUSABLE_ANSWERS else Leave
        assert isinstance(next_action(fold(ledger(*bodies))), expected)
    answered = [*bodies[:4], (2, attempt()), (2, answer(text("done")))]
    assert next_action(fold(ledger(*answered))) == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "done")


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


@pytest.mark.parametrize("content", [[], [THOUGHT]], ids=["nothing", "thoughts"])
def test_empty_answer_is_asked_for_again(content: list[Any]) -> None:
    """The text of an earlier step is not the result of a task."""
    call = {"type": "tool_use", "id": "t", "name": "mail", "input": {}}
    sent = facts.ToolOutcome("1.0", Outcome(OutcomeStatus.SUCCEEDED, "sent"))
    story: list[tuple[int, facts.Body]] = [
        (1, attempt()),
        (1, answer(text("I will write that down."), call)),
        (1, facts.ToolIntent("1.0", "t", "mail", "{}")),
        (1, sent),
        (2, attempt()),
        (2, answer(*content)),
    ]
    assert next_action(fold(ledger(*story))) == AskAgain(2, EMPTY_PROMPT)
    story += [(2, facts.UserMessage(EMPTY_PROMPT)), (3, attempt())]
    said = next_action(fold(ledger(*story, (3, answer(text("done"))))))
    assert said == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "done")
    story += [(3, answer(*content)), (3, facts.UserMessage(EMPTY_PROMPT)), (4, attempt()), (4, answer(*content))]
    failed = next_action(fold(ledger(*story)))
    assert isinstance(failed, Leave)
    assert (failed.transition.to_state, failed.transition.reason) == (TaskState.FAILED, "MODEL_EMPTY_ANSWER")


@pytest.mark.parametrize("stop", ["pause_turn", "max_tokens"])
def test_unfinished_answer_without_text_is_not_an_empty_one(stop: str) -> None:
    story: list[tuple[int, facts.Body]] = [(1, attempt()), (1, answer(THOUGHT, stop=stop))]
    story += [(2, attempt()), (2, answer(THOUGHT))]
    assert next_action(fold(ledger(*story))) == AskAgain(2, EMPTY_PROMPT)


def test_an_answer_that_refuses_fails_the_task() -> None:
    move = next_action(fold(ledger((1, attempt()), (1, answer(text("no"), stop="refusal")))))
    assert isinstance(move, CloseOut)
    assert (move.to_state, move.reason, move.result) == (TaskState.FAILED, "MODEL_REFUSED", "no")


def test_an_answer_cut_by_the_window_is_requested_again_once() -> None:
    cut = answer(text("no"), stop="model_context_window_exceeded")
    once = fold(ledger((1, attempt()), (1, cut)))
    assert (next_action(once), once.must_shorten) == (CallModel(2, 1), True)
    move = next_action(fold(ledger((1, attempt()), (1, cut), (2, attempt()), (2, cut))))
    assert isinstance(move, CloseOut)
    assert (move.to_state, move.reason) == (TaskState.FAILED, "CONTEXT_WINDOW_EXCEEDED")


def test_a_ledger_with_a_hole_is_not_folded() -> None:
    point = ResumePoint()
    with pytest.raises(ValueError, match="does not follow"):
        point.apply(facts.Entry(2, 0, facts.CancelRequest("x")))


def test_folding_in_pieces_is_folding_at_once() -> None:
    entries = ledger(
        *CALLED_TWO, (1, outcome("1.0", "A")), (1, outcome("1.1", "B")), (2, attempt()), (2, answer(text("ok")))
    )
    at_once, in_pieces = fold(entries), ResumePoint()
    for entry in entries:
        in_pieces.apply(entry)
    assert at_once == in_pieces


def test_fork_ignores_earlier_validations() -> None:
    cut = [(step, answer(text("part"), stop="max_tokens")) for step in range(1, MAX_UNUSABLE_ANSWERS + 1)]
    bodies = [body for step, said in cut for body in ((step, attempt()), (step, said))]
    forked = (0, facts.Forked("t", 9, len(bodies)))
    begin = (MAX_UNUSABLE_ANSWERS, facts.Transition(TaskState.QUEUED, "FORKED"))
    entries = [facts.Entry(n, step, body) for n, (step, body) in enumerate([START[0], forked, *bodies, begin], start=1)]
    assert next_action(fold(entries)) == AskAgain(MAX_UNUSABLE_ANSWERS, CONTINUE_PROMPT)


@pytest.mark.parametrize("stop", ["refusal", "model_context_window_exceeded"])
def test_an_answer_without_effect_is_not_sent_again(stop: str) -> None:
    point = fold(ledger((1, attempt()), (1, answer(text("no"), stop=stop)), (2, attempt())))
    assert [message["role"] for message in point.messages] == ["user"]


CALLS = st.sampled_from(["1.0", "1.1", "2.0"])
FACTS = st.one_of(
    CALLS.map(lambda call: intent(call, "x")),
    CALLS.map(lambda call: outcome(call, "done")),
    st.integers(1, 3).map(attempt),
    st.just(answer(text("words"))),
    st.just(facts.Compaction(facts.Summary(1, "in short"))),
)


@given(st.lists(st.tuples(st.integers(1, 3), FACTS), max_size=12))
def test_the_folds_open_calls_match_the_ledgers_count(bodies: list[tuple[int, facts.Body]]) -> None:
    """Whatever an own loop writes between: a task whose end leaves a call out that the ledger counts never ends."""
    kept: list[tuple[int, facts.Body]] = []
    counted: tuple[str, ...] = ()
    for step, body in bodies:
        match body:
            case facts.ToolIntent():
                after = open_calls_after(counted, [CallOpened(body.call_id)])
            case facts.ToolOutcome():
                after = open_calls_after(counted, [CallSettled(body.call_id)])
            case _:
                after = counted
        if isinstance(after, tuple):  # else the ledger refuses it
            counted, kept = after, [*kept, (step, body)]
    assert tuple(one.call_id for one in fold(ledger(*kept)).open_intents) == counted


def test_an_approved_call_stays_open() -> None:
    leave = facts.WaitResolution("w", "1.0", WaitKind.TOOL_APPROVAL, WaitAnswerKind.DECISION, "edit", "", '{"a": 1}')
    point = fold(ledger((1, intent("1.0", "x")), (2, attempt()), (2, leave)))
    assert [(one.call_id, one.arguments_json) for one in point.open_intents] == [("1.0", '{"a": 1}')]


def test_a_refused_tool_is_left_out_until_the_next_attempt() -> None:
    tools = tuple(ToolDefinition(name, "", "{}", EffectClass.PURE) for name in ("a", "b"))
    refusal = facts.ModelFailure(1, "TOOL_REFUSED", "no", retryable=False, refused_tools=("a",))
    history = ledger((0, facts.ToolsDefined(tools)), (1, attempt()), (1, refusal))
    point = fold(history)
    assert [tool.name for tool in point.shown_tools] == ["b"]
    assert (point.failures, next_action(point)) == ([], CallModel(1, 2))
    moves = [
        facts.Transition(TaskState.FAILED, "MODEL_REJECTED", from_state=TaskState.RUNNING),
        facts.Transition(TaskState.QUEUED, "REQUEUED", from_state=TaskState.FAILED),
    ]
    again = fold([*history, *(facts.Entry(len(history) + 1 + n, 1, move) for n, move in enumerate(moves))])
    assert [tool.name for tool in again.shown_tools] == ["a", "b"]
