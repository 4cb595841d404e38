"""Stops in the ledger: no offer, no grant and no reservation of what they cover, until they end."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from services.models.stops import LedgerStops
from tenure.domain.errors import InvalidRequest, NotFound
from tenure.domain.fencing import compose_epoch
from tenure.domain.stops import Subject
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.conformance.test_ledger_agents import Agents, function
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, answer, reserve
from tests.support.patience import PATIENCE_SECONDS


async def stop(replica: Checkpoint, **selectors: Any) -> Any:
    request = admin_pb.BeginStopRequest(reason="wrong bills", actor="user/ann", **selectors)
    return (await replica.stub.BeginStop(request, timeout=TIMEOUT_SECONDS)).stop


async def resume(replica: Checkpoint, **selectors: Any) -> Any:
    request = admin_pb.EndStopRequest(reason="corrected", actor="user/ann", **selectors)
    return (await replica.stub.EndStop(request, timeout=TIMEOUT_SECONDS)).stop


async def listed(replica: Checkpoint, **fields: Any) -> Any:
    return await replica.stub.ListStops(admin_pb.ListStopsRequest(**fields), timeout=TIMEOUT_SECONDS)


async def offered(replica: Checkpoint) -> set[str]:
    answered = await replica.stub.ListClaimable(pb.ListClaimableRequest(limit=100), timeout=TIMEOUT_SECONDS)
    return {offer.task_id for offer in answered.offers}


async def registered(replica: Checkpoint, task_id: str, epoch: int) -> bool:
    grant = pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=epoch, claim_id=str(uuid4()))
    answered = await replica.stub.RegisterGrants(pb.RegisterGrantsRequest(grants=[grant]), timeout=TIMEOUT_SECONDS)
    return bool(answered.claim_ids)


@pytest.mark.parametrize("selectors", [{"all": True}, {"queue": "nightly"}, {"tenant": "default", "queue": "nightly"}])
async def test_stopped_tasks_are_neither_offered_nor_granted(
    checkpoint: MakeCheckpoint, selectors: dict[str, Any]
) -> None:
    replica = await checkpoint()
    task_id = (await replica.create(queue="nightly")).task_id
    free = (await replica.create(queue="daily")).task_id
    await stop(replica, **selectors)
    others = set() if "all" in selectors else {free}
    assert await offered(replica) == others
    assert not await registered(replica, task_id, compose_epoch(1, 5))
    assert await registered(replica, free, compose_epoch(1, 6)) is ("all" not in selectors)
    await resume(replica, **selectors)
    assert await registered(replica, task_id, compose_epoch(1, 7))


async def test_stop_of_an_agent_passes_over_its_tasks_only(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    agents = Agents(replica)
    await agents.register(function(), "b1", make_current=True)
    mine, free = (await agents.submit()).task_id, (await replica.create()).task_id
    await stop(replica, agent="support")
    assert await offered(replica) == {free}
    assert not await registered(replica, mine, compose_epoch(1, 5))


async def test_stopped_tasks_of_a_queue_are_counted_apart(checkpoint: MakeCheckpoint) -> None:
    """They are held back too: more workers would not help them. The oldest that waits is one that may run."""
    replica = await checkpoint()
    agents = Agents(replica)
    await agents.register(function(), "b1", make_current=True)
    await agents.submit()
    await replica.create()
    await replica.create(queue="nightly")

    async def counts() -> dict[str, tuple[int, int, int, bool]]:
        found: dict[str, tuple[int, int, int, bool]] = {}
        for one in (await replica.stub.ListQueues(admin_pb.ListQueuesRequest(), timeout=TIMEOUT_SECONDS)).queues:
            found[one.queue] = (one.queued, one.held_back, one.stopped, one.HasField("oldest_queue_time"))
        return found

    await stop(replica, agent="support")
    assert await counts() == {"default": (2, 1, 1, True), "nightly": (1, 0, 0, True)}
    await stop(replica, tenant="default", queue="nightly")
    await stop(replica, tool="mail_*")
    assert await counts() == {"default": (2, 1, 1, True), "nightly": (1, 1, 1, False)}
    await stop(replica, all=True)
    assert await counts() == {"default": (2, 2, 2, False), "nightly": (1, 1, 1, False)}


async def test_stopped_task_gets_no_reservation(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id)
    stopped = await stop(replica, tenant="default")
    denied = (await owner.commit(reserve=reserve(step=1, input_tokens=10, output=10))).reserve.denied
    assert (denied.reason, denied.retry_after.seconds) == ("STOPPED", 5)
    request = pb.ListStoppedTasksRequest(stop=stopped)
    held = (await replica.stub.ListStoppedTasks(request, timeout=TIMEOUT_SECONDS)).tasks
    assert [(task.task_id, task.model_open) for task in held] == [(owner.task.task_id, False)]
    await resume(replica, tenant="default")
    granted = (await owner.commit(reserve=reserve(step=1, input_tokens=10, output=10))).reserve
    assert granted.HasField("granted")
    await stop(replica, tenant="default")
    await owner.commit(answer(step=1, tokens=10))  # a call that was sent ends, and its answer is kept


async def test_no_reservation_is_granted_after_a_stop(checkpoint: MakeCheckpoint) -> None:
    """50 owners reserve at two replicas while a stop begins: what its answer saw is all there is."""
    replica = await checkpoint()
    other = await checkpoint(dsn=replica.dsn)
    owners = [await (replica, other)[place % 2].claim((await replica.create()).task_id) for place in range(50)]
    stopping = asyncio.create_task(stop(replica, all=True))

    async def reserved(owner: Any) -> bool:
        result = await owner.commit(reserve=reserve(step=1, input_tokens=10, output=10))
        return bool(result.reserve.HasField("granted"))

    async def open_calls() -> int:
        return int((await replica.query("select count(*) from ledger.tasks where model_open"))[0][0])

    calls = [asyncio.create_task(reserved(owner)) for owner in owners]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stopping
        begun = await open_calls()
        granted = sum(await asyncio.gather(*calls))
    assert granted == begun == await open_calls()


async def test_stop_answers_after_older_commits_have_ended(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    async with await psycopg.AsyncConnection.connect(replica.dsn) as open_one:
        await open_one.execute("set application_name = 'tenure-checkpoint-commits'")
        await open_one.commit()
        await open_one.execute("select 1")
        stopping = asyncio.create_task(stop(replica, all=True))
        await asyncio.wait({stopping}, timeout=0.3)
        assert not stopping.done()
        await open_one.rollback()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stopping


async def test_stop_is_listed_with_its_author_until_it_ends(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    first = await stop(replica, tool="mail_*")
    again = await stop(replica, tool="mail_*")
    assert again.epoch > first.epoch
    assert again.stop_time == first.stop_time
    (one,) = (await listed(replica)).stops
    assert (one.tool, one.stopped_by, one.reason) == ("mail_*", "user/ann", "wrong bills")
    with pytest.raises(NotFound) as unknown:
        await resume(replica, tool="mail_")
    assert unknown.value.reason == "NO_SUCH_STOP"
    for unusable in ({}, {"tool": "spawn_sub_agents"}):
        with pytest.raises(InvalidRequest):
            await stop(replica, **unusable)
    await resume(replica, tool="mail_*")
    assert not (await listed(replica)).stops


async def test_readers_confirm_the_newest_epoch(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await listed(replica, reader="models/one")
    begun = await stop(replica, all=True)
    assert list((await listed(replica)).late_readers) == ["models/one"]
    await listed(replica, reader="models/one", applied_epoch=begun.epoch, applied=[begun])
    assert not (await listed(replica)).late_readers


async def test_stops_that_a_restored_ledger_lost_return(checkpoint: MakeCheckpoint) -> None:
    """The tool service keeps to a newer epoch than the restored ledger: its stops stay in force."""
    replica = await checkpoint()
    await stop(replica, queue="known")
    lost = admin_pb.Stop(agent="billing", reason="wrong bills", stopped_by="user/ann", epoch=9)
    lost.stop_time.GetCurrentTime()
    taken = await listed(replica, applied_epoch=9, applied=[lost])
    assert taken.epoch == 10
    assert {(one.agent, one.queue, one.stopped_by) for one in taken.stops} == {
        ("billing", "", "user/ann"),
        ("", "known", "user/ann"),
    }


async def test_epoch_that_a_restored_ledger_gives_out_again_is_raised(checkpoint: MakeCheckpoint) -> None:
    """A reader that knows other stops of the same epoch would not take the ledger's."""
    replica = await checkpoint()
    begun = await stop(replica, queue="new")
    lost = admin_pb.Stop(agent="billing", reason="wrong bills", stopped_by="user/ann", epoch=begun.epoch)
    lost.stop_time.GetCurrentTime()
    reader = {"reader": "models/one", "applied_epoch": begun.epoch}
    taken = await listed(replica, **reader, applied=[lost])
    assert (taken.epoch, {one.agent or one.queue for one in taken.stops}) == (begun.epoch + 1, {"billing", "new"})
    reader["applied_epoch"] = taken.epoch
    assert (await listed(replica, **reader, applied=taken.stops)).epoch == taken.epoch
    assert (await listed(replica, **reader)).epoch == taken.epoch + 1  # it kept to an end that the ledger lost


async def test_model_runner_gives_a_restored_ledger_its_stops(checkpoint: MakeCheckpoint) -> None:
    """It asks before a coordinator does: the newer epoch must not come without the stops that belong to it."""
    replica = await checkpoint()
    runner = LedgerStops(replica.channel, "models/one")
    begun = await stop(replica, agent="billing")
    assert await runner.read()
    await replica.query("delete from ledger.stops")
    await replica.query("update ledger.stop_epoch set epoch = epoch - 1")
    await runner.read()
    taken = await listed(replica)
    assert (taken.epoch, [one.agent for one in taken.stops]) == (begun.epoch + 1, ["billing"])
    assert runner.covers(Subject("default", "billing"))
