"""Laws of silence: a replica that slept, or whose etcd did not answer, takes nothing from workers that live."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenure.domain.errors import StaleEpoch, TenureError
from tenure.v1 import task_pb2
from tests.support.fix_coordinator import SHORT_LIFE, Fleet, epoch_of
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS

if TYPE_CHECKING:
    from devstack.etcd import EtcdProcess
    from tests.support.scripted_worker import ScriptedWorker
    from tests.support.service_process import ServiceProcess

SUCCEEDED = {"to_state": task_pb2.TASK_STATE_SUCCEEDED, "reason": "FINAL_ANSWER"}


async def test_a_replica_that_slept_past_a_ttl_takes_nothing(
    fleet: Fleet,
) -> None:
    lease = {**SHORT_LIFE, "ttl_seconds": "8"}
    first, second = (
        await fleet.coordinator(progress_timeout_seconds=str(SHORT_LIFE_SECONDS), **lease),
        await fleet.coordinator(**lease),
    )
    worker = await fleet.worker(first)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    first.signal(signal.SIGSTOP)
    again = fleet.keep(await worker.reattach(second.address))  # its old renewals stay in the sleeper's buffers
    assert again.lost == []
    await asyncio.sleep(10.0)  # longer than the TTL, and than the patience with a claim without progress
    await worker.break_off()
    first.signal(signal.SIGCONT)
    await _works(fleet, first)
    await renewals(again, 4)
    [claim] = await fleet.claims(second, grant.task_id)
    assert (claim.claim_id, claim.epoch) == (grant.claim_id, epoch_of(grant.token))
    assert again.ended_with is None
    await again.commit(grant, 1, transition=SUCCEEDED)
    assert (await fleet.task(grant.task_id)).claim_count == 1


@pytest.mark.faults
async def test_a_replica_that_slept_renews_no_lease_attached_elsewhere(fleet: Fleet) -> None:
    first, second = await fleet.coordinator(**SHORT_LIFE), await fleet.coordinator(**SHORT_LIFE)
    worker = await fleet.worker(first)
    task_id = await fleet.submit()
    lost = await worker.next_grant()
    await worker.open(lost)
    first.signal(signal.SIGSTOP)
    again = fleet.keep(await worker.reattach(second.address))
    await again.hears("renewed")
    other = await fleet.worker(second)
    again.freeze()  # and the old stream goes on renewing, at a replica that does not have the session any more
    await asyncio.sleep(1.5)
    first.signal(signal.SIGCONT)
    grant = await other.next_grant()
    assert grant.task_id == task_id
    await other.open(grant)
    assert "LEASE_EXPIRED" in [each.reason for each in await fleet.transitions(task_id)]


async def test_a_replica_that_slept_before_sending_a_grant_drops_it(fleet: Fleet, tmp_path: Path) -> None:
    asleep = tmp_path / "asleep"
    first = await fleet.coordinator(failpoints=f"coordinator.after_register=1#touch({asleep})->1#freeze")
    second = await fleet.coordinator()
    worker = await fleet.worker(first)
    task_id = await fleet.submit()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not asleep.exists():
            await asyncio.sleep(0.02)
    again = fleet.keep(await worker.reattach(second.address))
    await renewals(again, 3)
    first.signal(signal.SIGCONT)
    grant = await again.next_grant()
    assert grant.task_id == task_id
    await again.open(grant)
    await renewals(again, 2)
    assert worker.grants_waiting == 0
    await again.commit(grant, 1, transition=SUCCEEDED)


@pytest.mark.faults
async def test_a_short_sleep_of_the_only_replica_evicts_no_worker(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await worker.hears("renewed")
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)
    await worker.break_off()
    replica.signal(signal.SIGCONT)
    await asyncio.sleep(2.0)  # longer than the grace for a worker that is said to be dead
    again = fleet.keep(await worker.reattach())
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await again.commit(grant, 1, transition=SUCCEEDED)


@pytest.mark.faults
async def test_a_worker_that_gave_up_an_attach_keeps_its_claims(fleet: Fleet) -> None:
    first, second = await fleet.coordinator(), await fleet.coordinator()
    worker = await fleet.worker(first)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    hasty = await worker.reattach(second.address, renews=False)  # the busy replica's Welcome comes too late for it
    await hasty.break_off()
    await worker.break_off()
    await asyncio.sleep(1.5)  # longer than the grace for a worker that is said to be dead
    again = fleet.keep(await worker.reattach(first.address))
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await again.commit(grant, 1, transition=SUCCEEDED)


@pytest.mark.faults
async def test_workers_that_left_a_silent_etcd_keep_their_claims(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator()
    worker = await own_fleet.worker(replica)
    await own_fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    own_etcd.pause()
    try:
        await replica.logged("a renewal was not answered by etcd")
        await asyncio.sleep(0.5)
        await worker.break_off()
        await asyncio.sleep(1.0)
    finally:
        own_etcd.resume()
    await asyncio.sleep(1.0)  # longer than the grace
    again = await _reattached(own_fleet, worker)
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await again.commit(grant, 1, transition=SUCCEEDED)


@pytest.mark.faults
async def test_a_lease_that_ended_with_etcd_silent_is_not_a_crash(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator(**SHORT_LIFE)
    worker = await own_fleet.worker(replica)
    task_id = await own_fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    own_etcd.pause()
    try:
        await replica.logged("a renewal was not answered by etcd")
        await asyncio.sleep(SHORT_LIFE_SECONDS + 1.0)  # longer than the TTL: etcd ends the lease as soon as it wakes
    finally:
        own_etcd.resume()
    await worker.ends()
    again = await _reattached(own_fleet, worker)
    # A replica that learns of the loss while the old stream still stands says so there.
    revoked = [each.revoke.claim_id for each in worker.heard if each.HasField("revoke")]
    assert [*revoked, *again.lost] == [grant.claim_id]
    new = await again.next_grant()
    await again.open(new)
    reasons = [each.reason for each in await own_fleet.transitions(task_id)]
    assert reasons[-2:] == ["CLAIM_LOST", "OPENED"]
    with pytest.raises(StaleEpoch):
        await worker.commit(grant, 1, transition=SUCCEEDED)


async def test_a_frozen_worker_with_a_task_is_a_lease_at_risk(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker, idle = await fleet.worker(replica), await fleet.worker(replica, slots=0)
    await fleet.submit()
    await worker.open(await worker.next_grant())
    worker.freeze()
    idle.freeze()
    line = await replica.logged("a worker missed a renewal")
    assert (line["worker"], line["claims"], line["cause"]) == ("worker-1", 1, "WORKER")


async def renewals(worker: ScriptedWorker, count: int) -> None:
    """So many more renewals of it are answered: time passes, and it lives."""
    wanted = _answered(worker) + count
    async with asyncio.timeout(PATIENCE_SECONDS):
        while _answered(worker) < wanted:
            assert worker.ended_with is None, f"the stream ended with {worker.ended_with!r}"
            await asyncio.sleep(0.05)


def _answered(worker: ScriptedWorker) -> int:
    return sum(each.HasField("renewed") for each in worker.heard)


async def _works(fleet: Fleet, replica: ServiceProcess) -> None:
    """It is awake: it takes a session and grants."""
    worker = await fleet.worker(replica, worker_id="witness", queues=["witness"])
    await fleet.submit(queue="witness")
    await worker.succeed(await worker.next_grant())
    await renewals(worker, 2)


async def _reattached(fleet: Fleet, worker: ScriptedWorker) -> ScriptedWorker:
    """Back again, as soon as the replica takes sessions."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return fleet.keep(await worker.reattach())
            except TenureError:  # etcd has just come back: its generation is being settled
                await asyncio.sleep(0.1)
