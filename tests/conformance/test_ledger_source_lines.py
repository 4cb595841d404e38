"""Tasks of a source wait in line: no more live ones than Source.at_most, in order of their submits, none forgotten."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from services.checkpoint.submit import source_lines
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, TenureError, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import duration, state_name, timestamp
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    MakeCheckpoint,
    MakeCheckpointProcess,
    answer,
    reserve,
)
from tests.support.patience import PATIENCE_SECONDS

QUEUED = task_pb2.TASK_STATE_QUEUED
CANCELLED = task_pb2.TASK_STATE_CANCELLED


def customer(at_most: int = 1, *, debounce: float | None = None, **fields: Any) -> task_pb2.Source:
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONTROL, source_id="customer-7", at_most=at_most)
    source.MergeFrom(task_pb2.Source(debounce=None if debounce is None else duration(debounce), **fields))
    return source


def in_an_hour() -> Timestamp:
    return timestamp(datetime.now(UTC) + timedelta(hours=1))


async def task_where(replica: Checkpoint, task_id: str, holds: Callable[[task_pb2.Task], bool]) -> task_pb2.Task:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds(task := await replica.get(task_id)):
            await asyncio.sleep(0.02)
    return task


async def admitted(replica: Checkpoint, task_id: str) -> task_pb2.Task:
    return await task_where(replica, task_id, lambda task: task.state == QUEUED and not task.in_line)


async def submit(replica: Checkpoint, **spec: Any) -> str:
    """A task that its line has admitted."""
    task = await replica.create(**{"source": customer(), **spec})
    await admitted(replica, task.task_id)
    return task.task_id


async def behind(replica: Checkpoint, **spec: Any) -> str:
    """A task that waits in line."""
    task = await replica.create(**{"source": customer(), **spec})
    assert task.in_line
    return task.task_id


async def line_was_looked_at(replica: Checkpoint) -> None:
    """Returns when every line that might have admitted a task was looked at."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await replica.query("select 1 from ledger.due_source_lines"):
            await asyncio.sleep(0.02)


async def stays_in_line(replica: Checkpoint, *task_ids: str) -> None:
    await line_was_looked_at(replica)
    assert [(await replica.get(task_id)).in_line for task_id in task_ids] == [True] * len(task_ids)


async def end(replica: Checkpoint, task_id: str, state: Any = task_pb2.TASK_STATE_SUCCEEDED) -> None:
    owner = await replica.claim(task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    await owner.end(state)


async def operate(replica: Checkpoint, task_id: str, **act: Any) -> task_pb2.Task:
    request = ledger_pb2.OperatorRequest(reason="by hand", **act)
    append = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid4()), actor="olga", operator_request=request)
    response: pb.AppendForeignResponse = await replica.stub.AppendForeign(append, timeout=TIMEOUT_SECONDS)
    return response.task


async def offers(replica: Checkpoint) -> list[str]:
    request = pb.ListClaimableRequest(limit=10, tenants=[replica.tenant])
    return [one.task_id for one in (await replica.stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers]


async def work(replica: Checkpoint, live: set[str], ended: list[str], number: int) -> None:
    """Runs the tasks that the replica offers, until so many have ended."""
    while len(ended) < number:
        for task_id in await offers(replica):
            assert not live, "two tasks of the source run at once"
            live.add(task_id)
            owner = await replica.claim(task_id)
            live.discard(task_id)
            ended.append(task_id)
            await owner.end(task_pb2.TASK_STATE_FAILED)


async def test_tasks_of_a_busy_source_run_one_by_one_in_order(replica: Checkpoint, other_replica: Checkpoint) -> None:
    first = await submit(replica)
    sides = [side for side in (replica, other_replica) for _ in range(25)]
    tasks = await asyncio.gather(*(side.create(source=customer()) for side in sides))
    assert all(task.in_line for task in tasks)
    ended: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(work(side, set(), ended, 51) for side in (replica, other_replica)))
    created = "select task_id::text from ledger.tasks where tenant = %s order by created_at, task_id"
    assert ended == [task_id for (task_id,) in await replica.query(created, replica.tenant)]
    assert ended[0] == first
    overlap = (
        "select count(*) from ledger.tasks a join ledger.tasks b on a.tenant = b.tenant and a.task_id <> b.task_id"
        " and b.started_at >= a.started_at and b.started_at < a.ended_at where a.tenant = %s"
    )
    assert await replica.query(overlap, replica.tenant) == [(0,)]


async def by_commit(replica: Checkpoint, task_id: str) -> None:
    await end(replica, task_id, task_pb2.TASK_STATE_FAILED)


async def by_cancel(replica: Checkpoint, task_id: str) -> None:
    await replica.cancel(task_id)


async def by_close_out(replica: Checkpoint, task_id: str) -> None:
    close = ledger_pb2.OperatorRequest.CloseOut(to_state=task_pb2.TASK_STATE_FAILED)
    await operate(replica, task_id, close_out=close)


async def by_deadline(replica: Checkpoint, task_id: str) -> None:
    await replica.query("update ledger.tasks set deadline_at = now() where task_id = %s", task_id)


async def by_queue_timeout(replica: Checkpoint, task_id: str) -> None:
    await replica.query("update ledger.tasks set queued_until = now() where task_id = %s", task_id)


@pytest.mark.parametrize("end_it", [end, by_commit, by_cancel, by_close_out, by_deadline, by_queue_timeout])
async def test_each_end_of_a_task_admits_the_next_one(replica: Checkpoint, end_it: Any) -> None:
    first = await submit(replica)
    second, third = await behind(replica), await behind(replica)
    await stays_in_line(replica, second, third)
    assert await offers(replica) == [first]
    await end_it(replica, first)
    await admitted(replica, second)
    assert await offers(replica) == [second]
    await stays_in_line(replica, third)


async def test_a_cancelled_task_lets_the_one_behind_it_go_on(replica: Checkpoint) -> None:
    first = await submit(replica)
    second, third = await behind(replica), await behind(replica)
    assert (await replica.cancel(second)).state == CANCELLED
    await stays_in_line(replica, third)
    await end(replica, first)
    await admitted(replica, third)


async def test_a_waiting_task_keeps_its_source_busy(replica: Checkpoint) -> None:
    first = await submit(replica)
    owner = await replica.claim(first)
    second = await behind(replica)
    retry = pb.Transition(
        to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="MODEL_UNAVAILABLE", retry_delay=duration(3600)
    )
    await owner.commit(transition=retry)
    await stays_in_line(replica, second)
    await replica.query("update ledger.tasks set next_retry_at = now() where task_id = %s", first)
    await admitted(replica, first)
    await stays_in_line(replica, second)


async def test_a_source_admits_as_many_tasks_as_it_allows(replica: Checkpoint) -> None:
    first, second = [await submit(replica, source=customer(2)) for _ in range(2)]
    third = await behind(replica, source=customer(2))
    alone = await behind(replica, source=customer(1))
    await stays_in_line(replica, third, alone)
    await end(replica, second)
    await admitted(replica, third)
    await end(replica, third)
    await stays_in_line(replica, alone)
    await end(replica, first)
    await admitted(replica, alone)
    await stays_in_line(replica, await behind(replica, source=customer(1)))


async def test_an_exclusive_task_and_the_line_share_the_source(replica: Checkpoint) -> None:
    first = await submit(replica)
    exclusive = customer(0, exclusive=True)
    with pytest.raises(AlreadyExists) as refused:
        await replica.create(source=exclusive)
    assert (refused.value.reason, refused.value.metadata) == ("SOURCE_BUSY", {"task_id": first})
    await end(replica, first)
    second = (await replica.create(source=exclusive)).task_id
    third = await behind(replica)
    await stays_in_line(replica, third)
    await end(replica, second)
    await admitted(replica, third)


async def test_a_requeued_task_waits_in_line_again(replica: Checkpoint) -> None:
    first = await submit(replica)
    second, third = await behind(replica), await behind(replica)
    await end(replica, first, task_pb2.TASK_STATE_FAILED)
    await admitted(replica, second)
    assert (await operate(replica, first, requeue=ledger_pb2.OperatorRequest.Requeue())).in_line
    await stays_in_line(replica, first, third)
    await end(replica, second)
    await admitted(replica, first)  # it was submitted before the third
    await stays_in_line(replica, third)


async def test_a_requeued_task_goes_on_at_once_when_its_source_is_free(replica: Checkpoint) -> None:
    first = await submit(replica)
    await end(replica, first, task_pb2.TASK_STATE_FAILED)
    await operate(replica, first, requeue=ledger_pb2.OperatorRequest.Requeue())
    await admitted(replica, first)
    assert (await replica.claim(first)).task.attempt == 2


async def test_a_claim_from_before_the_line_does_not_open(replica: Checkpoint) -> None:
    first = await submit(replica)
    granted = await replica.grant(first)
    second = await behind(replica)
    await replica.cancel(first)
    await admitted(replica, second)
    await operate(replica, first, requeue=ledger_pb2.OperatorRequest.Requeue())
    with pytest.raises(WrongState) as refused:
        await replica.open(*granted)
    assert refused.value.reason == "IN_LINE"


async def test_a_fork_waits_in_line(replica: Checkpoint) -> None:
    first = await submit(replica)
    await end(replica, first)
    second = await submit(replica)
    request = tasks_pb.ForkTaskRequest(request_id="f", task_id=first, actor="alice", message="and then?")
    fork = (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task
    assert fork.in_line
    await end(replica, second)
    await admitted(replica, fork.task_id)


async def test_an_operators_wait_gives_way_to_the_line(replica: Checkpoint) -> None:
    first = await submit(replica)
    second, third = await behind(replica), await behind(replica)
    wait = ledger_pb2.OperatorRequest.BeginWait(question="Go on?", until=in_an_hour())
    waiting = await operate(replica, second, begin_wait=wait)
    await end(replica, first)
    await admitted(replica, third)
    reply = pb.WaitAnswer(wait_id=waiting.wait.wait_id, decision="continue")
    request = pb.AppendForeignRequest(task_id=second, request_id="a", actor="alice", wait_answer=reply)
    assert (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task.in_line
    await stays_in_line(replica, second)
    await end(replica, third)
    await admitted(replica, second)


async def test_a_later_start_does_not_keep_the_line(replica: Checkpoint) -> None:
    first = await behind(replica, start_time=in_an_hour())
    second = await submit(replica)
    await replica.query("update ledger.tasks set starts_at = now() where task_id = %s", first)
    await task_where_it_waits(replica, first)
    await stays_in_line(replica, first)
    await end(replica, second)
    await admitted(replica, first)


async def task_where_it_waits(replica: Checkpoint, task_id: str) -> None:
    """Returns when the start of the task has come."""
    started = "select 1 from ledger.tasks where task_id = %s and starts_at = 'infinity'"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await replica.query(started, task_id):
            await asyncio.sleep(0.02)


async def test_a_burst_of_submits_becomes_one_run(replica: Checkpoint, other_replica: Checkpoint) -> None:
    source = customer(debounce=3600)
    sides = [side for side in (replica, other_replica) for _ in range(5)]
    tasks = await asyncio.gather(*(side.create(source=source) for side in sides))
    states = [(await replica.get(task.task_id)).state for task in tasks]
    assert sorted(states) == sorted([QUEUED, *[CANCELLED] * 9])
    newest = await replica.create("newest", source=source)
    replaced = [await replica.get(task.task_id) for task in tasks]
    assert {(state_name(task.state), task.reason) for task in replaced} == {("CANCELLED", "SUPERSEDED")}
    assert f"the task {newest.task_id} of its source replaces it" in {task.message for task in replaced}
    assert await replica.create("newest", source=source) == newest, "a repeat replaces nothing"
    await stays_in_line(replica, newest.task_id)
    await replica.query("update ledger.tasks set starts_at = now() where task_id = %s", newest.task_id)
    await admitted(replica, newest.task_id)
    after = await replica.create(source=source)
    assert (await replica.get(newest.task_id)).state == QUEUED, "an admitted task is not replaced"
    await end(replica, newest.task_id)
    assert after.in_line


async def test_a_burst_ends_although_submits_go_on(replica: Checkpoint) -> None:
    for _ in range(3):
        task = await replica.create(source=customer(debounce=3600))
        await replica.query(
            "update ledger.tasks set debounced_since = debounced_since - interval '5 hours' where task_id = %s",
            task.task_id,
        )
    await admitted(replica, task.task_id)  # ten hours after the first submit


async def test_a_debounced_task_is_replaced_while_its_source_is_busy(replica: Checkpoint) -> None:
    first, plain = await submit(replica), await behind(replica)
    second = await behind(replica, source=customer(debounce=0.01))
    await task_where_it_waits(replica, second)
    third = await behind(replica, source=customer(debounce=0.01))
    assert (await replica.get(second)).reason == "SUPERSEDED"
    await end(replica, first)
    await admitted(replica, plain)  # without a debounce nothing replaces it
    await end(replica, plain)
    await admitted(replica, third)


async def test_a_full_line_refuses_a_submit(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "MAX_IN_LINE", 2)
    await submit(replica)
    await behind(replica)
    last = await replica.create("last", source=customer())
    with pytest.raises(LimitReached) as refused:
        await replica.create(source=customer())
    assert refused.value.reason == "SOURCE_LINE_FULL"
    assert (await replica.create("last", source=customer())).task_id == last.task_id, "a repeat needs no room"


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (task_pb2.Source(at_most=1), "at_most"),
        (customer(101), "at_most"),
        (customer(1, exclusive=True), "at_most"),
        (customer(0, debounce=1.0), "debounce"),
        (customer(1, debounce=86401.0), "debounce"),
    ],
    ids=["without an id", "too many", "exclusive", "debounce alone", "debounce too long"],
)
async def test_an_invalid_line_is_refused(replica: Checkpoint, source: task_pb2.Source, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await replica.create(source=source)
    assert refused.value.field == f"spec.source.{field}"


async def test_a_refused_row_does_not_keep_other_lines(replica: Checkpoint) -> None:
    first, other = await submit(replica), await submit(replica, source=customer(source_id="customer-8"))
    second, next_of_other = await behind(replica), await behind(replica, source=customer(source_id="customer-8"))
    refusal = "create function ledger.refuse() returns trigger language plpgsql as 'begin raise ''refused''; end'"
    await replica.query(refusal)
    await replica.query(
        "create trigger refused before update of exclusive_source on ledger.tasks for each row"
        f" when (new.task_id = '{second}' and new.exclusive_source <> '') execute function ledger.refuse()"
    )
    await replica.cancel(first)
    await replica.cancel(other)
    await admitted(replica, next_of_other)
    await replica.query("drop trigger refused on ledger.tasks")
    await admitted(replica, second)


async def test_a_replica_that_starts_looks_at_all_lines(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    first, second = await submit(replica), await behind(replica)
    await line_was_looked_at(replica)
    by_hand = "state = 'FAILED', ended_at = now(), queued_at = null, exclusive_source = null"
    await replica.query(  # as a replica of a version without lines ends it
        "do $$ begin set local session_replication_role = replica;"
        f" update ledger.tasks set {by_hand} where task_id = '{first}'; end $$"
    )
    await stays_in_line(replica, second)
    await checkpoint(dsn=replica.dsn)
    await admitted(replica, second)


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["after_commit=1", "before_sweep=2", "after_sweep=2"])
async def test_a_killed_ledger_forgets_no_task_in_line(
    checkpoint: MakeCheckpoint, checkpoint_process: MakeCheckpointProcess, moment: str
) -> None:
    """Killed after the commit that ends the first task, or while the line admits the second one.

    The first sweep of a replica is the look at all lines when it starts.
    """
    dying = await checkpoint_process()
    first = await submit(dying.replica)
    second = await behind(dying.replica)
    owner = await dying.replica.claim(first)
    await dying.stop()
    killed = await checkpoint_process(dsn=dying.replica.dsn, failpoints=f"checkpoint.{moment}#kill9")
    owner.replica = killed.replica
    with suppress(TenureError):  # the answer may be lost with the process
        await owner.end()
    assert await killed.wait_until_dead() == -signal.SIGKILL
    replica = await checkpoint(dsn=dying.replica.dsn)
    assert (await replica.get(first)).state == task_pb2.TASK_STATE_SUCCEEDED
    await admitted(replica, second)
