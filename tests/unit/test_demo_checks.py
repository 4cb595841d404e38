"""The demo's judge and what it judges by: every promise can be broken, and each break shows as its own ✘."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.demo.board import answers_by_step, call_of_line, holders
from tenure.cli.demo.judgement import Observed, broken, count_effects, effectful_calls, judge, slow_line, slow_step
from tenure.v1 import ledger_pb2, task_pb2

KEPT = Observed(
    task_state="SUCCEEDED",
    answers={1: 1, 2: 1, 3: 1},
    takeovers=3,
    effects={"one": 1, "two": 1},
    effects_expected=("one", "two"),
    stale_refused_ledger=1,
    stale_refused_tools=1,
    model_calls=3,
    resume_seconds_kill=0.8,
    resume_seconds_freeze=10.0,
)
BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


def test_kept_promises_are_accepted() -> None:
    assert broken(judge(KEPT)) == []


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("succeeded", replace(KEPT, task_state="FAILED")),
        ("succeeded", replace(KEPT, task_state="")),
        ("taken_over", replace(KEPT, takeovers=2)),
        ("resumed_after_freeze", replace(KEPT, resume_seconds_freeze=10.1)),
        ("resumed_after_freeze", replace(KEPT, resume_seconds_freeze=None)),
        ("resumed_after_kill", replace(KEPT, resume_seconds_kill=10.1)),
        ("resumed_after_kill", replace(KEPT, resume_seconds_kill=None)),
        ("effects_once", replace(KEPT, effects={"one": 1, "two": 2})),
        ("effects_once", replace(KEPT, effects={"one": 1})),
        ("effects_once", replace(KEPT, effects={"one": 1, "two": 1, "never asked for": 1})),
        ("stale_execute_refused", replace(KEPT, stale_refused_tools=0)),
        ("stale_commit_refused", replace(KEPT, stale_refused_ledger=0)),
        ("no_step_twice", replace(KEPT, answers={1: 1, 2: 2})),
        ("no_model_call_repeated", replace(KEPT, model_calls=4)),
        ("no_model_call_repeated", replace(KEPT, model_calls=2)),
    ],
)
def test_broken_promise_is_reported_alone(name: str, seen: Any) -> None:
    assert [promise.name for promise in broken(judge(seen))] == [name]


def moved(to_state: Any, seconds: Any, *, actor: str = "checkpoint", epoch: int = 0, reason: str = "") -> Any:
    entry = ledger_pb2.Entry(actor=actor, epoch=epoch)
    entry.record_time.FromDatetime(BEGAN + timedelta(seconds=seconds))
    entry.body.transition.to_state = task_pb2.TaskState.Value(f"TASK_STATE_{to_state}")
    entry.body.transition.reason = reason
    return entry


def test_holders_are_read_in_order_with_their_reasons() -> None:
    entries = [
        moved("QUEUED", 0, reason="SUBMITTED"),
        moved("RUNNING", 1, actor="w1", epoch=5),
        moved("QUEUED", 2, reason="LEASE_EXPIRED"),
        moved("RUNNING", 3, actor="w2", epoch=9),
        moved("SUCCEEDED", 4, actor="w2", epoch=9),
    ]
    results = [(holder.worker_id, holder.epoch, holder.taken_for) for holder in holders(entries)]
    assert results == [("w1", 5, "SUBMITTED"), ("w2", 9, "LEASE_EXPIRED")]
    assert holders(entries)[1].opened_at == BEGAN + timedelta(seconds=3)


def test_an_answer_committed_twice_is_counted_twice() -> None:
    entries = [ledger_pb2.Entry(step=step) for step in (1, 2, 2)]
    for entry in entries:
        entry.body.assistant_message.content_json = "[]"
    assert answers_by_step([moved("RUNNING", 0), *entries]) == {1: 1, 2: 2}


def test_call_of_a_line_is_matched_by_arguments() -> None:
    entry = ledger_pb2.Entry()
    entry.body.tool_intent.call_id = "6.0"
    entry.body.tool_intent.arguments_json = '{"file": "unsafe", "line": "the order"}'
    assert call_of_line([moved("RUNNING", 0), entry], "the order") is entry
    assert call_of_line([entry], "another order") is None


def test_effects_are_counted_as_often_as_they_stand_in_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"key": "1", "line": "one"}\n{"key": "2", "line": "two"}\n')
    (tmp_path / "b.jsonl").write_text('{"key": "3", "line": "one"}\nhalf a rec')
    assert count_effects(tmp_path) == {"one": 2, "two": 1, "half a rec": 1}


def test_the_scenarios_slow_call_is_the_unsafe_one() -> None:
    call = next(call for call in effectful_calls() if call.arguments["line"] == slow_line())
    assert call.name == "append_record_unsafe"
    assert call.arguments["delay_ms"] >= 3000


def test_the_scenarios_slow_answer_comes_after_the_slow_call() -> None:
    """The third worker, which joined the call, is killed in it."""
    assert slow_step() == 7
