"""F27: etcd is put back from a backup, or emptied, and so is the ledger. Epochs only grow, without an operator."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from services.coordinator.etcd.client import EtcdClient
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import split_epoch
from tests.fault import ledger_restore
from tests.fault.test_zombies import stands_still
from tests.support.claim_tracker import Owned, Owners, health_becomes
from tests.support.etcd_restore import back_up, put_back, write_on
from tests.support.fix_coordinator import SHORT_LIFE
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.etcd import EtcdProcess
    from tests.support.fix_coordinator import Fleet
    from tests.support.service_process import ServiceProcess

GENERATION = b"/tenure/generation"


async def owned_after_1000_revisions(fleet: Fleet, owners: Owners, etcd: EtcdProcess) -> Owned:
    """A grant that only the life to be lost knows of, with a high revision in its token."""
    await write_on(etcd, 1_000)
    [task_id] = await fleet.submit_many(1)
    await owners.of([task_id])
    return owners.newest(task_id)


async def check_recovered(fleet: Fleet, owners: Owners, lost: Owned, *, generation: int) -> None:
    """A worker that begins now gets everything, above every epoch of before; what was lost is refused."""
    replica = await fleet.coordinator(**SHORT_LIFE)
    highest = max(each.epoch for owned in owners.by_task.values() for each in owned)
    before = {task_id: len(owned) for task_id, owned in owners.by_task.items()}
    fresh = await owners.add(replica, slots=10)
    new_task = await fleet.submit()
    await owners.of([lost.grant.task_id], times=before[lost.grant.task_id] + 1)
    await owners.of([new_task])
    await owners.settled(replica)
    new = [each for owned in owners.by_task.values() for each in owned if each.worker is fresh]
    assert min(each.epoch for each in new) > highest
    assert {split_epoch(each.epoch)[0] for each in new} == {generation}
    with pytest.raises(StaleEpoch):
        await lost.worker.open(lost.grant)
    await owners.check_one_owner_each()


@pytest.mark.faults
@pytest.mark.parametrize("kept", ["backup", "nothing"])
async def test_epochs_grow_though_etcd_went_back(
    own_fleet: Fleet, own_etcd: EtcdProcess, tmp_path: Path, kept: str
) -> None:
    """With the backup come its claims and sessions. The old token's revision is above all that etcd gives by now."""
    first = await own_fleet.coordinator(**SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        await owners.add(first, slots=4)
        revived = await own_fleet.submit_many(2)
        await owners.of(revived)
        backup = await back_up(own_etcd, tmp_path)
        lost = await owned_after_1000_revisions(own_fleet, owners, own_etcd)
        await put_back(own_etcd, backup if kept == "backup" else None)
        await _raised_above(first, _life(lost))
        await check_recovered(own_fleet, owners, lost, generation=_life(lost) + 1)
        assert split_epoch(lost.epoch)[1] > await _revision(own_etcd)
        await owners.of(revived, times=2)


@pytest.mark.faults
async def test_epochs_grow_after_a_restore_without_coordinators(
    own_fleet: Fleet, own_etcd: EtcdProcess, tmp_path: Path
) -> None:
    first = await own_fleet.coordinator(**SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        await owners.add(first, slots=4)
        await owners.of([await own_fleet.submit()])
        backup = await back_up(own_etcd, tmp_path)
        lost = await owned_after_1000_revisions(own_fleet, owners, own_etcd)
        await first.kill()
        await put_back(own_etcd, backup)
        await check_recovered(own_fleet, owners, lost, generation=_life(lost) + 1)


@pytest.mark.faults
async def test_an_unnoticeable_restore_changes_nothing(own_fleet: Fleet, own_etcd: EtcdProcess, tmp_path: Path) -> None:
    """The revision has passed the old maximum before anybody looks, and the generation is the same: no raise."""
    first = await own_fleet.coordinator(**SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        await owners.add(first, slots=4)
        moved_on = await own_fleet.submit()
        await owners.of([moved_on])
        backup = await back_up(own_etcd, tmp_path)
        former = owners.newest(moved_on)
        await former.worker.release(former.grant, "WORKER_HALTED")
        await owners.of([moved_on], times=2)  # the claim that revives is not the newest
        lost = await owned_after_1000_revisions(own_fleet, owners, own_etcd)
        await first.kill()
        await put_back(own_etcd, backup)
        assert await write_on(own_etcd, 3_000) > split_epoch(lost.epoch)[1]
        await check_recovered(own_fleet, owners, lost, generation=_life(lost))
        await owners.of([moved_on], times=3)
        await owners.check_one_owner_each()
        assert not await owners.may_write(former)


@pytest.mark.faults
async def test_replicas_that_all_notice_agree_on_one_generation(
    own_fleet: Fleet, own_etcd: EtcdProcess, tmp_path: Path
) -> None:
    replicas = await asyncio.gather(*(own_fleet.coordinator(**SHORT_LIFE) for _ in range(3)))
    async with Owners(own_fleet) as owners:
        for replica in replicas:
            await owners.add(replica, slots=2)
        tasks = await own_fleet.submit_many(6)
        await owners.of(tasks)
        await put_back(own_etcd, None)
        for replica in replicas:
            await owners.add(replica, slots=4)
        await owners.of(tasks, times=2)
        await owners.settled(replicas[0])
        await owners.check_one_owner_each()
        [generation] = {split_epoch(owners.newest(task_id).epoch)[0] for task_id in tasks}
    raised = [line for replica in replicas for line in replica.lines if line["message"] == "raised the generation"]
    assert generation == 3, "they overtook each other"  # 1 is the ledger's own, 2 came with the first etcd
    assert sum(line["by_us"] for line in raised) == 2


@pytest.mark.faults
async def test_another_coordinator_finishes_a_half_done_raise(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    """The first raise comes with the first etcd, the second stops between the ledger and the new etcd."""
    stopped = await own_fleet.coordinator(failpoints="coordinator.after_ledger_raise=2#freeze", **SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        await owners.add(stopped, slots=2)
        tasks = await own_fleet.submit_many(2)
        await owners.of(tasks)
        before = {_life(owners.newest(task_id)) for task_id in tasks}
        await put_back(own_etcd, None)
        await stands_still(stopped)
        replicas = await asyncio.gather(*(own_fleet.coordinator(**SHORT_LIFE) for _ in range(2)))
        for replica in replicas:
            await owners.add(replica, slots=2)
        await owners.of(tasks, times=2)
        stopped.signal(signal.SIGCONT)
        await health_becomes(stopped, serving=True)
        await owners.settled(stopped)
        assert (before, {_life(owners.newest(task_id)) for task_id in tasks}) == ({2}, {3})
        assert await _generation(own_etcd) == 3
        await owners.check_one_owner_each()


@pytest.mark.faults
@pytest.mark.parametrize("granted_meanwhile", [True, False], ids=["granted-meanwhile", "queued-still"])
async def test_a_coordinator_that_slept_through_a_restore_is_refused(
    own_fleet: Fleet, own_etcd: EtcdProcess, granted_meanwhile: bool
) -> None:
    """It fell asleep with a claim of the old life, made and not yet registered."""
    awake = await own_fleet.coordinator(**SHORT_LIFE)
    sleeper = await own_fleet.coordinator(failpoints="coordinator.after_claim=1#freeze", ttl_seconds="60")
    async with Owners(own_fleet) as owners:
        late = await owners.add(sleeper, slots=1)
        task_id = await own_fleet.submit()
        await _claimed(own_fleet, awake, task_id)
        before = await _generation(own_etcd)
        await put_back(own_etcd, None)
        await _raised_above(awake, before)
        await health_becomes(awake, serving=True)
        if granted_meanwhile:
            await owners.add(awake, slots=1)
            await owners.of([task_id])
        sleeper.signal(signal.SIGCONT)
        await sleeper.logged("claims were not registered by the ledger and are deleted")
        await owners.add(sleeper, slots=1)
        await owners.of([task_id])
        await owners.settled(awake)
        assert [_life(each) for each in owners.by_task[task_id]] == [before + 1]
        assert owners.newest(task_id).worker is not late
        await owners.check_one_owner_each()


@pytest.mark.faults
async def test_a_ledger_restored_behind_etcd_gets_a_higher_generation(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    """The ledger's backup knows neither the raise nor the newest grants; the workers of the lost days are refused."""
    first = await own_fleet.coordinator(**SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        await owners.add(first, slots=4)
        task_id = await own_fleet.submit()
        await owners.of([task_id])
        backup = await ledger_restore.back_up(own_fleet)
        await put_back(own_etcd, None)
        await owners.add(await own_fleet.coordinator(**SHORT_LIFE), slots=4)
        await owners.of([task_id], times=2)
        lost = owners.newest(task_id)
        await ledger_restore.put_back(own_fleet, backup)
        await check_recovered(own_fleet, owners, lost, generation=_life(lost) + 1)


def _life(owned: Owned) -> int:
    return split_epoch(owned.epoch)[0]


async def _generation(etcd: EtcdProcess) -> int:
    async with EtcdClient([etcd.endpoint]) as client:
        response = await client.get(GENERATION)
    assert response is not None
    return int(response.value)


async def _raised_above(replica: ServiceProcess, generation: int) -> None:
    """Waits until the replica has noticed, by itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(line.get("generation", 0) > generation for line in replica.lines):
            await asyncio.sleep(0.05)


async def _revision(etcd: EtcdProcess) -> int:
    async with EtcdClient([etcd.endpoint]) as client:
        return await client.revision()


async def _claimed(fleet: Fleet, replica: ServiceProcess, task_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await fleet.claims(replica, task_id):
            await asyncio.sleep(0.05)
