"""The return values of functions and agents in Python: text for people, values for programs, in all that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.cli.tasks import result_of, result_shown
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import result_text
from tenure.sdk.from_wire import entry_event, result_json_of, task_info
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES

RETURNED = [
    ('"done: ok"', "done: ok", "done: ok"),
    ('"5"', "5", "5"),
    ('"a\\nb"', "a\nb", "a\nb"),
    ('{"cents":5}', '{"cents":5}', {"cents": 5}),
    ("null", "null", None),
    ("5", "5", 5),
]
TABLE = pytest.mark.parametrize(("result", "text", "value"), RETURNED)


def ended(result: str, reason: str = Reason.FUNCTION_RETURNED, **more: Any) -> task_pb2.Task:
    return task_pb2.Task(state=STATES.to_wire(TaskState.SUCCEEDED), result=result, reason=reason, **more)


@TABLE
def test_a_returned_string_has_no_quotes(result: str, text: str, value: Any) -> None:
    task = ended(result)
    info = task_info(task)
    assert (info.result, info.result_data) == (text, value)
    assert result_of(task) == str(result_shown(task, is_plain=True)) == text
    assert json.loads(result_json_of(task)) == value


@TABLE
def test_the_event_of_the_end_has_the_same(result: str, text: str, value: Any) -> None:
    end = ledger_pb2.StateTransition(
        to_state=STATES.to_wire(TaskState.SUCCEEDED), reason=Reason.FUNCTION_RETURNED, result=result
    )
    event: Any = entry_event(ledger_pb2.Entry(sequence=9, body=ledger_pb2.EntryBody(transition=end)))
    assert (event.result, event.result_data) == (text, value)


@pytest.mark.parametrize("result", ['"quoted" words', '"quoted"', ""])
def test_an_agents_last_text_is_not_changed(result: str) -> None:
    info = task_info(ended(result, Reason.FINAL_ANSWER))
    assert (info.result, info.result_data) == (result, None)


def test_a_result_that_is_not_json_is_shown_as_it_is() -> None:
    assert result_text('"cut', Reason.FUNCTION_RETURNED) == '"cut'
