"""The text of a turn, and its chunks: every character once, whatever came live, was lost or was replaced."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from services.gateway.http.ai_chat import UiMessageWriter
from services.gateway.http.chat_text import ChatText, TextPart
from tenure.domain.budget import TokenUsage
from tenure.domain.states import TaskState
from tenure.sdk.events import (
    AssistantMessageEvent,
    Event,
    LiveTextEvent,
    ModelAttemptEvent,
    ModelFailureEvent,
    TransitionEvent,
)


def live(text: str, offset: int = 0, *, block: int = 0, step: int = 1, replaces: bool = False) -> LiveTextEvent:
    return LiveTextEvent(
        kind="live_text", sequence=None, step=step, text=text, block=block, offset=offset, replaces=replaces
    )


def answer(*texts: str, step: int = 1) -> AssistantMessageEvent:
    return AssistantMessageEvent(
        kind="assistant_message",
        sequence=6,
        step=step,
        attempt_number=1,
        text="\n\n".join(texts),
        content=[{"type": "text", "text": text} for text in texts],
        model="sim",
        stop_reason="end_turn",
        usage=TokenUsage(),
        usage_estimated=False,
        latency_seconds=0.1,
    )


def shown(parts: Iterable[TextPart]) -> dict[str, str]:
    """What a page shows: the text of each closed part."""
    texts, closed = dict[str, str](), dict[str, str]()
    for part in parts:
        if part.text is None:
            closed[part.part_id] = texts.pop(part.part_id)
        else:
            assert (part.part_id in texts) == bool(part.text), "a part is opened once, before its text"
            texts[part.part_id] = texts.get(part.part_id, "") + part.text
    assert texts == {}, "a part was left open"
    return closed


def test_live_text_is_completed_by_the_answer() -> None:
    text = ChatText()
    parts = [*text.live(live("Hel")), *text.live(live("lo", 3)), *text.answer(answer("Hello, you.", "More."))]
    assert shown(parts) == {"text-1-0": "Hello, you.", "text-1-1": "More."}


def test_text_that_was_lost_comes_with_the_answer() -> None:
    text = ChatText()
    parts = [*text.live(live("Hel")), *text.live(live("you", 7)), *text.answer(answer("Hello, you."))]
    assert shown(parts) == {"text-1-0": "Hello, you."}


def test_without_live_text_the_answer_is_whole() -> None:
    assert shown(ChatText().answer(answer("Hello."))) == {"text-1-0": "Hello."}


def test_another_answer_has_a_part_of_its_own() -> None:
    text = ChatText()
    parts = [*text.live(live("Good")), *text.answer(answer("Bad day."))]
    assert shown(parts) == {"text-1-0": "Good", "text-1-0-1": "Bad day."}
    text = ChatText()
    parts = [*text.live(live("Good")), *text.replace(), *text.live(live("Bad")), *text.answer(answer("Bad day."))]
    assert shown(parts) == {"text-1-0": "Good", "text-1-0-1": "Bad day."}


def chunks(*events: Event) -> list[dict[str, Any]]:
    writer = UiMessageWriter("t", "m")
    return [chunk for event in events for chunk in writer.event(event, is_end=event is events[-1])]


def attempt() -> ModelAttemptEvent:
    return ModelAttemptEvent(
        kind="model_attempt",
        sequence=5,
        step=1,
        attempt_number=1,
        model="sim",
        reserved_tokens=1,
        reserved_cost_usd=Decimal(0),
        budget=None,
    )


def failure() -> ModelFailureEvent:
    return ModelFailureEvent(
        kind="model_failure",
        sequence=6,
        step=1,
        attempt_number=1,
        error_class="OVERLOADED",
        message="",
        status_code=529,
        retryable=True,
        retry_after_seconds=None,
        usage=TokenUsage(),
    )


def ended(state: TaskState, result: str = "") -> TransitionEvent:
    return TransitionEvent(
        kind="transition",
        sequence=7,
        step=1,
        from_state=TaskState.RUNNING,
        state=state,
        reason="WHY",
        message="because",
        wait=None,
        calls_in_doubt=(),
        result=result,
        result_data=None,
        next_retry_at=None,
        budget=None,
    )


def test_text_of_a_failed_call_is_taken_back() -> None:
    types = [chunk["type"] for chunk in chunks(attempt(), live("Good"), failure(), answer("Bad day."))]
    assert types == [
        *("start-step", "text-start", "text-delta", "text-end", "reset-step"),
        *("text-start", "text-delta", "text-end"),
    ]


def test_the_end_of_a_task_ends_the_message() -> None:
    written = chunks(attempt(), answer("Done."), ended(TaskState.SUCCEEDED, "Done."))
    assert [chunk["type"] for chunk in written[-3:]] == ["data-task", "finish-step", "finish"]
    assert [chunk["delta"] for chunk in written if chunk["type"] == "text-delta"] == ["Done."]
    failed = chunks(ended(TaskState.FAILED))
    assert failed[-2]["errorText"] == "the task ended as FAILED (WHY): because"
    assert failed[-1] == {"type": "finish", "finishReason": "error"}


def test_the_result_of_a_function_is_shown() -> None:
    written = chunks(ended(TaskState.SUCCEEDED, "42"))
    assert [chunk["delta"] for chunk in written if chunk["type"] == "text-delta"] == ["42"]
