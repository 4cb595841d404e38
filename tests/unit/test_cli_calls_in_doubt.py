"""A call in doubt as `tenure tools in-doubt` shows it, and a word on it as the ledger tells it."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterator

import click
import pytest
from rich.console import Console

from tenure.cli.entry_lines import describe
from tenure.cli.tools import _attempt, _decision, _doubted_attempt, in_doubt_text, show_call_in_doubt
from tenure.client import Client
from tenure.domain.errors import NotFound
from tenure.domain.in_doubt import Abandon, DidNotHappen, Happened
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.tool import decision_to_wire
from tests.unit.golden_files import compare_with_golden

TASK_ID = "01a203af-0c62-7000-8000-000000000000"
WAITING_USER = task_pb2.TASK_STATE_WAITING_USER


def shown(
    *, resolvable: bool = True, state: task_pb2.TaskState.ValueType = WAITING_USER, width: int = 200, **call: object
) -> str:
    values: dict[str, object] = {
        "task_id": TASK_ID,
        "call_id": "2.1",
        "tool": "pay",
        "effect_class": tool_pb2.EFFECT_CLASS_UNSAFE,
        "arguments_json": '{"amount": 12}',
        "call_attempt": 1,
        "runner_instance": "host-4711",
    }
    reason = "TOOL_IN_DOUBT" if resolvable else "CALL_RESOLVED"
    console = Console(file=io.StringIO(), width=width)
    listed = admin.ListInDoubtCallsResponse.Listed(
        call=tool_pb2.InDoubtCall(**{**values, **call}),  # type: ignore[arg-type]  # any of its fields
        task_state=state,
        task_reason=reason if state else "",
        resolvable=resolvable,
    )
    show_call_in_doubt(console, listed)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_calls_in_doubt_are_the_golden_file() -> None:
    queued = task_pb2.TASK_STATE_QUEUED
    calls = [tool_pb2.CallInDoubt(call_id="2.1", call_attempt=1)]
    waiting = task_pb2.Task(task_id=TASK_ID, state=WAITING_USER, reason="TOOL_IN_DOUBT", calls_in_doubt=calls)
    described = {
        f"resolution {number}": describe(ledger_pb2.Entry(body=ledger_pb2.EntryBody(operator_request=request)))
        for number, request in enumerate(resolutions(), 1)
    }
    compare_with_golden(
        "calls_in_doubt.txt",
        {
            "a lost runner": shown(),
            "a runner proven gone": shown(runner_gone=True, call_attempt=2),
            "on a narrow terminal": shown(runner_gone=True, runner_instance="host", width=80),
            "a call that acts elsewhere": shown(acts_elsewhere=True),
            "a pruned task": shown(resolvable=False, state=task_pb2.TASK_STATE_UNSPECIFIED),
            "a call that needs no resolution": shown(resolvable=False, state=queued, note="lost", runner_gone=True),
            "long arguments": shown(arguments_truncated=True),
            "in tenure get": in_doubt_text(waiting),
            **described,
        },
    )


def resolutions() -> Iterator[ledger_pb2.OperatorRequest]:
    """Each resolution as an entry of the ledger."""
    for attempt, decision in (
        (1, Happened("paid")),
        (2, Happened()),
        (1, DidNotHappen()),
        (1, DidNotHappen(runner_is_gone=True)),
        (1, Abandon()),
    ):
        call = ledger_pb2.OperatorRequest.ResolveCall(call_id="2.1", call_attempt=attempt)
        call.decision.CopyFrom(decision_to_wire(decision))
        yield ledger_pb2.OperatorRequest(reason="I looked", resolve_call=call)


def test_findings_about_an_attempt_are_not_used_for_another() -> None:
    assert _attempt("2.1", 1, None) == 1
    assert _attempt("2.1", 0, None) == 1  # its worker did not say which, and the tools lost the call
    assert _attempt("2.1", 2, 2) == 2
    assert _attempt("2.1", 2, 1) == 1  # the ledger refuses it
    with pytest.raises(click.UsageError, match="--attempt 2"):
        _attempt("2.1", 2, None)


async def test_a_call_lost_by_the_tools_is_resolved_by_its_wait() -> None:
    class Lost(Client):
        def __init__(self) -> None:
            """Connected to nothing."""

        async def in_doubt(
            self, task_id: str = "", *, include_all: bool = False
        ) -> AsyncGenerator[admin.ListInDoubtCallsResponse.Listed]:
            assert task_id
            assert include_all
            for call_id in ("2.0",):
                call = tool_pb2.InDoubtCall(call_id=call_id, call_attempt=3)
                yield admin.ListInDoubtCallsResponse.Listed(call=call)

        async def get(self, task_id: str) -> task_pb2.Task:
            return task_pb2.Task(task_id=task_id, calls_in_doubt=[tool_pb2.CallInDoubt(call_id="2.1", call_attempt=2)])

    assert await _doubted_attempt(Lost(), TASK_ID, "2.0") == 3
    assert await _doubted_attempt(Lost(), TASK_ID, "2.1") == 2
    with pytest.raises(NotFound, match=r"2\.0, 2\.1"):
        await _doubted_attempt(Lost(), TASK_ID, "2.2")


def test_a_resolution_is_one_of_three_with_its_own_options() -> None:
    assert _decision("happened", "paid", runner_is_gone=False) == Happened("paid")
    assert _decision("did-not-happen", "", runner_is_gone=True) == DidNotHappen(runner_is_gone=True)
    assert _decision("abandon", "", runner_is_gone=False) == Abandon()
    for said, result, gone in ((None, "", False), ("abandon", "x", False), ("happened", "", True)):
        with pytest.raises(click.UsageError):
            _decision(said, result, runner_is_gone=gone)
