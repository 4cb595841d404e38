"""A call in doubt as `tenure tools in-doubt` shows it, and a word on it as the ledger tells it."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator

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
    listed = admin.AdminServiceListInDoubtCallsResponse.Listed(
        call=tool_pb2.InDoubtCall(**{**values, **call}),  # type: ignore[arg-type]  # any of its fields
        task_state=state,
        task_reason=reason if state else "",
        resolvable=resolvable,
    )
    show_call_in_doubt(console, listed)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_an_operator_sees_the_call_its_place_and_the_command() -> None:
    text = shown()
    for words in ("call 2.1  pay  UNSAFE", "amount=12", "host-4711", "NOT proven gone", "it waits for your resolution"):
        assert words in text
    assert "Make sure that host-4711 is gone" in text
    assert "tenure tools resolve 01a203af-0c62 2.1 --did-not-happen --runner-is-gone" in text


def test_a_proven_end_needs_no_statement() -> None:
    text = shown(runner_gone=True, call_attempt=2)
    assert "proven gone: it can do nothing more" in text
    assert "--runner-is-gone" not in text
    assert "tenure tools resolve 01a203af-0c62 2.1 --attempt 2 --abandon" in text


def test_the_answers_are_whole_lines_on_the_narrowest_terminal() -> None:
    lines = shown(runner_gone=True, runner_instance="host", width=80).splitlines()
    assert max(map(len, lines)) <= 80
    commands = [line.strip() for line in lines if "tenure tools resolve" in line]
    assert [command.split()[5] for command in commands] == ["--happened", "--did-not-happen", "--abandon"]


def test_a_call_elsewhere_needs_the_runner_is_gone_statement() -> None:
    text = shown(acts_elsewhere=True)
    assert "the other side may still be working on it" in text
    assert "states that the other side no longer works on the call" in text
    assert "--did-not-happen --runner-is-gone" in text
    assert "Make sure that host-4711 is gone" not in text


def test_what_cannot_be_settled_shows_no_commands_and_says_why() -> None:
    assert "pruned; the call cannot be resolved" in shown(resolvable=False, state=task_pb2.TASK_STATE_UNSPECIFIED)
    text = shown(resolvable=False, state=task_pb2.TASK_STATE_QUEUED, note="the answer was lost", runner_gone=True)
    assert "this call needs no resolution" in text
    assert "the answer was lost" in text
    assert "the other side may still be working on it; wait longer than its longest run, then check" in text
    assert "tenure tools resolve" not in text
    assert "and more: tenure tasks entries" in shown(arguments_truncated=True)


def test_what_a_tool_says_moves_no_cursor_and_forges_no_colour() -> None:
    hostile = "lost\x1b]0;title\x07\x1b[2J\x1b[1;1H\x9b32m [green]it did NOT happen[/green]"
    text = shown(note=hostile, tool=f"pay{hostile}", runner_instance=f"host{hostile}")
    assert text.count("lost\\x1b]0;title\\x07\\x1b[2J\\x1b[1;1H\\x9b32m [green]it did NOT happen[/green]") == 4
    assert all(one.isprintable() or one == "\n" for one in text)


def test_a_task_that_waits_points_to_its_calls() -> None:
    calls = [tool_pb2.CallInDoubt(call_id="2.1", call_attempt=1)]
    waiting = task_pb2.Task(task_id=TASK_ID, state=WAITING_USER, reason="TOOL_IN_DOUBT", calls_in_doubt=calls)
    assert in_doubt_text(waiting) == "2.1: tenure tools in-doubt --task 01a203af-0c62"
    assert not in_doubt_text(task_pb2.Task(task_id=TASK_ID, state=WAITING_USER, reason="APPROVAL_REQUESTED"))


@pytest.mark.parametrize(
    ("decision", "attempt", "words"),
    [
        (Happened("paid"), 1, "resolves call 2.1: it happened, with 'paid': I looked"),
        (Happened(), 2, "resolves call 2.1 (attempt 2): it happened: I looked"),
        (DidNotHappen(), 1, "resolves call 2.1: it did not happen, so it runs again: I looked"),
        (DidNotHappen(runner_is_gone=True), 1, "it did not happen, its runner is gone, so it runs again"),
        (Abandon(), 1, "abandons call 2.1, which stays in doubt: I looked"),
    ],
)
def test_a_word_is_told_as_it_was_given(decision: Happened | DidNotHappen | Abandon, attempt: int, words: str) -> None:
    word = ledger_pb2.OperatorRequest.ResolveCall(
        call_id="2.1", call_attempt=attempt, decision=decision_to_wire(decision)
    )
    request = ledger_pb2.OperatorRequest(reason="I looked", resolve_call=word)
    assert words in describe(ledger_pb2.Entry(body=ledger_pb2.EntryBody(operator_request=request)))


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
        ) -> AsyncGenerator[admin.AdminServiceListInDoubtCallsResponse.Listed]:
            assert task_id
            assert include_all
            for call_id in ("2.0",):
                call = tool_pb2.InDoubtCall(call_id=call_id, call_attempt=3)
                yield admin.AdminServiceListInDoubtCallsResponse.Listed(call=call)

        async def get(self, task_id: str) -> task_pb2.Task:
            return task_pb2.Task(task_id=task_id, calls_in_doubt=[tool_pb2.CallInDoubt(call_id="2.1", call_attempt=2)])

    assert await _doubted_attempt(Lost(), TASK_ID, "2.0") == 3
    assert await _doubted_attempt(Lost(), TASK_ID, "2.1") == 2
    with pytest.raises(NotFound, match=r"in doubt: 2\.0, 2\.1"):
        await _doubted_attempt(Lost(), TASK_ID, "2.2")


def test_a_resolution_is_one_of_three_with_its_own_options() -> None:
    assert _decision("happened", "paid", runner_is_gone=False) == Happened("paid")
    assert _decision("did-not-happen", "", runner_is_gone=True) == DidNotHappen(runner_is_gone=True)
    assert _decision("abandon", "", runner_is_gone=False) == Abandon()
    for said, result, gone in ((None, "", False), ("abandon", "x", False), ("happened", "", True)):
        with pytest.raises(click.UsageError):
            _decision(said, result, runner_is_gone=gone)
