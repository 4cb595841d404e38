"""Messages to an agent: kept once, read before a success, refused after the end of its task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from tenure.domain.close_out import MAX_FACTS
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, answer, kinds, reserve, words
from tests.support.patience import PATIENCE_SECONDS

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
QUEUED = task_pb2.TASK_STATE_QUEUED


async def started(replica: Checkpoint) -> Any:
    return await replica.claim((await replica.create()).task_id)


async def test_a_message_to_a_waiting_task_is_in_its_history(replica: Checkpoint) -> None:
    owner = await started(replica)
    retry = pb.Transition(to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="R", retry_delay=Duration(nanos=1000))
    await owner.commit(transition=retry)
    response = await replica.say(owner.task.task_id, "look here")
    assert response.sequence > owner.known_sequence
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await replica.get(owner.task.task_id)).state != QUEUED:
            await asyncio.sleep(0.01)
    next_owner = await replica.claim(owner.task.task_id)
    assert "look here" in {one.body.user_message.text for one in next_owner.entries}


async def test_a_task_does_not_succeed_past_unread_messages(replica: Checkpoint) -> None:
    owner = await started(replica)
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    response = await replica.say(owner.task.task_id, "one thing more")
    with pytest.raises(WrongState) as refused:
        await owner.end()
    assert (refused.value.reason, refused.value.metadata) == ("UNREAD_MESSAGES", {"sequence": str(response.sequence)})
    assert (await replica.get(owner.task.task_id)).state == task_pb2.TASK_STATE_RUNNING
    again = await replica.open(owner.token, owner.claims)
    assert (again.entries[-1].body.user_message.text, again.next_number) == ("one thing more", owner.next_number)
    assert (await again.end()).state == SUCCEEDED


async def test_a_repeated_success_is_answered_despite_later_messages(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.say(owner.task.task_id, "hello")
    await owner.commit(words())
    request = owner.request(transition=pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result="done"))
    first = await owner.send(request)
    assert await owner.send(request) == first


async def test_another_end_does_not_wait_for_messages(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.say(owner.task.task_id, "one thing more")
    assert (await owner.end(task_pb2.TASK_STATE_FAILED)).state == task_pb2.TASK_STATE_FAILED


async def test_a_cancel_comes_before_unread_messages(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.say(owner.task.task_id, "one thing more")
    await replica.cancel(owner.task.task_id)
    assert (await owner.end()).state == task_pb2.TASK_STATE_CANCELLED


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED"])
async def test_a_message_after_the_end_is_refused(replica: Checkpoint, state: str) -> None:
    owner = await started(replica)
    response = await replica.say(owner.task.task_id, "in time", "m-1")
    owner.known_sequence = response.sequence
    await owner.end(task_pb2.TaskState.Value(f"TASK_STATE_{state}"))
    with pytest.raises(WrongState) as refused:
        await replica.say(owner.task.task_id, "too late")
    assert (refused.value.reason, refused.value.metadata) == ("WRONG_STATE", {"state": state})
    assert (await replica.say(owner.task.task_id, "in time", "m-1")).task_id == owner.task.task_id


async def test_a_message_to_a_task_with_a_pending_ending_is_refused(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.cancel(owner.task.task_id)
    with pytest.raises(WrongState):
        await replica.say(owner.task.task_id, "too late")


async def test_the_limit_of_messages_of_a_task_holds(replica: Checkpoint) -> None:
    task = await replica.create()
    await replica.query(
        "insert into ledger.foreign_requests (task_id, request_id, tenant, hash, sequence) "
        "select %s::uuid, 'm-' || n, %s, '', 1 from generate_series(1, %s) as n",
        task.task_id,
        replica.tenant,
        MAX_FACTS - 1,
    )
    await replica.say(task.task_id, "the last", "last")
    with pytest.raises(WrongState) as refused:
        await replica.say(task.task_id, "too many")
    assert refused.value.reason == "MESSAGES_FULL"
    await replica.say(task.task_id, "the last", "last")
    assert kinds(await replica.entries(task.task_id)).count("user_message") == 1


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_message_is_refused(replica: Checkpoint, text: str) -> None:
    task = await replica.create()
    with pytest.raises(InvalidRequest):
        await replica.say(task.task_id, text)
