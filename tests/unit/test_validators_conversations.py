"""Bounds of messages and forks."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.validators import validate

TASK: Final = "018f0000-0000-7000-8000-000000000001"


def fork(**fields: Any) -> tasks.ForkTaskRequest:
    """A fork as the gateway completes it."""
    return tasks.ForkTaskRequest(request_id="f", task_id=TASK, actor="a", **fields)


def fork_with(**overrides: Any) -> tasks.ForkTaskRequest:
    return fork(overrides=task_pb2.ForkOverrides(**overrides))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (tasks.SendMessageRequest(task_id=TASK), "text"),
        (tasks.SendMessageRequest(task_id=TASK, text=" \n"), "text"),
        (tasks.ForkTaskRequest(task_id=TASK, at_sequence=0), "at_sequence"),
        (tasks.ForkTaskRequest(task_id=TASK, message=" "), "message"),
        (fork_with(all_tools=True, tools=task_pb2.ToolAllowlist(names=["t"])), "overrides.all_tools"),
        (fork_with(source=task_pb2.Source(exclusive=True)), "overrides.source.exclusive"),
    ],
)
def test_messages_and_forks_are_kept_within_their_bounds(request_: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate(request_)
    assert {violation.field for violation in refused.value.violations} == {field}


def test_a_fork_needs_no_more_than_a_task() -> None:
    validate(fork())
    validate(fork(step=0, overrides=task_pb2.ForkOverrides(model="")))
