"""Laws of the prompt of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.domain import entries as e
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.prompts import parts_of, prompt_of
from tenure.domain.task import ControlWork
from tests.unit.test_traces import SPEC, Writer


def written(writer: Writer) -> list[e.Entry]:
    return [entry for entry, _ in writer.ledger]


def two_steps() -> Writer:
    writer = Writer().claim("worker-1")
    writer.step = 1
    content = (
        {"type": "text", "text": "I mail."},
        {"type": "tool_use", "id": "use-1.0", "name": "mail", "input": {"to": "a"}},
    )
    writer.ask().write(e.AssistantMessage(1, content, "tool_use", TokenUsage(), "sim-a"))
    writer.call("1.0").outcome("1.0")
    writer.step = 2
    return writer.ask().answer(text="Done.")


def test_a_step_read_what_came_before_its_call() -> None:
    entries = written(two_steps())
    first, second = prompt_of(entries, 1), prompt_of(entries, 2)
    assert (first.model, first.system) == ("sim-a", "be kind")
    assert [[part.text for part in parts_of(message)] for message in first.messages] == [["the goal"]]
    kinds = [(message["role"], [part.kind for part in parts_of(message)]) for message in second.messages]
    assert kinds == [("user", ["text"]), ("assistant", ["text", "tool_call"]), ("user", ["tool_result"])]
    assert parts_of(second.messages[1])[1].arguments == {"to": "a"}
    assert parts_of(second.messages[2])[0].text == "the content"


def test_a_summary_is_not_the_prompt_of_its_step() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().write(e.ModelFailure(1, "PROMPT_TOO_LONG", "too long", retryable=True))
    writer.write(e.ModelAttempt(2, "sim-summary", 1, 1, 2, summary_through_step=1))
    assert prompt_of(written(writer), 1).model == "sim-a"


def test_a_prompt_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(NotFound, match="step 3 has no model call"):
        prompt_of(written(two_steps()), 3)
    writer = Writer(replace(SPEC, control=ControlWork("shop"))).claim("worker-1")
    writer.step = 1
    with pytest.raises(WrongState, match="a function runs this task"):
        prompt_of(written(writer.ask()), 1)
