"""Laws of sharing workers: between tenants, also when processes die in between; and between tiers of long queues."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.runtime.request_context import set_tenant
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.token import read_claims
from tests.support.fix_coordinator import Fleet
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

HIGH, LOW = task_pb2.PRIORITY_HIGH, task_pb2.PRIORITY_LOW


async def submit(fleet: Fleet, tenant: str, count: int) -> list[str]:
    set_tenant(tenant)
    try:
        return [await fleet.submit() for _ in range(count)]
    finally:
        set_tenant("default")


async def until_lapsed(fleet: Fleet) -> None:
    """Until all offers have lapsed."""
    async with asyncio.timeout(PATIENCE_SECONDS), await psycopg.AsyncConnection.connect(fleet.dsn) as postgres:
        while await (await postgres.execute("select 1 from ledger.tasks where offered_until > now()")).fetchone():
            await postgres.rollback()  # now() is the transaction's
            await asyncio.sleep(0.05)


def tenant_of(grant: pb.Grant) -> str:
    return read_claims(grant.token).tenant


@pytest.mark.faults
async def test_offers_to_a_dead_coordinator_are_repeated_fairly(fleet: Fleet) -> None:
    oldest, *_ = await submit(fleet, "big", 6)
    (small,) = await submit(fleet, "small", 1)
    dead = ledger_pb.ListClaimableRequest(limit=2, queues=["default"], loops=["messages"])
    offered = (await fleet.ledger.ListClaimable(dead, timeout=CALL_SECONDS)).offers
    assert [offer.tenant for offer in offered] == ["big", "small"]
    await until_lapsed(fleet)
    worker = await fleet.worker(await fleet.coordinator(), slots=2)
    granted = {grant.task_id for grant in await worker.next_grants(2)}
    assert granted == {offer.task_id for offer in offered} == {oldest, small}


async def test_a_newcomer_gets_the_next_slot_of_any_replica(fleet: Fleet) -> None:
    replicas = [await fleet.coordinator(), await fleet.coordinator()]
    workers = [await fleet.worker(replica, slots=2) for replica in replicas]
    await submit(fleet, "big", 12)
    held = [grant for worker in workers for grant in await worker.next_grants(2)]
    assert {tenant_of(grant) for grant in held} == {"big"}
    for worker in workers:
        for grant in worker.held.values():
            await worker.open(grant)
    await submit(fleet, "small", 2)
    for worker in workers:
        worker.hello.free_slots = 3  # with the next renewal
    assert [tenant_of(await worker.next_grant()) for worker in workers] == ["small", "small"]


async def test_slots_that_are_kept_for_high_tasks_stay_free_for_them(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    batch = [await fleet.submit(priority=LOW) for _ in range(4)]
    worker = await fleet.worker(replica, slots=2, lower_tiers=task_pb2.LowerTiers(below_high=1, below_normal=1))
    first = await worker.next_grant()
    assert first.task_id == batch[0]
    assert first.priority == LOW
    urgent = await fleet.submit(priority=HIGH)
    second = await worker.next_grant()
    assert (second.task_id, second.priority) == (urgent, HIGH)
    await worker.succeed(first)
    assert (await worker.next_grant()).task_id == batch[1]
    assert worker.grants_waiting == 0


async def test_a_pool_takes_its_priority_tiers_only(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    low, high = await fleet.submit(priority=LOW), await fleet.submit(priority=HIGH)
    interactive = await fleet.worker(replica, slots=9, priorities=[HIGH])
    assert (await interactive.next_grant()).task_id == high
    batch = await fleet.worker(replica, slots=1)
    assert (await batch.next_grant()).task_id == low
    assert interactive.grants_waiting == 0
    (listed,) = [each for each in await fleet.workers(replica) if each.worker_id == interactive.hello.worker_id]
    assert list(listed.priorities) == [HIGH]
