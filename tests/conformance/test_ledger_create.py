"""A submit is accepted once, whatever is repeated, and is seen by its own tenant only."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.task import spec_to_domain, spec_to_wire
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, kinds


async def test_a_new_task_is_queued_with_its_goal_as_first_entries(replica: Checkpoint) -> None:
    task = await replica.create(goal="write a poem", labels={"team": "red"}, queue="poems")
    assert task.state == task_pb2.TASK_STATE_QUEUED
    assert (task.reason, task.attempt, task.sequence, task.root_task_id) == ("SUBMITTED", 1, 2, task.task_id)
    assert task.spec.agent.loop == "messages"
    assert task.budget.max_tokens == 2_000_000
    entries = await replica.entries(task.task_id)
    assert kinds(entries) == ["submitted", ">QUEUED"]
    assert entries[0].body.submitted.spec == task.spec


async def test_the_same_request_id_and_payload_give_the_same_task(replica: Checkpoint) -> None:
    first = await replica.create("r-1", goal="once")
    assert await replica.create("r-1", goal="once") == first


async def test_the_same_submit_many_times_at_once_makes_one_task(
    replica: Checkpoint, other_replica: Checkpoint
) -> None:
    tasks = await asyncio.gather(
        *[side.create("r-1", goal="once") for side in (replica, other_replica) for _ in range(10)]
    )
    assert len({task.task_id for task in tasks}) == 1
    assert await replica.query("select count(*) from ledger.tasks where tenant = %s", replica.tenant) == [(1,)]
    assert await replica.query("select count(*) from ledger.entries where tenant = %s", replica.tenant) == [(2,)]


async def test_a_request_id_with_another_payload_is_refused(replica: Checkpoint) -> None:
    task = await replica.create("r-1", goal="this")
    with pytest.raises(AlreadyExists) as refused:
        await replica.create("r-1", goal="that")
    assert refused.value.reason == "REQUEST_ID_REUSED"
    assert refused.value.metadata == {"task_id": task.task_id}


async def test_a_repeat_is_recognised_despite_changed_defaults(
    replica: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await replica.create("r-1", goal="once", labels={"a": "1", "b": "2"})
    filled_in = task_pb2.TaskSpec()

    def with_another_default(spec: Any) -> Any:
        changed = replace(spec_to_domain(spec), queue="another-default")
        filled_in.CopyFrom(spec_to_wire(changed))
        return changed

    monkeypatch.setattr("services.checkpoint.task_defaults.spec_to_domain", with_another_default)
    assert await replica.create("r-1", goal="once", labels={"b": "2", "a": "1"}) == first
    assert filled_in.queue != first.spec.queue


async def test_an_explicit_default_is_another_payload(replica: Checkpoint) -> None:
    """It would mean something else once the default is another."""
    await replica.create("r-1", goal="once")
    with pytest.raises(AlreadyExists):
        await replica.create("r-1", goal="once", queue="default")


async def test_a_goal_may_contain_nul(replica: Checkpoint) -> None:
    task = await replica.create(goal="zero \0 byte")
    assert (await replica.get(task.task_id)).spec.goal == "zero \0 byte"


async def test_a_label_that_cannot_be_kept_is_the_callers_mistake(replica: Checkpoint) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await replica.create(labels={"k": "\0"})
    assert refused.value.violations == (("spec.labels['k']", "must not contain NUL"),)


async def test_another_tenants_task_is_not_found(replica: Checkpoint) -> None:
    task = await replica.create("r-1")
    async with replica.of_tenant("others") as other:
        for request in (other.get(task.task_id), other.entries(task.task_id), other.cancel(task.task_id)):
            with pytest.raises(NotFound):
                await request
        with pytest.raises(NotFound):
            async for _ in other.stub.WatchEntries(pb.WatchEntriesRequest(task_id=task.task_id)):
                pass
        assert (await other.create("r-1")).task_id != task.task_id


async def list_tasks(replica: Any, page_token: str = "", page_size: int = 0, **wanted: Any) -> Any:
    request = tasks_pb.ListTasksRequest(
        filter=task_pb2.TaskFilter(**wanted), page_size=page_size, page_token=page_token
    )
    return await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)


async def test_lists_are_newest_first_without_gaps_or_repeats(replica: Checkpoint) -> None:
    made = [(await replica.create(goal=f"{n}")).task_id for n in range(7)]
    results, token = [], ""
    while True:
        page = await list_tasks(replica, token, page_size=3)
        results += [task.task_id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
        await replica.create(goal="later than the first page")
    assert results == made[::-1]


async def test_lists_are_filtered_by_state_label_and_queue(replica: Checkpoint) -> None:
    wanted = await replica.create(labels={"a": "1", "b": "2"}, queue="q")
    other = await replica.create(labels={"a": "2"})
    await replica.cancel(other.task_id)

    async def ids(**filters: Any) -> Any:
        return [task.task_id for task in (await list_tasks(replica, **filters)).tasks]

    assert await ids(labels={"a": "1"}) == [wanted.task_id]
    assert await ids(queue="q") == [wanted.task_id]
    assert await ids(states=[task_pb2.TASK_STATE_CANCELLED]) == [other.task_id]
    assert await ids(root_task_id=wanted.task_id) == [wanted.task_id]
    assert await ids(root_task_id=str(uuid4())) == []


async def test_tasks_too_large_for_one_answer_come_in_several_pages(replica: Checkpoint) -> None:
    for n in range(16):
        await replica.create(goal=f"{n}" + "x" * 250_000)
    first = await list_tasks(replica, page_size=50)
    assert 0 < len(first.tasks) < 16
    rest = await list_tasks(replica, first.next_page_token, page_size=50)
    assert len(first.tasks) + len(rest.tasks) == 16
    assert not rest.next_page_token


async def test_a_page_token_of_another_request_is_refused(replica: Checkpoint) -> None:
    for text in ("nonsense", f"soon {uuid4()}", f"2026-11-26 07:00:00+00 {'x' * 36}"):
        with pytest.raises(InvalidRequest, match="page_token"):
            await list_tasks(replica, base64.urlsafe_b64encode(text.encode()).decode())
    # Times that Python reads and Postgres does not.
    for time in ("2026-W48-4", "2026-11-26\x0007:00:00+00", "2026-11-26 07:00:00+00:00:00.5"):
        await list_tasks(replica, base64.urlsafe_b64encode(f"{time} {uuid4()}".encode()).decode())
