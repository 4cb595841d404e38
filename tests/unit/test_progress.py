"""The brake for agents that repeat themselves: what counts, what the model reads, and how the task leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, product
from typing import Any

import pytest

from services.worker.transitions import after_failure
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.fold import ResumePoint
from tenure.domain.next_action import CallModel, Leave, next_action, with_notes, without_progress
from tenure.domain.progress import MARK
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import ControlWork, NoProgressPolicy, TaskPolicy, TaskSpec
from tenure.domain.tools import UNUSABLE_CALL, Outcome, OutcomeStatus
from tenure.domain.waits import WaitAnswerKind, WaitKind

Made = tuple[str, str, Outcome]
"""A call: the tool, its arguments, and what it came to."""
MOST_STEPS = 200


def failed(content: str = "no such order", arguments: str = '{"order": 7}', tool: str = "refund") -> Made:
    return tool, arguments, Outcome(OutcomeStatus.FAILED, content)


def read(content: str = "running", arguments: str = "{}", seconds: float = 0.1, tool: str = "status") -> Made:
    return tool, arguments, Outcome(OutcomeStatus.SUCCEEDED, content, duration_seconds=seconds)


class Run:
    """Plays an agent without a model: each step makes calls, with what the worker adds to their outcomes."""

    def __init__(self, policy: NoProgressPolicy = NoProgressPolicy.END, control: ControlWork | None = None) -> None:
        self.point, self.entries = ResumePoint(), list[facts.Entry]()
        self.step, self.notes = 0, dict[int, str]()
        self.control = control
        spec = TaskSpec("g", policy=TaskPolicy(on_no_progress=policy), control=control)
        self.add(facts.Submitted(spec))
        self.add(facts.Transition(TaskState.QUEUED, "SUBMITTED"))

    def add(self, body: facts.Body) -> None:
        entry = facts.Entry(len(self.entries) + 1, self.step, body)
        self.entries.append(entry)
        self.point.apply(entry)

    def make(self, *calls: Made, stop: str = "tool_use") -> facts.Transition | None:
        """Makes one step. Returns the transition with which the task leaves."""
        self.step += 1
        blocks = tuple({"type": "tool_use", "id": f"t{self.step}.{i}", "name": "x"} for i in range(len(calls)))
        self.add(facts.ModelAttempt(1, "m", 10, 20, 30))
        self.add(facts.AssistantMessage(1, blocks, stop, TokenUsage(1, 1)))
        self.step += self.control is not None  # the calls of a function are a step of their own
        outcomes = []
        for index, (tool, arguments, outcome) in enumerate(calls):
            self.add(facts.ToolIntent(f"{self.step}.{index}", f"t{self.step}.{index}", tool, arguments))
            settled = facts.ToolOutcome(f"{self.step}.{index}", outcome)
            if outcome.detail == UNUSABLE_CALL:  # in the commit of the answer
                self.add(settled)
            else:
                outcomes.append(settled)
        noted = with_notes(self.point, outcomes)
        before = without_progress(self.point, noted)
        for each in noted:
            self.add(each)
            if each.outcome.note:
                self.notes[self.step] = each.outcome.note
        assert without_progress(self.point) == before, "the next owner decides alike"
        return before

    def steps_until_end(self, calls: Iterator[Sequence[Made]]) -> tuple[int, facts.Transition | None]:
        for number, step in enumerate(islice(calls, MOST_STEPS), 1):
            if (left := self.make(*step)) is not None:
                return number, left
        return MOST_STEPS, None


def test_equal_failures_are_limited() -> None:
    run = Run()
    number, end = run.steps_until_end([failed()] for _ in count())
    assert (number, list(run.notes)) == (6, [3])
    assert run.notes[3].startswith(MARK)
    assert "made 3 times with the same arguments and failed in the same way (FAILED: no such order)" in run.notes[3]
    assert "After 3 more such steps the task ends." in run.notes[3]
    assert end is not None
    assert (end.to_state, end.reason) == (TaskState.FAILED, "NO_PROGRESS")
    assert end.message == (
        'the agent repeats itself: refund {"order": 7} was made 6 times with the same arguments and failed in the same '
        "way (FAILED: no such order)"
    )
    assert next_action(run.point) == Leave(end)


def test_model_reads_the_note_after_the_outcome() -> None:
    run = Run()
    for _ in range(3):
        run.make(failed())
    (block,) = run.point.pending_content
    assert block["content"] == f"no such order\n\n{run.notes[3]}"


@pytest.mark.parametrize(
    ("cycle", "most"),
    [
        ([[failed("a")], [failed("b", tool="mail")]], 7),
        ([[failed("a")], [failed("b")], [failed("c", tool="mail")]], 8),
        ([[failed(arguments=f'{{"order": {number}}}')] for number in range(4)], 9),
        ([[failed()], [read()]], 11),
        ([[failed(), read()]], 6),
    ],
    ids=["two failures", "three", "four", "a failure and a read", "in one step"],
)
def test_cycle_of_failures_ends(cycle: Sequence[Sequence[Made]], most: int) -> None:
    run = Run()
    number, end = run.steps_until_end(cycle[index % len(cycle)] for index in count())
    assert end is not None
    assert (end.reason, number, len(run.notes)) == ("NO_PROGRESS", most, 1)


def test_times_and_ids_of_failures_are_not_compared() -> None:
    run = Run()
    texts = (f"refused at 2026-11-29T02:{number % 60:02d}:07Z, request {number:08x}a1" for number in count())
    number, end = run.steps_until_end([failed(text)] for text in texts)
    assert (number, end is not None) == (6, True)


@pytest.mark.parametrize(
    "steps",
    [
        ([read(f"{number} %")] for number in count()),
        ([failed(arguments=f'{{"order": {number}}}')] for number in count()),
        ([failed()] if number % 2 else [read(str(number), tool="edit")] for number in count()),
        ([failed(f"HTTP {500 + number}")] for number in count()),
        ([failed(), read(str(number))] for number in count()),
        ([("sleep", "{}", Outcome(OutcomeStatus.SUCCEEDED, "", duration_seconds=60.0))] for _ in count()),
        ([read(seconds=30.0)] for _ in count()),
        ([read("", tool="sleep", seconds=30.0) if number % 2 else read()] for number in count()),
        ([read("", tool="sleep", seconds=30.0) if number % 4 == 0 else read()] for number in count()),
        ([read(tool="wait_external")] for _ in count()),
        ([failed(tool="ask_user")] for _ in count()),
    ],
    ids=[
        "a poll that changes",
        "other arguments",
        "a test between edits",
        "another failure",
        "something new beside it",
        "a sleep",
        "a long poll",
        "a poll after each sleep",
        "polls after each sleep",
        "a wait for an event",
        "a question to a person",
    ],
)
def test_step_with_something_new_is_not_counted(steps: Iterator[Sequence[Made]]) -> None:
    run = Run()
    assert run.steps_until_end(steps) == (MOST_STEPS, None)
    assert not run.notes


def test_equal_successes_are_limited() -> None:
    run = Run()
    number, end = run.steps_until_end([read(), read("queued", '{"of": 2}')] for _ in count())
    assert (number, list(run.notes)) == (30, [10])
    assert "made 10 times with the same arguments and the same outcome" in run.notes[10]
    assert end is not None
    assert end.reason == "NO_PROGRESS"


def test_long_word_is_compared_at_once() -> None:
    """The whole worker stands still meanwhile: it took minutes before."""
    run = Run()
    number, _ = run.steps_until_end([failed("." * 65_536)] for _ in count())
    assert number == 6


def test_refused_sub_agents_are_counted() -> None:
    refused = ("spawn_sub_agents", '{"goals": ["a"]}', Outcome(OutcomeStatus.NOT_ALLOWED, "the tree is full"))
    number, end = Run().steps_until_end([refused] for _ in count())
    assert (number, end is not None) == (6, True)


def test_order_of_arguments_is_not_compared() -> None:
    run = Run()
    forms = ('{"a": 1, "b": 2}', '{"b":2,"a":1}')
    number, end = run.steps_until_end([failed(arguments=forms[index % 2])] for index in count())
    assert (number, end is not None) == (6, True)


@pytest.mark.parametrize(("policy", "told"), [(NoProgressPolicy.TELL, 1), (NoProgressPolicy.IGNORE, 0)])
def test_policy_that_never_ends(policy: NoProgressPolicy, told: int) -> None:
    run = Run(policy)
    assert run.steps_until_end([failed()] for _ in count()) == (MOST_STEPS, None)
    assert len(run.notes) == told


def test_policy_ask_waits_for_a_person() -> None:
    run = Run(NoProgressPolicy.ASK)
    number, left = run.steps_until_end([failed()] for _ in count())
    assert left is not None
    assert left.wait is not None
    assert (number, left.to_state, left.reason) == (6, TaskState.WAITING_USER, "NO_PROGRESS")
    assert (left.wait.kind, left.wait.options, left.wait.call_id) == (WaitKind.NO_PROGRESS, ("continue",), "")
    assert left.wait.question.startswith("May the task go on? The agent repeats itself: refund")
    run.add(left)
    answer = ("w", "", WaitKind.NO_PROGRESS, WaitAnswerKind.DECISION, "continue")
    run.add(facts.WaitResolution(*answer, comment="Order 7 is order 70."))
    run.add(facts.Transition(TaskState.QUEUED, "WAIT_RESOLVED", from_state=TaskState.WAITING_USER))
    assert next_action(run.point) == CallModel(7, 1)
    assert run.point.pending_content[-1] == {"type": "text", "text": "Order 7 is order 70."}
    assert run.steps_until_end([failed()] for _ in count())[0] == 5, "the newest step before counts as the first"


@pytest.mark.parametrize(
    "entries",
    [
        [facts.UserMessage("try 8", "r")],
        [
            facts.Transition(TaskState.FAILED, "NO_PROGRESS", from_state=TaskState.RUNNING),
            facts.Transition(TaskState.QUEUED, "OPERATOR_REQUEUE", from_state=TaskState.FAILED),
        ],
    ],
    ids=["a message", "a requeue"],
)
def test_counting_begins_anew_after_help(entries: Sequence[facts.Body]) -> None:
    run = Run()
    for _ in range(5):
        run.make(failed())
    for body in entries:
        run.add(body)
    assert run.steps_until_end([failed()] for _ in count())[0] == 5, "the newest step before counts as the first"


def unusable(content: str = "The arguments cannot be read") -> Made:
    return "save", "{}", Outcome(OutcomeStatus.INVALID_ARGUMENTS, content, detail=UNUSABLE_CALL)


def bad_json(run: Run, number: int) -> facts.Transition | None:
    return run.make(unusable(f"received {number * 'a'}"))


def bad_json_beside_a_repeat(run: Run, _number: int) -> facts.Transition | None:
    return run.make(read(), unusable())


def cut_call(run: Run, _number: int) -> facts.Transition | None:
    return run.make(unusable("This call was cut off"), stop="max_tokens")


def cut_call_beside_a_repeat(run: Run, _number: int) -> facts.Transition | None:
    return run.make(read(), unusable("This call was cut off"), stop="max_tokens")


def cut_thought(run: Run, _number: int) -> facts.Transition | None:
    return run.make(stop="max_tokens")


def empty(run: Run, _number: int) -> facts.Transition | None:
    return run.make(stop="end_turn")


def too_many_calls(run: Run, _number: int) -> facts.Transition | None:
    run.step += 1
    run.add(facts.ModelAttempt(1, "m", 10, 20, 30))
    failure = facts.ModelFailure(1, "ANSWER_TOO_LARGE", "300 calls", retryable=True)
    verdict = after_failure(run.point, failure, RetryPolicy(), 0.0)
    run.add(failure)
    return verdict if isinstance(verdict, facts.Transition) else None


ANSWERS = {
    bad_json: ("MODEL_ANSWER_UNUSABLE", f"a call of save: received {3 * 'a'}"),
    bad_json_beside_a_repeat: ("MODEL_ANSWER_UNUSABLE", "a call of save: The arguments cannot be read"),
    cut_call: ("MODEL_TRUNCATED", "a call of save: This call was cut off"),
    cut_call_beside_a_repeat: ("MODEL_TRUNCATED", "a call of save: This call was cut off"),
    cut_thought: ("MODEL_TRUNCATED", "it was cut off at the output limit"),
    empty: ("MODEL_EMPTY_ANSWER", "it had neither text nor calls"),
    too_many_calls: ("MODEL_ANSWER_UNUSABLE", "ANSWER_TOO_LARGE: 300 calls"),
}


@pytest.mark.parametrize("policy", NoProgressPolicy)
def test_third_answer_in_a_row_that_cannot_be_used_ends_the_task(policy: NoProgressPolicy) -> None:
    """Whatever the mixture: the same prompt buys the same answer."""
    for kinds in product(ANSWERS, repeat=3):
        run = Run(policy)
        run.make(read())
        first, second, end = (kind(run, number) for number, kind in enumerate(kinds, 1))
        reason, received = ANSWERS[kinds[-1]]
        assert first is second is None, kinds
        assert end is not None, kinds
        assert (end.to_state, end.reason) == (TaskState.FAILED, reason), kinds
        assert end.message == f"3 answers of the model in a row could not be used. The last one: {received}"


def test_answer_that_can_be_used_begins_the_count_anew() -> None:
    run = Run()
    for number in range(MOST_STEPS // 3):
        assert bad_json(run, number) is bad_json(run, number) is run.make(read(str(number))) is None


def test_cut_answer_that_brings_something_new_is_not_counted() -> None:
    """An agent that writes many files at once has all of them after a few such answers."""
    run = Run()
    for number in range(MOST_STEPS):
        assert run.make(read(str(number)), unusable("This call was cut off"), stop="max_tokens") is None


def test_function_with_a_model_has_a_limit_of_failures() -> None:
    function = ControlWork("shop")
    number, end = Run(control=function).steps_until_end([failed()] for _ in count())
    assert (number, end is not None) == (6, True)
    assert Run(control=function).steps_until_end([read()] for _ in count()) == (MOST_STEPS, None)


def test_function_without_a_model_has_no_limit() -> None:
    run = Run(control=ControlWork("poll"))
    for step in range(1, 50):
        run.step = step
        run.add(facts.ToolIntent(f"{step}.0", "", "status", "{}"))
        outcome = facts.ToolOutcome(f"{step}.0", failed()[2])
        assert with_notes(run.point, [outcome]) == [outcome]
        run.add(outcome)
        assert without_progress(run.point) is None


def test_every_prefix_of_a_history_decides_alike() -> None:
    """A takeover, a replay and a fork fold the same entries."""
    run = Run()
    run.steps_until_end([failed()] for _ in count())
    decisions: Callable[[Any], Any] = lambda entries: without_progress(_folded(entries))  # noqa: E731
    assert [decisions(run.entries[:end]) is None for end in range(2, len(run.entries))] == [True] * (
        len(run.entries) - 2
    )
    assert decisions(run.entries) is not None


def _folded(entries: Sequence[facts.Entry]) -> ResumePoint:
    point = ResumePoint()
    for entry in entries:
        point.apply(entry)
    return point
