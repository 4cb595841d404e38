"""An exclusive source has one live task: the database decides, and the refusal names the task."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, InvalidRequest
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, reserve


def talk(source_id: str = "c-1", exclusive: bool = True, kind: Any = task_pb2.SOURCE_KIND_CONVERSATION) -> Any:
    return task_pb2.Source(kind=kind, source_id=source_id, exclusive=exclusive)


async def end(replica: Any, task_id: Any, state: Any = task_pb2.TASK_STATE_SUCCEEDED) -> None:
    owner = await replica.claim(task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    await owner.end(state)


async def refused_for(replica: Any, task_id: Any, **spec: Any) -> None:
    with pytest.raises(AlreadyExists) as refused:
        await replica.create(**spec)
    assert (refused.value.reason, refused.value.metadata) == ("SOURCE_BUSY", {"task_id": task_id})


async def test_of_many_submits_of_one_conversation_one_gives_a_task(
    replica: Checkpoint, other_replica: Checkpoint
) -> None:
    sides = [side for side in (replica, other_replica) for _ in range(5)]
    made = await asyncio.gather(*[side.create(source=talk()) for side in sides], return_exceptions=True)
    [task] = [one for one in made if not isinstance(one, AlreadyExists)]
    refused = [one for one in made if isinstance(one, AlreadyExists)]
    assert not isinstance(task, BaseException)
    assert {(one.reason, one.metadata["task_id"]) for one in refused} == {("SOURCE_BUSY", task.task_id)}
    assert task.spec.source.exclusive


async def test_a_submit_is_repeated_while_its_task_lives(replica: Checkpoint) -> None:
    task = await replica.create("r-1", source=talk())
    assert await replica.create("r-1", source=talk()) == task


@pytest.mark.parametrize(
    "other",
    [talk("c-2"), talk(exclusive=False), talk(kind=task_pb2.SOURCE_KIND_MANUAL)],
    ids=["another id", "did not ask", "another kind"],
)
async def test_another_conversation_is_not_refused(replica: Checkpoint, other: Any) -> None:
    await replica.create(source=talk())
    await replica.create(source=other)


async def test_the_next_task_of_a_conversation_may_come_after_the_end(replica: Checkpoint) -> None:
    first = await replica.create(source=talk())
    await refused_for(replica, first.task_id, source=talk())
    await end(replica, first.task_id)
    second = await replica.create(source=talk())
    await replica.cancel(second.task_id)
    await replica.create(source=talk())


async def test_a_fork_of_a_conversation_is_its_next_task(replica: Checkpoint) -> None:
    first = await replica.create(source=talk())
    await end(replica, first.task_id)
    request = tasks_pb.ForkTaskRequest(request_id="f-1", task_id=first.task_id, actor="alice", message="and then?")
    forked = (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task
    await refused_for(replica, forked.task_id, source=talk())
    request.request_id = "f-2"
    with pytest.raises(AlreadyExists) as refused:
        await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)
    assert (refused.value.reason, refused.value.metadata) == ("SOURCE_BUSY", {"task_id": forked.task_id})
    request.overrides.source.CopyFrom(talk(exclusive=False))
    assert (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task.task_id != forked.task_id


async def test_an_ended_task_is_not_requeued_beside_the_next_one(replica: Checkpoint) -> None:
    first = await replica.create(source=talk())
    await end(replica, first.task_id, task_pb2.TASK_STATE_FAILED)
    second = await replica.create(source=talk())
    act = ledger_pb2.OperatorRequest(reason="once more", requeue=ledger_pb2.OperatorRequest.Requeue())
    request = pb.AppendForeignRequest(
        task_id=first.task_id, request_id=str(uuid4()), actor="olga", operator_request=act
    )
    with pytest.raises(AlreadyExists) as refused:
        await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    assert refused.value.metadata == {"task_id": second.task_id}
    await replica.cancel(second.task_id)
    answered = await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    assert answered.task.state == task_pb2.TASK_STATE_QUEUED


async def test_exclusive_sources_are_per_tenant_and_need_a_name(
    replica: Checkpoint,
) -> None:
    await replica.create(source=talk())
    plan = await replica.query("select indexdef from pg_indexes where indexname = 'tasks_one_per_source'")
    assert "(tenant, exclusive_source)" in plan[0][0]
    with pytest.raises(InvalidRequest):
        await replica.create(source=talk(source_id=""))
