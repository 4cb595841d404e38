"""Which tasks a command that takes several acts on, and how."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.cli.many_tasks import Selection
from tenure.v1 import task_pb2

NONE = task_pb2.TaskFilter()


@pytest.mark.parametrize(
    ("fields", "single"),
    [
        ({}, "a"),
        ({"is_confirmed": True}, "a"),
        ({"tasks": ("a", "b")}, ""),
        ({"task_filter": task_pb2.TaskFilter(queue="q")}, ""),
        ({"only_shows": True}, ""),
        ({"operation_id": "o"}, ""),  # the act of an operation is safe to repeat
    ],
)
def test_one_task_is_acted_on_by_itself(fields: Any, single: str) -> None:
    given: dict[str, Any] = {"tasks": ("a",), "task_filter": NONE, "per_second": 20, "operation_id": "", **fields}
    assert Selection(**given).single == single
