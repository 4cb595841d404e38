"""Long conversations: when they are made shorter, by what, and that what is sent stays one the provider takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.simulator.request_checks import check_conversation
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.compaction import (
    KEPT_STEPS,
    SUMMARY_REQUEST,
    RequestSummary,
    Window,
    WindowExhausted,
    next_compaction,
    shortened,
    summary_messages,
    summary_output_tokens,
    window_of,
)
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.images import Image
from tenure.domain.next_action import CallModel, CloseOut, next_action
from tenure.domain.states import TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.texts import kept_as
from tenure.domain.tools import Outcome, OutcomeStatus
from tests.support.examples import examples

GOAL = "find out"
WINDOW = Window(tokens=10_000, output_tokens=2_000)
FULL = WINDOW.near + 1
BIG = "result " * 1500


class Story:
    """A ledger that is written turn by turn."""

    def __init__(self) -> None:
        self.entries: list[facts.Entry] = []
        self.step = 0
        self.say(facts.Submitted(TaskSpec(goal=GOAL)), facts.Transition(TaskState.QUEUED, "SUBMITTED"))

    @property
    def point(self) -> ResumePoint:
        return fold(self.entries)

    def say(self, *bodies: facts.Body) -> None:
        for body in bodies:
            self.entries.append(facts.Entry(len(self.entries) + 1, self.step, body))

    def ask(self, through_step: int = 0) -> None:
        self.step += 1
        self.say(facts.ModelAttempt(1, "m", 10, 20, 30, through_step))

    def turn(
        self, result: str | None = "r", calls: int = 1, stop: str = "", path: str = "", images: tuple[Image, ...] = ()
    ) -> None:
        """An answer, with calls that all have this result; None: no calls."""
        self.ask()
        count = 0 if result is None else calls
        uses = [{"type": "tool_use", "id": f"u{self.step}_{n}", "name": "t", "input": {"n": n}} for n in range(count)]
        content = ({"type": "thinking", "thinking": "hm", "signature": "s"}, text(f"turn {self.step}"), *uses)
        stop = stop or ("tool_use" if uses else "end_turn")
        self.say(facts.AssistantMessage(1, content, stop, TokenUsage(100, 5)))
        self.say(*(facts.ToolIntent(f"{self.step}.{n}", f"u{self.step}_{n}", "t", "{}") for n in range(count)))
        outcome = Outcome(OutcomeStatus.SUCCEEDED, result or "", output_path=path, images=images)
        self.say(*(facts.ToolOutcome(f"{self.step}.{n}", outcome) for n in range(count)))

    def summarise(self, through_step: int, words: str = "so far so good") -> None:
        self.ask(through_step)
        self.say(facts.AssistantMessage(1, (text(words),), "end_turn", TokenUsage(50, 5)))
        self.say(facts.Compaction(facts.Summary(through_step, words)))

    def sent(self) -> list[dict[str, Any]]:
        """What the next turn's call sends."""
        after = fold(
            [*self.entries, facts.Entry(len(self.entries) + 1, self.step + 1, facts.ModelAttempt(1, "m", 1, 2, 3))]
        )
        return after.messages


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def results(messages: list[dict[str, Any]]) -> list[str]:
    return [block["content"] for message in messages for block in message["content"] if block["type"] == "tool_result"]


def story_of_turns(turns: int, result: str = BIG) -> Story:
    story = Story()
    for _ in range(turns):
        story.turn(result)
    return story


def test_short_conversation_is_unchanged() -> None:
    assert next_compaction(story_of_turns(9).point, WINDOW.near, WINDOW) is None


def test_old_results_are_cleared_first_and_the_newest_stay() -> None:
    story = story_of_turns(6)
    cleared = next_compaction(story.point, FULL, WINDOW)
    assert isinstance(cleared, facts.ClearedResults)
    assert (cleared.through_step, cleared.results, cleared.input_tokens_before) == (6 - KEPT_STEPS, 3, FULL)
    assert cleared.input_tokens_after < FULL - 3 * len(BIG) // 5
    story.say(facts.Compaction(cleared))
    sent = results(story.sent())
    assert [result == BIG for result in sent] == [False] * 3 + [True] * KEPT_STEPS
    assert next_action(story.point) == CallModel(7, 1)


def test_cleared_result_names_its_entry() -> None:
    story = Story()
    story.turn(BIG, path="outputs/1.0.txt")
    story.turn(BIG)
    story.say(facts.Compaction(facts.ClearedResults(1, 1, 9, 5)))
    assert "outputs/1.0.txt" in results(story.sent())[0]


def test_results_that_save_little_lead_to_a_summary() -> None:
    assert next_compaction(story_of_turns(6, "short").point, FULL, WINDOW) == RequestSummary(5)


def test_result_is_cleared_once() -> None:
    story = story_of_turns(6)
    story.say(facts.Compaction(facts.ClearedResults(3, 3, FULL, FULL)))
    assert isinstance(next_compaction(story.point, FULL, WINDOW), RequestSummary)


def test_a_small_newest_turn_is_kept_beside_the_summary() -> None:
    story = story_of_turns(2, "short")
    assert next_compaction(story.point, FULL, WINDOW) == RequestSummary(1)
    story.summarise(1)
    sent = story.sent()
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[0]["content"][0] == text(GOAL)
    assert "so far so good" in sent[0]["content"][1]["text"]
    assert (sent[1]["content"][0]["type"], results(sent)) == ("thinking", ["short"])
    assert next_action(story.point) == CallModel(4, 1)


def test_a_large_newest_turn_goes_into_the_summary() -> None:
    story = story_of_turns(2)
    assert next_compaction(story.point, FULL, WINDOW) == RequestSummary(2)
    wanted = summary_messages(story.point, 2, 100_000)[0]["content"][0]["text"]
    assert wanted.count(BIG.strip()) == 2
    story.summarise(2)
    assert story.sent()[0]["content"][0] == text(GOAL)
    assert [message["role"] for message in story.sent()] == ["user"]
    assert (next_action(story.point), story.point.open_intents) == (CallModel(4, 1), [])


def test_model_is_called_after_a_summary() -> None:
    story = story_of_turns(2)
    story.summarise(2)
    assert next_compaction(story.point, FULL, WINDOW) is None
    story.turn(BIG)
    assert next_compaction(story.point, FULL, WINDOW) == RequestSummary(4)


def test_unread_messages_outlive_a_summary() -> None:
    story = story_of_turns(2)
    story.say(facts.UserMessage("hurry"))
    story.summarise(2)
    story.say(facts.UserMessage("really"))
    assert story.sent()[-1]["content"] == [text("hurry"), text("really")]


def test_messages_to_an_unanswered_call_outlive_a_summary() -> None:
    story = story_of_turns(2)
    story.say(facts.UserMessage("hurry"))
    story.ask()
    story.say(facts.ModelFailure(1, facts.PROMPT_TOO_LONG, "prompt is too long", retryable=False))
    assert next_compaction(story.point, 0, WINDOW) == RequestSummary(2)
    story.summarise(2)
    assert story.sent()[-1]["content"] == [text("hurry")]


def test_lost_summary_is_requested_again() -> None:
    story = story_of_turns(2)
    story.ask(2)
    story.say(facts.AttemptLost(1, TokenUsage(10, 0)))
    assert next_action(story.point) == CallModel(3, 2, summary_through_step=2)


def test_a_prompt_that_stays_too_long_fails_the_task() -> None:
    story = story_of_turns(2)
    refused = facts.ModelFailure(1, facts.PROMPT_TOO_LONG, "prompt is too long", retryable=False)
    story.ask()
    story.say(refused)
    story.summarise(2)
    assert next_compaction(story.point, 0, WINDOW) is None
    story.ask()
    story.say(refused)
    assert isinstance(next_compaction(story.point, 0, WINDOW), WindowExhausted)


def test_the_largest_part_is_named_also_beside_images() -> None:
    story = Story()
    story.turn()
    story.turn(BIG, images=(Image(kept_as(b"an image"), "image/png", 64, 48),))
    refused = facts.ModelFailure(1, facts.PROMPT_TOO_LONG, "prompt is too long", retryable=False)
    story.ask()
    story.say(refused)
    story.summarise(1)
    story.ask()
    story.say(refused)
    exhausted = next_compaction(story.point, 0, WINDOW)
    assert isinstance(exhausted, WindowExhausted)
    assert "its largest part is the result of t, call 2.0, " in exhausted.why


def test_a_goal_that_does_not_fit_cannot_be_made_shorter() -> None:
    story = Story()
    story.ask()
    story.say(facts.ModelFailure(1, facts.PROMPT_TOO_LONG, "prompt is too long", retryable=False))
    assert isinstance(next_compaction(story.point, 0, WINDOW), WindowExhausted)
    cut = Story()
    cut.turn(None, stop="model_context_window_exceeded")
    assert isinstance(next_compaction(cut.point, 0, WINDOW), WindowExhausted)


def test_an_answer_cut_by_the_window_leads_to_a_summary() -> None:
    story = story_of_turns(2, "short")
    story.turn(None, stop="model_context_window_exceeded")
    assert next_compaction(story.point, 0, WINDOW) == RequestSummary(3)
    story.summarise(3)
    assert (next_action(story.point), story.point.must_shorten) == (CallModel(5, 1), False)
    assert [message["role"] for message in story.sent()] == ["user"]


def test_a_paused_answer_is_never_summarised_away() -> None:
    story = story_of_turns(3)
    story.turn(None, stop="pause_turn")
    assert next_compaction(story.point, FULL, WINDOW) == RequestSummary(3)
    only = Story()
    only.turn(None, stop="pause_turn")
    assert next_compaction(only.point, FULL, WINDOW) is None


def test_summary_is_not_a_final_answer() -> None:
    story = story_of_turns(1)
    story.summarise(1, "the summary")
    assert story.point.last_text == "turn 1"
    story.turn(None)
    assert next_action(story.point) == CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "turn 3")


@pytest.mark.parametrize(
    ("model", "limits", "expected"),
    [
        ("claude-opus-4-8", (0, 0), Window(200_000, 8192)),
        ("claude-2.0", (0, 0), Window(100_000, 8192)),
        ("claude-opus-4-8", (0, 4000), Window(4000, 2000)),
        ("openai/gpt-5.2", (0, 0), Window(200_000, 8192)),
        ("openai/gpt-4o-mini", (0, 0), Window(128_000, 8192)),
        ("openai/gpt-4", (0, 0), Window(8_000, 4_000)),
        ("openai/llama3", (0, 0), Window(128_000, 8192)),
        ("claude-opus-4-8", (900_000, 0), Window(200_000, 8192)),
    ],
)
def test_window_is_the_smaller_of_model_and_setting(model: str, limits: tuple[int, int], expected: Window) -> None:
    assert window_of(model, max_output_tokens=8192, limits=limits) == expected


@given(st.text(), st.integers(0, 200))
def test_a_shortened_text_keeps_to_its_size(words: str, most_bytes: int) -> None:
    assert len(shortened(words, most_bytes).encode("utf-8", "replace")) <= most_bytes


@pytest.mark.parametrize("most_bytes", [2_000, 10_000, 1_000_000])
def test_a_summary_request_keeps_its_size_and_its_last_line(most_bytes: int) -> None:
    (message,) = summary_messages(story_of_turns(20).point, 20, most_bytes)
    wanted = message["content"][0]["text"]
    assert len(wanted.encode()) <= most_bytes
    assert (GOAL in wanted, wanted.endswith(SUMMARY_REQUEST)) == (True, True)
    assert "hm" not in wanted.split()


def test_a_summary_leaves_most_of_a_small_window_to_the_work() -> None:
    assert (summary_output_tokens(8_000), summary_output_tokens(200_000)) == (1_000, 4_096)


_TURNS = st.lists(
    st.tuples(
        st.sampled_from(["", "x", BIG]),  # "": no call
        st.integers(1, 3),
        st.sampled_from(["tool_use", "pause_turn", "max_tokens", "lost", "too long"]),
        st.booleans(),  # words of the user's
        st.sampled_from([0, FULL]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=examples(20))
@given(_TURNS)
def test_a_compacted_conversation_is_valid_for_the_provider(turns: list[Any]) -> None:
    """And every prefix of the ledger folds in one go as it does piece by piece."""
    story = Story()
    for result, calls, event, words, expected in turns:
        _take_turn(story, result, calls, event)
        if words:
            story.say(facts.UserMessage("hurry"))
        for _ in range(3):
            made = next_compaction(story.point, expected, WINDOW)
            if isinstance(made, facts.ClearedResults):
                story.say(facts.Compaction(made))
            elif isinstance(made, RequestSummary):
                story.summarise(made.through_step)
        if isinstance(next_compaction(story.point, expected, WINDOW), WindowExhausted):
            return
        _check_sendable(story)
    in_pieces = ResumePoint()
    for entry in story.entries:
        in_pieces.apply(replace(entry))
    assert in_pieces == story.point


def _take_turn(story: Story, result: str, calls: int, event: str) -> None:
    if event in {"lost", "too long"}:
        story.ask()
        failed = facts.ModelFailure(1, facts.PROMPT_TOO_LONG, "prompt is too long", retryable=False)
        story.say(failed if event == "too long" else facts.AttemptLost(1, TokenUsage(10, 0)))
    elif result:
        story.turn(result, calls)
    else:
        story.turn(None, stop=event if event != "tool_use" else "max_tokens")


def _check_sendable(story: Story) -> None:
    """The simulator's own rules, which are the provider's; apart from an answer at the end, which goes on."""
    messages = [
        {**message, "content": [block for block in message["content"] if block["type"] != "thinking"]}
        for message in story.sent()
    ]
    check_conversation(messages)
    assert messages[0]["content"][0] == text(GOAL)
