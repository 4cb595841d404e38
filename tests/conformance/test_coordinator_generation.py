"""Laws of epochs across the lives of etcd, and of a replica without etcd."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from devstack.etcd import EtcdProcess
from services.coordinator.etcd.client import EtcdClient
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import split_epoch
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tests.support.claim_tracker import health_becomes
from tests.support.fix_coordinator import Fleet, epoch_of
from tests.support.fix_etcd import paused
from tests.support.patience import CALL_SECONDS

RUNNING = task_pb2.TASK_STATE_RUNNING


async def test_epochs_still_grow_after_etcd_was_wiped(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator()
    worker = await own_fleet.worker(replica)
    task_id = await own_fleet.submit()
    lost = await worker.next_grant()
    await worker.open(lost)
    await _wipe(own_etcd)
    other = await own_fleet.worker(replica)
    grant = await other.next_grant()
    assert grant.task_id == task_id
    await other.open(grant)
    (former, revision), (generation, new_revision) = (
        split_epoch(epoch_of(lost.token)),
        split_epoch(epoch_of(grant.token)),
    )
    assert generation > former
    assert new_revision < revision + 1000  # the revision alone would not distinguish them
    assert epoch_of(grant.token) > epoch_of(lost.token)


@pytest.mark.faults
async def test_a_restart_over_a_replaced_etcd_raises_the_generation(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    first = await own_fleet.coordinator()
    worker = await own_fleet.worker(first)
    await own_fleet.submit()
    before = epoch_of((await worker.next_grant()).token)
    await worker.break_off()
    await first.kill()
    await _wipe(own_etcd)
    second = await own_fleet.coordinator()
    assert epoch_of((await (await own_fleet.worker(second)).next_grant()).token) > before


@pytest.mark.faults
async def test_claims_that_revive_with_a_backup_are_deleted(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    """As after a restore: keys of the former generation are there again, with their leases."""
    replica = await own_fleet.coordinator()
    worker = await own_fleet.worker(replica)
    task_id = await own_fleet.submit()
    lost = await worker.next_grant()
    await worker.open(lost)
    async with EtcdClient([own_etcd.endpoint]) as etcd:
        generation = await etcd.get(b"/tenure/generation")
        assert generation is not None
        await etcd.put(b"/tenure/generation", str(int(generation.value) - 1).encode())
    await replica.logged("raised the generation")
    other = await own_fleet.worker(replica)
    grant = await other.next_grant()
    assert grant.task_id == task_id
    assert split_epoch(epoch_of(grant.token))[0] > split_epoch(epoch_of(lost.token))[0]
    assert str(await worker.ends())


async def test_a_restart_on_the_same_etcd_keeps_generation_and_claims(own_fleet: Fleet) -> None:
    first = await own_fleet.coordinator(ttl_seconds="60")
    worker = await own_fleet.worker(first)
    await own_fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await first.kill()
    second = await own_fleet.coordinator()
    again = own_fleet.keep(await worker.reattach(second.address))
    assert again.lost == []
    await again.hears("renewed")
    [claim] = await own_fleet.claims(second)
    assert claim.epoch == epoch_of(grant.token)


async def test_without_etcd_a_replica_reports_it_and_grants_nothing(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator(ttl_seconds="30")
    worker = await own_fleet.worker(replica, slots=2)
    task_id = await own_fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await health_becomes(replica, serving=True)
    async with paused(own_etcd):
        await health_becomes(replica, serving=False)
        waiting = await own_fleet.submit()
        assert (await own_fleet.task(task_id)).state == RUNNING
        assert worker.ended_with is None
        assert worker.grants_waiting == 0
    await health_becomes(replica, serving=True)
    assert (await worker.next_grant()).task_id == waiting
    [claim] = await own_fleet.claims(replica, task_id)
    assert claim.claim_id == grant.claim_id


@pytest.mark.faults
async def test_a_worker_that_attaches_without_etcd_is_refused(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator()
    await health_becomes(replica, serving=True)
    async with paused(own_etcd):
        await health_becomes(replica, serving=False)
        hello = coordinator_pb.SessionRequest(hello=coordinator_pb.Hello(worker_id="w", session_secret=bytes(32)))
        async with open_channel(replica.address) as channel:
            session = CoordinatorServiceStub(channel).Session(iter([hello]), timeout=CALL_SECONDS)
            with pytest.raises(Unavailable) as refused:
                await session.read()
        assert refused.value.reason == "ETCD_UNAVAILABLE"


async def _wipe(etcd: EtcdProcess) -> None:
    """Another etcd at the same address, with nothing in it."""
    etcd.kill()
    shutil.rmtree(etcd.member.data_dir / "store")
    etcd.start()
    await asyncio.to_thread(etcd.wait_ready)
