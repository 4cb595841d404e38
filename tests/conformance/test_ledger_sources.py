"""The source of a task: a run of it is one task, and a list has the tasks of a source."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.domain.errors import AlreadyExists, InvalidRequest
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.conformance.test_ledger_forks import fork
from tests.conformance.test_ledger_sub_agents import spawner
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint

SCHEDULER = task_pb2.SOURCE_KIND_SCHEDULER
CONTROL = task_pb2.SOURCE_KIND_CONTROL
KINDS = tuple(task_pb2.SourceKind.values()[1:])


def run_of(source_id: str = "nightly", run: str = "monday", kind: Any = SCHEDULER) -> task_pb2.Source:
    return task_pb2.Source(kind=kind, source_id=source_id, source_run_id=run)


async def listed(replica: Checkpoint, source: Any = None, page_size: int = 0, **wanted: Any) -> list[str]:
    """All pages, newest first."""
    ids: list[str] = []
    token = ""
    while True:
        task_filter = task_pb2.TaskFilter(source=source, **wanted)
        request = tasks_pb.ListTasksRequest(filter=task_filter, page_size=page_size, page_token=token)
        page = await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)
        ids += [task.task_id for task in page.tasks]
        token = page.next_page_token
        if not token:
            return ids


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_of_a_source_is_one_task(replica: Checkpoint, other_replica: Checkpoint, kind: Any) -> None:
    source = run_of(kind=kind)
    sides = [side for side in (replica, other_replica) for _ in range(5)]
    tasks = await asyncio.gather(*[side.create(source=source) for side in sides])
    assert {task.task_id for task in tasks} == {tasks[0].task_id}
    assert await replica.query("select count(*) from ledger.tasks where tenant = %s", replica.tenant) == [(1,)]
    owner = await replica.claim(tasks[0].task_id)
    await owner.end(task_pb2.TASK_STATE_FAILED)
    assert (await replica.create(source=source)).state == task_pb2.TASK_STATE_FAILED


async def test_a_run_with_another_spec_is_refused(replica: Checkpoint) -> None:
    task = await replica.create("r-1", source=run_of())
    for attempt in (replica.create(goal="another", source=run_of()), replica.create("r-2", queue="q", source=run_of())):
        with pytest.raises(AlreadyExists) as refused:
            await attempt
        assert (refused.value.reason, refused.value.metadata) == ("SOURCE_RUN_REUSED", {"task_id": task.task_id})
    with pytest.raises(AlreadyExists) as refused:  # the request id is judged first
        await replica.create("r-1", source=run_of(run="tuesday"))
    assert refused.value.reason == "REQUEST_ID_REUSED"


async def test_a_difference_in_any_part_is_another_run(replica: Checkpoint) -> None:
    sources = [run_of(), run_of("weekly"), run_of(run="tuesday"), run_of(kind=CONTROL)]
    tasks = [await replica.create(source=source) for source in sources]
    without_run = task_pb2.Source(kind=CONTROL, source_id="nightly")
    tasks += [await replica.create(source=without_run) for _ in range(2)]
    assert len({task.task_id for task in tasks}) == 6


async def test_another_tenant_has_runs_of_its_own(replica: Checkpoint) -> None:
    first = await replica.create(source=run_of())
    async with replica.of_tenant("acme") as acme:
        other = await acme.create(source=run_of())
    assert other.task_id != first.task_id
    assert await listed(replica, task_pb2.SourceFilter(kind=SCHEDULER)) == [first.task_id]


async def test_find_repeat_finds_the_run(replica: Checkpoint) -> None:
    task = await replica.create(source=run_of())
    for goal, task_id in (("do it", task.task_id), ("another", None)):
        spec = task_pb2.TaskSpec(goal=goal, source=run_of())
        request = pb.FindRepeatRequest(create_task=pb.CreateTaskRequest(request_id=str(uuid4()), spec=spec))
        if task_id is None:
            with pytest.raises(AlreadyExists):
                await replica.stub.FindRepeat(request, timeout=TIMEOUT_SECONDS)
        else:
            response = await replica.stub.FindRepeat(request, timeout=TIMEOUT_SECONDS)
            assert response.task.task_id == task_id


async def test_a_fork_keeps_the_source_but_not_the_run(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(source=run_of())).task_id)
    task_id = owner.task.task_id
    forked = await fork(replica, task_id, message="Again?", at_sequence=2)
    assert forked.spec.source == task_pb2.Source(kind=SCHEDULER, source_id="nightly")
    own = task_pb2.ForkOverrides(source=run_of(run="tuesday"))
    second = await fork(replica, task_id, "f-2", message="Again?", at_sequence=2, overrides=own)
    assert second.spec.source == run_of(run="tuesday")
    assert (await fork(replica, task_id, "f-2", message="Again?", at_sequence=2, overrides=own)) == second
    taken = task_pb2.ForkOverrides(source=run_of())
    with pytest.raises(AlreadyExists) as refused:
        await fork(replica, task_id, "f-3", message="Again?", at_sequence=2, overrides=taken)
    assert (refused.value.reason, refused.value.metadata["task_id"]) == ("SOURCE_RUN_REUSED", task_id)
    of_source = task_pb2.SourceFilter(kind=SCHEDULER, source_id="nightly")
    assert await listed(replica, of_source) == [second.task_id, forked.task_id, task_id]
    assert await listed(replica, of_source, forked_from_task_id=task_id) == [second.task_id, forked.task_id]


async def test_sub_agents_of_a_run_are_not_runs(replica: Checkpoint) -> None:
    owner, response = await spawner(replica, source=run_of())
    [spawned] = [entry.body.sub_agents_spawned for entry in response.foreign_entries]
    for task_id in spawned.task_ids:
        assert (await replica.get(task_id)).spec.source == task_pb2.Source(kind=SCHEDULER, source_id="nightly")
    run = task_pb2.SourceFilter(kind=SCHEDULER, source_id="nightly", source_run_id="monday")
    assert await listed(replica, run) == [owner.task.task_id]


@pytest.mark.parametrize("source", [run_of(run=""), run_of(""), run_of("", "")], ids=["run", "id", "both"])
async def test_a_scheduler_names_its_run(replica: Checkpoint, source: Any) -> None:
    with pytest.raises(InvalidRequest):
        await replica.create(source=source)


async def test_a_list_has_the_tasks_of_a_source(replica: Checkpoint) -> None:
    runs = [(await replica.create(source=run_of(run=f"run/{n}"))).task_id for n in range(5)][::-1]
    weekly = (await replica.create(source=run_of("weekly"), queue="q")).task_id
    by_hand = (await replica.create()).task_id
    of_kind = task_pb2.SourceFilter(kind=SCHEDULER)
    nightly = task_pb2.SourceFilter(kind=SCHEDULER, source_id="nightly")
    assert await listed(replica, of_kind) == [weekly, *runs]
    assert await listed(replica, nightly, page_size=2) == runs
    assert await listed(replica, of_kind, queue="q") == [weekly]
    assert await listed(replica, task_pb2.SourceFilter()) == [by_hand]
    one = task_pb2.SourceFilter(kind=SCHEDULER, source_id="nightly", source_run_id="run/3")
    assert await listed(replica, one) == [runs[1]]
    assert await listed(replica, one, queue="q") == []
    with pytest.raises(InvalidRequest, match="source_id"):
        await listed(replica, task_pb2.SourceFilter(kind=SCHEDULER, source_run_id="monday"))


async def test_sql_cannot_change_a_source(replica: Checkpoint) -> None:
    await replica.create(source=run_of())
    with pytest.raises(psycopg.errors.CheckViolation):
        await replica.query("update ledger.tasks set source_run_id = 'tuesday'")
