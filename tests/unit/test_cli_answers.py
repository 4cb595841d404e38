"""What a person is shown at a wait, and which answer their words are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
import pytest

from tenure.cli.answering import Said, answer_commands, said_in, wait_text
from tenure.cli.waits import TypedAnswer
from tenure.v1 import task_pb2

TASK_ID = "01a2025d-5126-7000-8000-000000000001"
LEAVE = task_pb2.Wait(
    wait_id="w8",
    kind=task_pb2.WAIT_KIND_TOOL_APPROVAL,
    options=["allow", "deny", "edit"],
    tool="write_file",
    arguments_json=json.dumps({"path": "pricing.md", "text": "x" * 5000}),
)
APPROVAL = task_pb2.Wait(wait_id="w8", kind=task_pb2.WAIT_KIND_APPROVAL, options=["approve", "deny"])
CHOICE = task_pb2.Wait(wait_id="w8", kind=task_pb2.WAIT_KIND_APPROVAL, options=["red", "blue"])
BUDGET = task_pb2.Wait(
    wait_id="w8",
    kind=task_pb2.WAIT_KIND_BUDGET,
    question="May the task use more budget?",
    context="so far",
    options=["approve", "deny"],
    budget_request=task_pb2.BudgetRequest(
        limit="MONEY_LIMIT",
        own_cap=True,
        budget=task_pb2.BudgetStatus(max_tokens=1000, used_tokens=900, max_nano_usd=10**9, used_nano_usd=9 * 10**8),
        needed_tokens=200,
        needed_nano_usd=256 * 10**6,
        suggested_tokens=350,
        suggested_nano_usd=1_234_406_100_000,
    ),
)
QUESTION = task_pb2.Wait(wait_id="w8", kind=task_pb2.WAIT_KIND_QUESTION, question="Which colour?")


@pytest.mark.parametrize(
    ("wait", "line", "said"),
    [
        (LEAVE, "y\n", Said(decision="allow")),
        (LEAVE, "N\n", Said(decision="deny")),
        (LEAVE, "\n", None),
        (LEAVE, "allow it\n", None),
        (APPROVAL, "yes\n", Said(decision="approve")),
        (APPROVAL, "perhaps\n", None),
        (BUDGET, "y\n", Said(decision="approve")),
        (BUDGET, "no\n", Said(decision="deny")),
        (CHOICE, "blue\n", Said(decision="blue")),
        (CHOICE, "y\n", None),
        (QUESTION, "y\n", Said(reply="y")),
        (QUESTION, "\n", None),
    ],
)
def test_typed_line_is_an_answer_or_none(wait: Any, line: str, said: Any) -> None:
    assert said_in(wait, line) == said


@pytest.mark.parametrize(
    "wait",
    [LEAVE, APPROVAL, CHOICE, QUESTION, BUDGET],
    ids=["leave", "approval", "choice", "question", "budget"],
)
def test_every_command_that_answers_names_the_wait(wait: Any) -> None:
    commands = answer_commands(TASK_ID, wait)
    assert commands
    assert all(command.startswith("tenure resume 01a2025d-5126 --wait w8 --") for command in commands)


def test_a_request_for_budget_shows_its_figures_and_commands() -> None:
    shown = wait_text(BUDGET)
    assert "its own cap (MONEY_LIMIT): 900 of 1,000 tokens used · $0.90 of $1.00" in shown
    assert "the next call needs 200 tokens and $0.26; suggested: 350 tokens and $1,234.41 more" in shown
    grants, refuses = answer_commands(TASK_ID, BUDGET)
    assert grants.endswith("--wait w8 --tokens 350 --usd 1234.4061")
    assert refuses.endswith("--deny")


SEVERAL = task_pb2.Wait(
    wait_id="w8",
    kind=task_pb2.WAIT_KIND_TOOL_APPROVAL,
    options=["allow", "deny", "edit"],
    call_id="3.0",
    tool="pay",
    arguments_json='{"cents": 1}',
    calls=[
        task_pb2.WaitingCall(call_id="3.0", tool="pay", arguments_json='{"cents": 1}', call_digest="a" * 64),
        task_pb2.WaitingCall(call_id="3.1", tool="mail", arguments_json='{"to": "ann"}', call_digest="b" * 64),
    ],
)


def decided(calls: Iterable[task_pb2.CallDecision]) -> list[tuple[str, str, str]]:
    return [(call.call_id, call.decision, call.call_digest[:1]) for call in calls]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y", [("3.0", "allow", "a"), ("3.1", "allow", "b")]),
        ("no", [("3.0", "deny", "a"), ("3.1", "deny", "b")]),
        ("3.1", [("3.1", "allow", "b")]),
        ("3.0, 3.1", [("3.0", "allow", "a"), ("3.1", "allow", "b")]),
    ],
)
def test_line_decides_on_several_calls(line: str, expected: list[Any]) -> None:
    said = said_in(SEVERAL, line)
    assert said is not None
    assert decided(said.calls) == expected
    assert said_in(SEVERAL, "3.7") is None


def test_options_say_which_calls_are_decided() -> None:
    typed: dict[str, Any] = {
        "option": None,
        "reply": None,
        "edit": None,
        "comment": "",
        "extra_tokens": 0,
        "usd": 0,
        "request_id": "",
    }
    every = TypedAnswer("deny", calls=(), all_calls=True, **typed)
    assert decided(every.decisions(SEVERAL)) == [("3.0", "deny", "a"), ("3.1", "deny", "b")]
    one = TypedAnswer("approve", calls=("3.1",), all_calls=False, **typed)
    assert decided(one.decisions(SEVERAL)) == [("3.1", "allow", "b")]
    edit = TypedAnswer(None, calls=("3.0",), all_calls=False, **{**typed, "edit": '{"cents": 2}'})
    (decision,) = edit.decisions(SEVERAL)
    assert (decision.decision, decision.edited_arguments_json) == ("edit", '{"cents": 2}')
    assert every.plan() is None
    planned = TypedAnswer("approve", calls=(), all_calls=True, **typed, plan_count=5, plan_sum="args.cents=200").plan()
    assert planned is not None
    assert (planned.count, planned.sum_of, planned.limit, planned.HasField("end_time")) == (
        5,
        "args.cents",
        "200",
        False,
    )
    with pytest.raises(click.UsageError):
        TypedAnswer("approve", calls=(), all_calls=True, **typed, plan_when="true").plan()
    for wrong in (
        TypedAnswer("approve", calls=(), all_calls=False, **typed),
        TypedAnswer("approve", calls=("3.7",), all_calls=False, **typed),
        TypedAnswer(None, calls=(), all_calls=True, **{**typed, "edit": "{}"}),
    ):
        with pytest.raises(click.UsageError):
            wrong.decisions(SEVERAL)


def test_all_calls_of_a_wait_are_shown() -> None:
    shown = wait_text(SEVERAL)
    assert all(text in shown for text in ("pay (3.0)", '"cents": 1', "mail (3.1)", '"to": "ann"'))
    assert answer_commands("0190", SEVERAL)[0].endswith("--approve --all")
