"""I43 and I46 as the checker sees them: what began during a stop, and the sums of calls under a rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from checker.history import BoundRecord, History, StopRecord
from checker.verify import verify
from tenure.domain.entries import ModelAttempt
from tenure.domain.tools import NOT_RUN, CallState
from tests.unit.checker_history import Story

EVERYTHING = StopRecord(answered_at=0.0)
TWO = BoundRecord(name="two", tenant="default", tool="append_*", since=0.0, count=2)


def history(**changes: Any) -> History:
    """A task whose model reserved once, and called append_record with line 0, 1 and 2."""
    story = Story()
    story.submit()
    story.claim()
    story.attempt(1)
    story.answer(*["append_record"] * 3)
    for index in range(3):
        story.settle(index, story.execute(index))
    return replace(story.history(), **{"settled": False, **changes})


def violations(invariant: str, **changes: Any) -> list[str]:
    return [each.message for each in verify(history(**changes)) if each.invariant == invariant]


def reserved_at() -> float:
    (at,) = [entry.recorded_at for entry in history().entries or () if isinstance(entry.body, ModelAttempt)]
    return at


def test_beginnings_during_a_stop_are_reported() -> None:
    messages = violations("I43", stops=(EVERYTHING,))
    assert [re.sub(r" \d+\.\d+ s after.*", "", message) for message in messages] == [
        "entry 4 (model_attempt) reserves a model call,",
        *(f"call 1.{index} was {verb}" for index in range(3) for verb in ("started", "accepted")),
    ]
    assert all(message.endswith("s after the answer to a stop of everything") for message in messages)


@pytest.mark.parametrize(
    "stop",
    [
        {"tenant": "other"},
        {"queue": "nightly"},
        {"tool": "mail_*"},
        {"ended_at": 5.0},
        {"answered_at": 1_800_000_000.0},
    ],
    ids=["another tenant", "another queue", "another tool", "ended before", "answered later"],
)
def test_stop_covers_only_its_selectors(stop: Any) -> None:
    assert violations("I43", stops=(replace(EVERYTHING, **stop),)) == []


def test_stop_of_a_tool_covers_its_calls_only() -> None:
    messages = violations("I43", stops=(replace(EVERYTHING, tool="append_*"),))
    assert len(messages) == 6
    assert not [message for message in messages if "reserves" in message]


def test_millisecond_of_the_answer_is_allowed() -> None:
    assert len(violations("I43", stops=(replace(EVERYTHING, answered_at=reserved_at() - 0.0005),))) == 6
    assert len(violations("I43", stops=(replace(EVERYTHING, answered_at=reserved_at() - 0.1),))) == 7


def test_a_call_answered_without_a_run_began_nothing() -> None:
    calls = tuple(replace(call, started_at=None) for call in history().calls or ())
    assert len(violations("I43", stops=(EVERYTHING,), calls=calls)) == 1
    off = tuple(replace(call, state=CallState.NOT_RUN, outcome=NOT_RUN) for call in calls)
    assert len(violations("I43", stops=(EVERYTHING,), calls=off)) == 4


def test_calls_beyond_a_count_are_reported() -> None:
    [message] = violations("I46", bounds=(TWO,))
    assert message == "call 1.2 is number 3, with 0 in total, under the rule two (2 calls, any in total)"


def test_calls_beyond_a_sum_are_reported() -> None:
    small = replace(TWO, count=0, sum_of="args.line", limit="2.5")
    [message] = violations("I46", bounds=(small,))
    assert message.startswith("call 1.2 is number 3, with 3 in total")
    assert violations("I46", bounds=(replace(small, limit="3"),)) == []


@pytest.mark.parametrize(
    "rule",
    [
        {"tenant": "other"},
        {"tool": "mail_*"},
        {"count": 3},
        {"per": "args.line"},
        {"since": 1_800_000_000.0},
        {"until": 5.0},
    ],
    ids=["another tenant", "another tool", "enough", "apart", "set later", "deleted before"],
)
def test_other_calls_are_within_a_bound(rule: Any) -> None:
    assert violations("I46", bounds=(replace(TWO, **rule),)) == []


def test_calls_that_never_began_are_not_counted() -> None:
    first, *others = history().calls or ()
    assert violations("I46", bounds=(TWO,), calls=(replace(first, started_at=None), *others)) == []
