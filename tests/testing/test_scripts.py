"""The parts of a test without a stack: scripts, points of the loop, spans of time."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

import tenure.testing
from tenure.sdk.events import ControlStepEvent, Event, ModelAttemptEvent, ToolIntentEvent, ToolOutcomeEvent
from tenure.testing import POINTS, ScriptError, UnknownPoint, broken_stream, error, tool, turn
from tenure.testing.durations import seconds_of
from tenure.testing.points import WATCHED_FAILPOINTS, Position, stop_point
from tenure.testing.script import Script, scenario_turns


def test_a_script_becomes_turns_of_a_scenario() -> None:
    tea, milk = tool("buy", what="tea"), tool("buy", what="milk")
    script: Script = [turn("Both.", tea, milk, delay=0.5), error(529, times=2, retry_after=1), [tea, milk], "Done."]
    tea_call, milk_call = ({"name": "buy", "arguments": {"what": what}} for what in ("tea", "milk"))
    assert scenario_turns(script) == [
        {"text": "Both.", "calls": [tea_call, milk_call], "latency_ms": 500},
        {
            "text": "",
            "calls": [tea_call, milk_call],
            "fault": {"status": 529, "retry_after_seconds": 1, "times": 2},
        },
        {"text": "Done."},
    ]


def test_an_error_at_the_end_fails_every_call() -> None:
    assert scenario_turns(["One.", error(400, message="no")])[1]["fault"] == {"status": 400, "message": "no"}
    assert scenario_turns([broken_stream(2), "One."])[0]["fault"] == {"broken_stream": 2, "times": 1}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([], "a script is a list"),
        ("Done.", "a script is a list"),
        ([tool("buy")], "the last element calls tools"),
        ([error(), error(), "Done."], "element 2: two errors in a row"),
        ([7, "Done."], "element 1 is 7"),
        ([[], "Done."], r"element 1 is \[\]"),
        ([["text"], "Done."], "element 1 is"),
    ],
)
def test_a_script_that_cannot_be_played_says_why(script: Any, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        scenario_turns(script)


def test_a_typed_output_may_be_the_last_element() -> None:
    for name in ("final_result", "final_result_Refund"):
        *_, output, ending = scenario_turns(["I look.", tool(name, cents=500)])
        assert output["calls"] == [{"name": name, "arguments": {"cents": 500}}]
        assert "calls" not in ending


@pytest.mark.parametrize("span", ["", "2 hours", "0s", 0, -5, float("inf"), float("nan"), timedelta(0)])
def test_an_invalid_duration_is_refused(span: Any) -> None:
    with pytest.raises(ValueError, match="is not a span of time"):
        seconds_of(span)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1h30m", 5400), ("250ms", 0.25), ("1.5d", 129_600), (90, 90), (timedelta(minutes=1), 60)],
)
def test_a_span_of_time_is_read(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


ENTRY: dict[str, Any] = {"kind": "", "sequence": 1}
MODEL: dict[str, Any] = {
    "attempt_number": 1,
    "model": "m",
    "reserved_tokens": 1,
    "reserved_cost_usd": 0,
    "budget": None,
}


def attempt(step: int) -> Event:
    return ModelAttemptEvent(**ENTRY, step=step, **MODEL)


def intent(step: int, call: str) -> Event:
    return ToolIntentEvent(**ENTRY, step=step, call_id=call, tool="buy", arguments={})


def outcome(step: int, call: str) -> Event:
    rest: dict[str, Any] = {"status": "SUCCEEDED", "truncated": False, "detail": "", "call_attempt": 1}
    return ToolOutcomeEvent(
        **ENTRY, step=step, call_id=call, content="", note="", output_path="", duration_seconds=0.0, **rest
    )


def made(step: int) -> Event:
    return ControlStepEvent(**ENTRY, step=step, name="s", result=None, error="", duration_seconds=0.0)


STEP_ONE = [attempt(1), intent(1, "1.0"), intent(1, "1.1")]


@pytest.mark.parametrize(
    ("at", "failpoint", "entries", "expected"),
    [
        ("before model 1", "worker.before_model", [attempt(1)], True),
        ("before model 2", "worker.before_model", [attempt(1)], False),
        ("before model", "worker.before_model", [attempt(7)], True),
        ("before model 1", "worker.after_model", [attempt(1)], False),
        ("after intent 1.1", "worker.after_intent", STEP_ONE, True),
        ("after intent 1", "worker.after_intent", STEP_ONE, True),
        ("after intent 1.2", "worker.after_intent", STEP_ONE, False),
        ("after intent 2", "worker.after_intent", STEP_ONE, False),
        ("after execute 1.0", "worker.after_execute", [*STEP_ONE, outcome(1, "1.0")], True),
        ("after step", "worker.after_execute", STEP_ONE, False),
        ("after outcome 1.0", "worker.after_reserve", [*STEP_ONE, outcome(1, "1.0")], True),
        ("after outcome 1.1", "worker.after_reserve", [*STEP_ONE, outcome(1, "1.0")], False),
        ("after step 1", "worker.after_execute", [], True),
        ("after step 2", "worker.after_execute", [made(2)], False),
        ("after record 1", "worker.after_intent", [made(1), intent(2, "2.0")], True),
        ("after record 2", "worker.after_intent", [made(1), intent(2, "2.0")], False),
    ],
)
def test_a_task_is_at_a_point(at: str, failpoint: str, entries: list[Event], expected: bool) -> None:
    assert stop_point(at).is_at(failpoint, Position(entries, step=1)) is expected


def test_every_point_is_at_a_failpoint_where_workers_stop() -> None:
    assert {point.failpoint for point in POINTS.values()} - {""} <= set(WATCHED_FAILPOINTS)
    for name in ("", "after", "model 1", "after model -1", "after model 1.0.0", "during model"):
        with pytest.raises(UnknownPoint):
            stop_point(name)


def test_the_plugin_imports_little() -> None:
    """pytest imports it in every run of every user, and the tests of this repository set a variable before gRPC."""
    program = "import sys, tenure.testing.pytest_plugin; print(sorted({'grpc', 'devstack'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_imported() -> None:
    assert set(tenure.testing.__all__) == set(tenure.testing._MODULE_OF)
    assert all(getattr(tenure.testing, name) is not None for name in tenure.testing.__all__)
    with pytest.raises(AttributeError, match=r"module 'tenure\.testing' has no attribute 'Nothing'"):
        tenure.testing.Nothing  # noqa: B018  the access is the test
