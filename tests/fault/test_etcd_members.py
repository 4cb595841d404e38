"""F20, F21: a cluster of three loses its leader, or its majority. Tasks, claims and epochs are not lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from services.coordinator.etcd.calls import EtcdUnavailable, EtcdUnclear
from services.coordinator.etcd.client import EtcdClient
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tests.support.claim_tracker import Owners, health_becomes
from tests.support.fix_coordinator import SHORT_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS, longest
from tests.support.scripted_worker import ScriptedWorker

if TYPE_CHECKING:
    from tests.support.fix_coordinator import Fleet
    from tests.support.fix_etcd_cluster import EtcdCluster

pytestmark = pytest.mark.faults

# A new leader is elected after some two seconds, and a lost renewal costs an interval.
PATIENT = {"ttl_seconds": "10", "renew_interval_seconds": "1"}


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_lost_leader_evicts_no_worker_and_delays_submits(
    cluster_fleet: Fleet, cluster: EtcdCluster, fault: str
) -> None:
    replicas = [await cluster_fleet.coordinator(**PATIENT) for _ in range(2)]
    async with Owners(cluster_fleet) as owners:
        for replica in replicas:
            await owners.add(replica, slots=6)
        running = await cluster_fleet.submit_many(6)
        await owners.of(running)
        leader = await cluster.leader()
        leader.kill() if fault == "kill" else leader.pause()
        waiting = await cluster_fleet.submit_many(6)
        await owners.of(waiting)
        assert all(len(owners.by_task[task_id]) == 1 for task_id in running | waiting)
        assert [worker.ended_with for worker in owners.workers] == [None, None]
        await cluster.heal()
        await owners.check_one_owner_each()
        claims = await cluster_fleet.claims(replicas[0])
        assert {claim.epoch for claim in claims} == {owners.newest(task_id).epoch for task_id in running | waiting}


async def test_without_a_quorum_nothing_is_granted(cluster_fleet: Fleet, cluster: EtcdCluster) -> None:
    replica = await cluster_fleet.coordinator(**SHORT_LIFE)
    await health_becomes(replica, serving=True)
    async with Owners(cluster_fleet) as owners:
        worker = await owners.add(replica, slots=4)
        running = await cluster_fleet.submit_many(2)
        await owners.of(running)
        async with cluster.frozen(*await cluster.majority()):
            began = time.monotonic()
            await health_becomes(replica, serving=False)
            waiting = await cluster_fleet.submit_many(2)  # taking a task in needs no etcd
            for task_id in running:
                assert await owners.may_write(owners.newest(task_id))
                assert await streamed(cluster_fleet, task_id) == len(await cluster_fleet.entries(task_id))
            late = cluster_fleet.keep(ScriptedWorker(replica.address, cluster_fleet.ledger, worker_id="late"))
            with pytest.raises(Unavailable) as refused:
                await late.attach()
            assert refused.value.reason == "ETCD_UNAVAILABLE"
            # Longer than the leases last. Nothing can be seen to happen in it, and nothing may.
            await asyncio.sleep(max(0.0, SHORT_LIFE_SECONDS + 3.0 - (time.monotonic() - began)))
            assert set(owners.by_task) == running
            assert worker.ended_with is None
        await health_becomes(replica, serving=True)
        await owners.add(replica, slots=4)  # the first one's lease may have run out before the election extended it
        await owners.of(running | waiting)
        await owners.settled(replica)
        await owners.check_one_owner_each()


async def streamed(fleet: Fleet, task_id: str) -> int:
    """How many entries a watcher is sent at once."""
    request = ledger_pb.WatchEntriesRequest(task_id=task_id)
    watched: Any = fleet.ledger.WatchEntries(request, timeout=CALL_SECONDS).__aiter__()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(watched) as answers,
    ):
        async for answer in answers:
            if answer.entries:
                return len(answer.entries)
    return 0


async def test_without_a_quorum_no_write_counts_and_reads_time_out(cluster: EtcdCluster) -> None:
    """Etcd's own answers come after seven seconds, some as UNKNOWN; no call here waits for them.

    Renewals are left out: a leader that lost its followers still answers them, and they prove nothing anyway.
    """
    majority = await cluster.majority()
    survivor = next(member for member in cluster.members if member not in majority)
    async with EtcdClient([survivor.endpoint], timeout_seconds=1.0) as client:
        lease = await client.grant(60, timeout_seconds=CALL_SECONDS)
        async with cluster.frozen(*majority):
            began = time.monotonic()
            answers = await asyncio.gather(
                client.put(b"/k", b"", lease=lease.id),
                client.delete(b"/k"),
                client.grant(5),
                client.revoke(lease.id),
                return_exceptions=True,
            )
            assert all(isinstance(answer, EtcdUnclear | EtcdUnavailable) for answer in answers), answers
            with pytest.raises(EtcdUnavailable):
                await client.get(b"/k")
            assert time.monotonic() - began < longest(6.0)


async def test_a_client_of_three_members_reads_while_one_is_frozen(cluster: EtcdCluster) -> None:
    leader = await cluster.leader()
    follower = next(member for member in cluster.members if member is not leader)
    async with EtcdClient(cluster.endpoints(follower), timeout_seconds=15.0) as client:
        lease = await client.grant(60)
        assert await client.keep_alive(lease.id) == 60
        async with cluster.frozen(follower):
            began = time.monotonic()
            await client.revision()
            assert client.endpoints.current.target != follower.endpoint
            await client.put(b"/k", b"")
            assert time.monotonic() - began < longest(15.0)
