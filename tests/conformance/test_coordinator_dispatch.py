"""Laws of dispatch: no task twice, no task forgotten, also when processes die in between."""

from __future__ import annotations

import asyncio

import pytest

from devstack.etcd import EtcdProcess
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_coordinator import WAITED_FOR, Fleet
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.scripted_worker import ScriptedWorker


async def test_two_replicas_never_grant_a_task_twice(fleet: Fleet) -> None:
    replicas = [await fleet.coordinator(), await fleet.coordinator()]
    workers = [await fleet.worker(replica, slots=60) for replica in replicas for _ in range(2)]
    submitted = await fleet.submit_many(200)
    granted = await _collect(workers, 200)
    assert set(granted) == submitted
    assert len(granted) == 200
    claims = await fleet.claims(replicas[0])
    assert {claim.task_id for claim in claims} == submitted


async def test_a_worker_gets_tasks_of_its_queues_up_to_its_slots(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    mine = await fleet.worker(replica, slots=2, queues=["gpu"], loops=["own"])
    others = await fleet.submit()
    wanted = {await fleet.submit(queue="gpu", agent={"loop": "own"}) for _ in range(3)}
    grants = await mine.next_grants(2)
    assert {grant.task_id for grant in grants} < wanted
    await mine.succeed(grants[0])
    await mine.report_slots(2)
    last = await mine.next_grant()
    assert {last.task_id} | {grant.task_id for grant in grants} == wanted
    assert (await fleet.task(others)).state == task_pb2.TASK_STATE_QUEUED


async def test_a_crash_before_the_registration_leaves_a_grantable_task(fleet: Fleet) -> None:
    dying = await fleet.coordinator(failpoints="coordinator.after_claim=kill9", ttl_seconds="30")
    worker = await fleet.worker(dying, slots=1)
    task_id = await fleet.submit()
    await dying.wait()
    other = await fleet.coordinator(start_timeout_seconds=WAITED_FOR)
    again = fleet.keep(await worker.reattach(other.address))
    assert again.session_id == worker.session_id
    grant = await again.next_grant()
    assert grant.task_id == task_id
    await again.succeed(grant)


@pytest.mark.faults
async def test_a_crash_after_the_registration_leaves_a_grantable_task(fleet: Fleet) -> None:
    dying = await fleet.coordinator(failpoints="coordinator.after_register=kill9", ttl_seconds="30")
    worker = await fleet.worker(dying, slots=1)
    task_id = await fleet.submit()
    await dying.wait()
    other = await fleet.coordinator(start_timeout_seconds=WAITED_FOR)
    again = fleet.keep(await worker.reattach(other.address))
    assert again.session_id == worker.session_id
    grant = await again.next_grant()
    assert grant.task_id == task_id
    await again.succeed(grant)


async def test_an_unclear_claim_is_not_granted_and_the_task_is_once(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator(ttl_seconds="20")
    worker = await own_fleet.worker(replica, slots=2)
    await worker.hears("renewed")
    own_etcd.pause()
    try:
        task_id = await own_fleet.submit()
        await replica.logged("claims are unclear and will be read back")
        assert worker.grants_waiting == 0
    finally:
        own_etcd.resume()
    grant = await worker.next_grant()
    assert grant.task_id == task_id
    await worker.succeed(grant)
    assert worker.grants_waiting == 0


async def test_progress_keeps_the_task(fleet: Fleet) -> None:
    """For longer than a claim may go without it."""
    replica = await fleet.coordinator(progress_timeout_seconds=str(SHORT_LIFE_SECONDS))
    worker = await fleet.worker(replica)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    clock = asyncio.get_running_loop().time
    began, tokens = clock(), 0
    while clock() - began < SHORT_LIFE_SECONDS + 1.5:
        tokens += 1
        worker.progress[grant.claim_id] = pb.Progress(output_tokens=tokens)
        await asyncio.sleep(0.2)
    [claim] = await fleet.claims(replica)
    assert claim.claim_id == grant.claim_id


async def test_a_grant_that_renewals_do_not_name_is_taken_back(fleet: Fleet) -> None:
    replica = await fleet.coordinator(start_timeout_seconds=WAITED_FOR)
    idle = await fleet.worker(replica)
    idle.named = False
    task_id = await fleet.submit()
    lost = await idle.next_grant()
    idle.hello.free_slots = 0
    other = await fleet.worker(replica)
    assert (await idle.hears("revoke")).claim_id == lost.claim_id
    assert (await other.next_grant()).task_id == task_id


async def _collect(workers: list[ScriptedWorker], count: int) -> list[str]:
    """The tasks granted to any of them, until there are so many; then a moment for those that must not come."""
    granted: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(granted) < count:
            granted += [(await worker.next_grant()).task_id for worker in workers if worker.grants_waiting]
            await asyncio.sleep(0.01)
    await asyncio.sleep(1.5)
    assert not any(worker.grants_waiting for worker in workers)
    return granted
