"""The first characters of an id stand for the id, where only one task has them."""

from __future__ import annotations

import asyncio

import pytest

from tenure.domain.errors import InvalidRequest, NotFound
from tenure.domain.task_ids import id_range
from tenure.sdk.task_ids import find_task_id
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

IDS = [f"01a222a2-7e66-7000-8000-00000000000{n}" for n in range(7)]


def find(text: str, *task_ids: str) -> str:
    async def list_tasks(request: api.ListTasksRequest) -> api.ListTasksResponse:
        assert request.filter.task_id_prefix == text
        tasks = [task_pb2.Task(task_id=task_id) for task_id in task_ids[: request.page_size]]
        return api.ListTasksResponse(tasks=tasks)

    return asyncio.run(find_task_id(list_tasks, text))


def test_a_prefix_is_a_range_of_ids() -> None:
    first, last = "01a222a2-7e60-0000-0000-000000000000", "01a222a2-7e6f-ffff-ffff-ffffffffffff"
    assert id_range("01A222A2-7e6") == id_range("01a222a27e6") == (first, last)
    assert id_range(first) == (first, first)
    assert [id_range(text) for text in ("", "01a", "01a222xx", first + "0")] == [None] * 4


def test_one_match_is_the_task() -> None:
    assert find("01a222a2-7e66", IDS[0]) == IDS[0]


def test_several_matches_are_an_error_with_their_ids() -> None:
    with pytest.raises(InvalidRequest, match="give more characters") as refused:
        find("01a222a2-7e66", *IDS)
    assert (refused.value.reason, refused.value.metadata) == ("AMBIGUOUS_TASK_ID", {"task_ids": ",".join(IDS[:5])})


def test_no_match_and_no_id_are_errors() -> None:
    with pytest.raises(NotFound, match="begins with 01a2"):
        find("01a2")
    with pytest.raises(InvalidRequest, match="not the id of a task"):
        find("what")


def test_a_whole_id_is_not_looked_up() -> None:
    async def list_tasks(_request: api.ListTasksRequest) -> api.ListTasksResponse:
        raise AssertionError

    assert asyncio.run(find_task_id(list_tasks, IDS[0].upper())) == IDS[0]
