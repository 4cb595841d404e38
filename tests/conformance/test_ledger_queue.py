"""What coordinators see: disjoint offers, grants that exist once registered, lost claims put back once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.fencing import MAX_GENERATION, MAX_GENERATION_JUMP, MAX_REVISION, compose_epoch
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, kinds, reserve
from tests.support.patience import PATIENCE_SECONDS

MOMENT = Duration(nanos=20_000_000)


async def offers(replica: Any, limit: int = 10, **fields: Any) -> Any:
    request = pb.ListClaimableRequest(limit=limit, **fields)
    return list((await replica.stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers)


async def running(replica: Any) -> Any:
    return list((await replica.stub.ListRunning(pb.ListRunningRequest(), timeout=TIMEOUT_SECONDS)).running)


async def register(replica: Any, task_id: Any, epoch: Any, claim_id: Any) -> Any:
    grant = pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=epoch, claim_id=claim_id)
    answer = await replica.stub.RegisterGrants(pb.RegisterGrantsRequest(grants=[grant]), timeout=TIMEOUT_SECONDS)
    return list(answer.claim_ids)


async def test_offers_come_by_priority_then_begun_ones_then_age(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    low = await replica.create(priority=task_pb2.PRIORITY_LOW)
    first = await replica.create()
    second = await replica.create()
    high = await replica.create(priority=task_pb2.PRIORITY_HIGH)
    begun = await replica.claim((await replica.create()).task_id)
    await replica.requeue(begun)
    result = await offers(replica)
    wanted = [high, begun.task, first, second, low]
    assert [offer.task_id for offer in result] == [task.task_id for task in wanted]
    assert (result[1].previous_epoch, result[1].reason) == (begun.claims.epoch, "LEASE_EXPIRED")


async def test_offers_are_disjoint_among_coordinators(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    other_replica = await checkpoint(dsn=replica.dsn)
    made = {(await replica.create()).task_id for _ in range(30)}
    kept = Duration(seconds=60)
    requests = [offers(side, limit=7, reserve_duration=kept) for side in (replica, other_replica) for _ in range(4)]
    results = await asyncio.gather(*requests)
    ids = [offer.task_id for some in results for offer in some]
    assert len(ids) == len(set(ids))
    rest = [offer.task_id for offer in await offers(replica, limit=30)]
    assert sorted(ids + rest) == sorted(made)


@pytest.mark.parametrize("queues", [["default"], []])
async def test_a_concurrent_offer_continues_behind_the_locked_head(checkpoint: MakeCheckpoint, queues: Any) -> None:
    replica = await checkpoint()
    made = [(await replica.create()).task_id for _ in range(6)]
    async with await psycopg.AsyncConnection.connect(replica.dsn) as another:  # another coordinator, in its transaction
        await another.execute("select from ledger.tasks where task_id = any(%s::uuid[]) for no key update", (made[:3],))
        result = await offers(replica, limit=3, queues=queues)
    assert [offer.task_id for offer in result] == made[3:]


async def test_suspects_are_marked_and_offered_one_at_a_time(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    innocent, suspect = [(await replica.create()).task_id for _ in range(2)]
    for holder in ("w1", "w2", "w3"):
        await replica.requeue(await replica.claim(suspect, holder=holder))
    without = await offers(replica, without_suspects=True, queues=["default"])
    assert [offer.task_id for offer in without] == [innocent]
    await replica.query("update ledger.tasks set offered_until = null")
    assert [offer.task_id for offer in await offers(replica, without_suspects=True)] == [innocent]
    await replica.query("update ledger.tasks set offered_until = null")
    assert [(offer.task_id, offer.suspect) for offer in await offers(replica)] == [(suspect, True), (innocent, False)]


async def test_the_next_step_clears_a_suspect(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    for holder in ("w1", "w2", "w3"):
        await replica.requeue(await replica.claim(task_id, holder=holder))
    owner = await replica.claim(task_id)
    assert [each.suspect for each in await running(replica)] == [True]
    await owner.commit(reserve=reserve())
    assert [each.suspect for each in await running(replica)] == [False]


async def test_an_unclaimed_offer_is_repeated(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task = await replica.create()
    assert len(await offers(replica, reserve_duration=MOMENT)) == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (again := await offers(replica, reserve_duration=MOMENT)):
            await asyncio.sleep(0.005)
    assert again[0].task_id == task.task_id


async def test_unopened_grants_do_not_hide_other_tasks(checkpoint: MakeCheckpoint) -> None:
    """The oldest tasks are on the way to their workers; a coordinator with few slots reaches the others, too."""
    replica = await checkpoint()
    granted, others = [{(await replica.create()).task_id for _ in range(count)} for count in (9, 2)]
    for number, task_id in enumerate(granted, 1):
        assert await register(replica, task_id, compose_epoch(1, number), str(uuid4()))
    offered: set[str] = set()
    for _ in range(6):
        found = await offers(replica, limit=2, reserve_duration=MOMENT)
        offered |= {offer.task_id for offer in found}
        await replica.query("select pg_sleep(0.02)")
    assert offered == granted | others


async def test_a_task_whose_unopened_grant_is_lost_is_offered_at_once(replica: Checkpoint) -> None:
    task = await replica.create()
    claim_id = str(uuid4())
    await register(replica, task.task_id, compose_epoch(1, 1), claim_id)
    assert [offer.task_id for offer in await offers(replica)] == [task.task_id]
    assert await offers(replica, reserve_duration=MOMENT) == []
    await replica.stub.RequeueLost(
        pb.RequeueLostRequest(
            lost=[pb.RequeueLostRequest.Lost(task_id=task.task_id, claim_id=claim_id, reason="LEASE_EXPIRED")]
        ),
        timeout=TIMEOUT_SECONDS,
    )
    assert [offer.task_id for offer in await offers(replica)] == [task.task_id]


async def test_offers_are_chosen_by_queue_priority_and_loop(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    plain = await replica.create()
    special = await replica.create(queue="gpu", agent=task_pb2.AgentSpec(loop="mine"), priority=task_pb2.PRIORITY_HIGH)

    async def ids(**fields: Any) -> Any:
        results = [offer.task_id for offer in await offers(replica, **fields)]
        await replica.query("update ledger.tasks set offered_until = null")
        return results

    assert await ids(queues=["default"]) == [plain.task_id]
    assert await ids(queues=["gpu", "default"]) == [special.task_id, plain.task_id]
    assert await ids(priorities=[task_pb2.PRIORITY_NORMAL]) == [plain.task_id]
    assert await ids(loops=["mine"]) == [special.task_id]
    assert await ids(queues=["gpu"], loops=["messages"]) == []


async def test_an_offer_distinguishes_all_tools_from_none(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await replica.create()
    await replica.create(agent=task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist()))
    every, none = await offers(replica)
    assert not every.HasField("tools")
    assert none.HasField("tools")
    assert list(none.tools.names) == []


async def test_a_grant_counts_only_above_the_registered_one(
    replica: Checkpoint,
) -> None:
    task_id = (await replica.create()).task_id
    ninth, tenth, eleventh = (compose_epoch(1, revision) for revision in (9, 10, 11))
    assert await register(replica, task_id, tenth, "a") == ["a"]
    assert await register(replica, task_id, tenth, "a") == ["a"]
    assert await register(replica, task_id, tenth, "b") == []
    assert await register(replica, task_id, ninth, "c") == []
    assert await register(replica, task_id, eleventh, "d") == ["d"]
    assert await register(replica, str(uuid4()), eleventh, "e") == []
    epochs = await replica.stub.GetEpochs(pb.GetEpochsRequest(), timeout=TIMEOUT_SECONDS)
    assert epochs.highest_epoch == eleventh


async def test_an_opened_claim_is_not_granted_under_another_epoch(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    task_id, opened = owner.task.task_id, owner.claims
    await replica.grant(task_id, epoch=opened.epoch + 1000)
    assert await register(replica, task_id, opened.epoch + 2000, opened.claim_id) == []
    assert await register(replica, task_id, opened.epoch + 2000, "another") == ["another"]


async def test_of_concurrent_grants_the_highest_epoch_counts(replica: Checkpoint, other_replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    epochs = [compose_epoch(1, revision) for revision in range(1, 21)]
    await asyncio.gather(
        *[register(side, task_id, each, f"c{each}") for each in epochs for side in (replica, other_replica)]
    )
    assert await replica.query("select granted, granted_claim from ledger.tasks where tenant = %s", replica.tenant) == [
        (epochs[-1], f"c{epochs[-1]}")
    ]


async def test_a_lost_claim_is_requeued_once_while_it_runs(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    answers = await asyncio.gather(*[side.requeue(owner) for side in (replica, other_replica) for _ in range(3)])
    assert sorted(map(len, answers)) == [0, 0, 0, 0, 0, 1]
    newer = await replica.claim(owner.task.task_id)
    assert await replica.requeue(owner) == []
    assert (await replica.get(owner.task.task_id)).owner == newer.claims.holder
    assert kinds(await replica.entries(owner.task.task_id)).count("RUNNING>QUEUED") == 1


async def test_claims_are_inspected(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    queued = await replica.create()
    _, granted = await replica.grant(queued.task_id)
    requests = [
        (owner.task.task_id, owner.claims.claim_id),
        (queued.task_id, granted.claim_id),
        (queued.task_id, "unknown"),
        (str(uuid4()), "x"),
    ]
    claims = [pb.InspectClaimsRequest.Claim(task_id=task_id, claim_id=claim_id) for task_id, claim_id in requests]
    answer = await replica.stub.InspectClaims(pb.InspectClaimsRequest(claims=claims), timeout=TIMEOUT_SECONDS)
    assert [(one.registered, one.state, one.running) for one in answer.verdicts] == [
        (True, task_pb2.TASK_STATE_RUNNING, True),
        (True, task_pb2.TASK_STATE_QUEUED, False),
        (False, task_pb2.TASK_STATE_QUEUED, False),
        (False, task_pb2.TASK_STATE_UNSPECIFIED, False),
    ]


async def test_running_tasks_are_listed_in_pages_by_id(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owners = [await replica.claim((await replica.create()).task_id) for _ in range(5)]
    await replica.create()
    results, after = [], ""
    while True:
        request = pb.ListRunningRequest(page_size=2, after_task_id=after)
        page = (await replica.stub.ListRunning(request, timeout=TIMEOUT_SECONDS)).running
        results += [(one.task_id, one.claim_id) for one in page]
        if len(page) < 2:
            break
        after = page[-1].task_id
    assert results == sorted((owner.task.task_id, owner.claims.claim_id) for owner in owners)


async def raise_generation(replica: Any, expected: Any) -> Any:
    request = pb.RaiseGenerationRequest(expected=expected, reason="test")
    return (await replica.stub.RaiseGeneration(request, timeout=TIMEOUT_SECONDS)).generation


async def test_a_generation_is_raised_once(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    other_replica = await checkpoint(dsn=replica.dsn)
    raised = await asyncio.gather(*[raise_generation(side, 1) for side in (replica, other_replica) for _ in range(4)])
    assert set(raised) == {2}
    assert await raise_generation(replica, 1) == 2
    assert await raise_generation(replica, 6) == 7


async def test_a_raised_generation_is_above_every_registered_epoch(checkpoint: MakeCheckpoint) -> None:
    """Also above epochs of later generations, as a restored ledger may have them."""
    replica = await checkpoint()
    await replica.query("update ledger.epochs set highest_epoch = (9::bigint << 40) + 5 returning 1")
    assert await raise_generation(replica, 1) == 10


async def test_an_epoch_of_a_future_generation_is_not_registered(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    for generation in (2, MAX_GENERATION):
        assert await register(replica, task_id, compose_epoch(generation, MAX_REVISION), "forged") == []
    assert await register(replica, task_id, compose_epoch(1, 3), "true") == ["true"]
    assert await raise_generation(replica, 1) == 2


async def test_no_generation_is_raised_beyond_the_last(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await replica.query("update ledger.epochs set highest_epoch = 9223372036854775807 returning 1")
    with pytest.raises(WrongState) as refused:
        await raise_generation(replica, 1)
    assert refused.value.reason == "GENERATIONS_EXHAUSTED"


async def test_a_raise_far_beyond_the_ledgers_generation_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    for expected in (MAX_GENERATION - 1, 2 + MAX_GENERATION_JUMP):
        with pytest.raises(WrongState) as refused:
            await raise_generation(replica, expected)
        assert refused.value.reason == "GENERATION_TOO_FAR"
    assert await raise_generation(replica, 1) == 2
    assert await raise_generation(replica, 2 + MAX_GENERATION_JUMP) == 3 + MAX_GENERATION_JUMP
    assert await raise_generation(replica, 1) == 3 + MAX_GENERATION_JUMP


async def test_a_grant_of_a_former_generation_is_not_registered(checkpoint: MakeCheckpoint) -> None:
    """A coordinator that slept through a restore comes too late, also for a task without a later grant."""
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    assert await raise_generation(replica, 1) == 2
    assert await register(replica, task_id, compose_epoch(1, 5_000), "slept") == []
    assert await register(replica, task_id, compose_epoch(2, 3), "awake") == ["awake"]


async def test_a_lost_claim_leaves_the_end_of_its_lease(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    task_id = owner.task.task_id
    end = ledger_pb2.LeaseEnd(worker_id="forged", epoch=1, renewal_count=7)
    end.renewal_times.add().FromSeconds(1_800_000_000)
    lost = pb.RequeueLostRequest.Lost(
        task_id=task_id, claim_id=owner.claims.claim_id, reason="LEASE_EXPIRED", lease_end=end
    )
    await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=TIMEOUT_SECONDS)
    await (await replica.claim(task_id, holder="worker-2")).end()
    first, _, requeued, reopened, ended = [
        entry.body.transition for entry in await replica.entries(task_id) if entry.body.HasField("transition")
    ]
    assert (requeued.lease_end.worker_id, requeued.lease_end.epoch) == ("worker-1", owner.claims.epoch)
    assert (requeued.lease_end.renewal_count, list(requeued.lease_end.renewal_times)) == (7, list(end.renewal_times))
    assert not any(each.HasField("lease_end") for each in (first, reopened, ended))


async def test_a_lease_end_has_at_most_five_renewals(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    end = ledger_pb2.LeaseEnd(renewal_times=[Timestamp(seconds=second) for second in range(6)])
    lost = pb.RequeueLostRequest.Lost(task_id=owner.task.task_id, claim_id=owner.claims.claim_id, lease_end=end)
    with pytest.raises(InvalidRequest):
        await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=TIMEOUT_SECONDS)


async def test_hints_of_work_and_cancels_reach_every_replica(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    for side in (replica, other_replica):
        call = side.stub.WatchQueue(pb.WatchQueueRequest(), timeout=TIMEOUT_SECONDS)
        assert (await call.read()).claimable
        await replica.create()
        assert (await call.read()).claimable
        call.cancel()
    call = other_replica.stub.WatchQueue(pb.WatchQueueRequest(), timeout=TIMEOUT_SECONDS)
    await call.read()
    await replica.cancel(owner.task.task_id)
    hint = await call.read()
    while not hint.cancel_task_ids:
        hint = await call.read()
    assert list(hint.cancel_task_ids) == [owner.task.task_id]
    call.cancel()
