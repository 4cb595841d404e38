"""What the record of code gives to its replay, and where such a replay differs: the rules, on ledgers made by hand."""

from __future__ import annotations

from dataclasses import replace

from tenure.agents.pydantic_ai.model_calls import model_named
from tenure.domain.control import INTERRUPTED, MESSAGES
from tenure.domain.entries import (
    Body,
    ControlFailure,
    ControlStep,
    Entry,
    ModelAttempt,
    Submitted,
    ToolIntent,
    Transition,
    UserMessage,
)
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.replay import divergences
from tenure.domain.replay_of_code import NOT_RECORDED_CLASS, RecordedCode
from tenure.domain.states import TaskState
from tenure.domain.task import REPLAY_LOOP, AgentSpec, ControlWork, TaskSpec

SPEC = TaskSpec("", AgentSpec("control"), control=ControlWork("shop"))
END: tuple[int, Body] = (0, Transition(TaskState.SUCCEEDED, "FUNCTION_RETURNED"))


def ledger(*bodies: tuple[int, Body]) -> list[Entry]:
    begun: tuple[tuple[int, Body], ...] = ((0, Submitted(SPEC)), (0, Transition(TaskState.QUEUED, "SUBMITTED")))
    return [Entry(number, step, body) for number, (step, body) in enumerate((*begun, *bodies), 1)]


def step(number: int, name: str, result: str = "1") -> tuple[int, Body]:
    return number, ControlStep(name, result)


def attempt(number: int, tokens: int = 10) -> tuple[int, Body]:
    return number, ModelAttempt(1, "m", tokens, 1, 1)


def call(number: int, tool: str) -> tuple[int, Body]:
    return number, ToolIntent(f"{number}.0", "", tool, "{}")


def message(text: str) -> tuple[int, Body]:
    return 0, UserMessage(text, f"r-{text}")


def replaying(*bodies: tuple[int, Body]) -> ResumePoint:
    return fold(ledger(*bodies))


def failure_of(recorded: ControlStep) -> str:
    return "" if recorded.failure is None else recorded.failure.error_class


def test_the_nth_step_of_a_name_gets_the_nth_result() -> None:
    code = RecordedCode(ledger(step(1, "pay", "1"), step(2, "mail", "2"), step(3, "pay", "3"), END))
    point = replaying(step(1, "mail"), step(2, "pay"))
    assert code.step(point, 1, "pay", only_looks=False).result_json == "1"
    assert code.step(point, 3, "pay", only_looks=False).result_json == "3"
    assert failure_of(code.step(point, 3, "mail", only_looks=False)) == NOT_RECORDED_CLASS
    assert code.step(point, 3, "mail", only_looks=True).result_json == "2"
    assert failure_of(code.step(point, 3, "other", only_looks=True)) == NOT_RECORDED_CLASS


def test_a_step_that_ended_the_run_fails_again() -> None:
    failed = ControlFailure("OSError", "the bank is closed", retryable=True)
    code = RecordedCode(ledger(step(1, "pay"), (1, failed), (1, Transition(TaskState.FAILED, "FUNCTION_FAILED"))))
    again = code.step(replaying(step(1, "pay")), 2, "mail", only_looks=False)
    assert again.failure == replace(failed, retryable=False)
    assert failure_of(code.step(replaying(), 1, "mail", only_looks=False)) == NOT_RECORDED_CLASS


def test_only_the_same_request_gets_the_recorded_answer() -> None:
    """The same one has the same model and the same bound of its input."""
    code, point = RecordedCode(ledger(attempt(1), step(1, "shop: model", '"Hi"'), END)), replaying()
    assert code.model_call(point, 1, "shop: model", "m", 10).result_json == '"Hi"'
    for model, tokens, name in [("other", 10, "shop: model"), ("m", 11, "shop: model"), ("m", 10, "bank: model")]:
        refused = code.model_call(point, 1, name, model, tokens)
        assert failure_of(refused) == NOT_RECORDED_CLASS
    assert failure_of(code.model_call(replaying(step(1, "shop: model")), 2, "shop: model", "m", 10)) != ""


def test_messages_are_due_at_the_steps_that_read_them() -> None:
    record = ledger(message("a"), message("b"), step(1, MESSAGES, "2"), attempt(2), step(2, "m"), message("c"))
    code = RecordedCode([*record, Entry(9, 3, ControlStep(MESSAGES, "3"))])
    assert [each.text for each in code.messages_due(1, [])] == ["a", "b"]
    assert [each.text for each in code.messages_due(3, [UserMessage("a", "r-a")])] == ["b", "c"]
    assert code.messages_due(0, []) == []


def test_each_note_of_undone_calls_is_due_once() -> None:
    """Notes have no request ids. A message to the replay itself is not one of the record."""
    notes = [UserMessage("undone: 1.0", ""), UserMessage("undone: 2.0", ""), UserMessage("undone: 2.0", "")]
    code = RecordedCode(ledger(*((0, note) for note in notes), step(1, MESSAGES, "3")))
    other = UserMessage("hello", "r-hello")
    for read in range(4):
        assert code.messages_due(1, [*notes[:read], other]) == notes[read:]


def test_a_replay_reads_the_message_before_the_interrupted_call() -> None:
    """The record has the call that a message interrupted, the replay does not: they do not diverge."""
    stopped: tuple[int, Body] = (1, ControlStep("m", failure=INTERRUPTED))
    read = [message("a"), stopped, step(2, MESSAGES, "1"), attempt(3, 20), step(3, "m", "2")]
    record = ledger(attempt(1), *read, call(4, "pay"), message("b"), step(5, MESSAGES, "2"), END)
    code = RecordedCode(record)
    assert [each.text for each in code.messages_due(1, [])] == ["a"]
    assert [each.text for each in code.messages_due(4, [])] == ["a", "b"]
    point = replaying(message("a"), step(1, MESSAGES, "1"))
    assert code.model_call(point, 2, "m", "m", 20).result_json == "2"
    replay = [message("a"), step(1, MESSAGES, "1"), attempt(2), step(2, "m"), call(3, "pay")]
    assert divergences(record, ledger(*replay, message("b"), step(4, MESSAGES, "2"), END)) == []


def test_a_replay_of_code_names_the_first_other_step() -> None:
    recorded = ledger(step(1, "pay"), call(2, "refund"), message("a"), step(3, MESSAGES, "1"), step(4, "mail"), END)
    assert divergences(recorded, recorded) == []
    other = ledger(step(1, "pay"), call(2, "close"), step(3, "mail"), END)
    assert [str(each) for each in divergences(recorded, other)] == [
        "step 2: expected the call refund {}; got the call close {}",
        "step 3: expected the message 'a'; got no message",
    ]
    failed = ControlStep("pay", failure=ControlFailure("E", "e", retryable=False))
    (first, *_) = divergences(recorded, ledger((1, failed)))
    assert (first.expected, first.got) == ("the step pay", "the step pay, which failed")


def test_a_replay_of_code_needs_the_worker_with_its_record() -> None:
    assert SPEC.dispatch_loop == "control.shop"
    assert replace(SPEC, agent=AgentSpec(REPLAY_LOOP)).dispatch_loop == REPLAY_LOOP


def test_pydantic_ai_finds_models_of_the_ledger() -> None:
    names = {"claude-x": "anthropic:claude-x", "openai/gpt-5": "openai:gpt-5", "google-gla:g": "google-gla:g"}
    assert {name: model_named(name) for name in names} == names
