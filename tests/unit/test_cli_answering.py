"""What a person is shown at a wait, and which answer their words are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.cli.answering import Said, answer_commands, said_in, wait_text
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
        (CHOICE, "blue\n", Said(decision="blue")),
        (CHOICE, "y\n", None),
        (QUESTION, "y\n", Said(reply="y")),
        (QUESTION, "\n", None),
    ],
)
def test_a_typed_line_is_an_answer_or_the_person_is_asked_again(wait: Any, line: str, said: Any) -> None:
    assert said_in(wait, line) == said


@pytest.mark.parametrize("wait", [LEAVE, APPROVAL, CHOICE, QUESTION], ids=["leave", "approval", "choice", "question"])
def test_every_command_that_answers_names_the_wait(wait: Any) -> None:
    commands = answer_commands(TASK_ID, wait)
    assert commands
    assert all(command.startswith("tenure resume 01a2025d-5126 --wait w8 --") for command in commands)


def test_arguments_are_shown_whole_and_move_no_cursor() -> None:
    assert "x" * 5000 in wait_text(LEAVE)
    hostile = task_pb2.Wait(wait_id="w8", tool="pay", arguments_json='{"to": "\x1b[2Jbob"}')
    assert "\x1b" not in wait_text(hostile)
