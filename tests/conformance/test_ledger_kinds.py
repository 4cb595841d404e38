"""A reader that wants some kinds of entries gets them only, in pages, and no bodies of others."""

from __future__ import annotations

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, reserve

WANTED = ("submitted", "user_message")


async def listed(replica: Checkpoint, task_id: str, page_size: int, *kinds: str) -> list[tuple[int, str]]:
    """The sequences and kinds of all pages."""
    found: list[tuple[int, str]] = []
    more, pages = True, 0
    while more:
        after = found[-1][0] if found else 0
        request = tasks_pb.ListTaskEntriesRequest(
            task_id=task_id, after_sequence=after, page_size=page_size, kinds=kinds
        )
        page = await replica.stub.ListTaskEntries(request, timeout=TIMEOUT_SECONDS)
        assert len(page.entries) <= page_size
        found += [(entry.sequence, str(entry.body.WhichOneof("body"))) for entry in page.entries]
        more, pages = page.more, pages + 1
        assert pages < 50
    return found


async def test_only_the_requested_kinds_are_returned(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    for step in range(1, 4):
        await replica.say(task_id, f"note {step}")
        await owner.commit(reserve=reserve(step))
        await owner.commit(answer(1, step))
    whole = await listed(replica, task_id, 1000)
    expected = [(sequence, kind) for sequence, kind in whole if kind in WANTED]
    assert [kind for _, kind in expected] == ["submitted", *["user_message"] * 3]
    for page_size in (1, 2, 1000):
        assert await listed(replica, task_id, page_size, *WANTED) == expected
    assert await listed(replica, task_id, 10, "forked") == []


async def test_a_kind_that_does_not_exist_is_refused(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    with pytest.raises(InvalidRequest, match="kinds"):
        await listed(replica, task_id, 10, "user_mesage")
