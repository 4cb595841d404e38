"""F22, F23, F24, F26: one etcd that crashes, forgets its history, falls silent, or runs out of space."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devstack.etcd import start_etcd
from services.checkpoint.queries import MIGRATIONS
from services.coordinator.etcd.client import EtcdClient
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import split_epoch
from tests.fault.etcd_space import (
    QUOTA,
    compact,
    fill,
    make_space,
)
from tests.support.claim_tracker import Owners, health_becomes
from tests.support.fix_coordinator import SHORT_LIFE, make_fleet
from tests.support.fix_etcd import restarted
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker

if TYPE_CHECKING:
    from devstack.etcd import EtcdProcess
    from tests.support.fix_coordinator import Fleet
    from tests.support.fix_proxy import MakeProxy

CLAIMS = b"/tenure/claims/"


async def renewed(worker: ScriptedWorker, times: int) -> None:
    """So many more renewals have been answered."""
    wanted = times + sum(each.HasField("renewed") for each in worker.heard)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(each.HasField("renewed") for each in worker.heard) < wanted:
            assert worker.ended_with is None
            await asyncio.sleep(0.05)


async def test_an_etcd_crash_keeps_leases_revision_and_generation(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator()
    async with Owners(own_fleet) as owners, EtcdClient([own_etcd.endpoint]) as client:
        worker = await owners.add(replica, slots=2)
        first = await own_fleet.submit()
        await owners.of([first])
        before = await client.revision()
        await restarted(own_etcd)
        assert await client.revision(timeout_seconds=CALL_SECONDS) >= before
        await renewed(worker, 2)
        second = await own_fleet.submit()
        await owners.of([second])
        await owners.settled(replica)
        assert [len(owned) for owned in owners.by_task.values()] == [1, 1]
        old, new = owners.newest(first).epoch, owners.newest(second).epoch
        assert split_epoch(old)[0] == split_epoch(new)[0]
        assert new > old


@pytest.mark.faults
async def test_a_compacted_expiry_is_not_missed(own_fleet: Fleet, own_etcd: EtcdProcess, tcp_proxy: MakeProxy) -> None:
    """Etcd answers such a watch with `created`, then with `canceled`, and then leaves the stream open and silent."""
    host, port = own_etcd.endpoint.split(":")
    line = await tcp_proxy(host, int(port))
    blind = await own_fleet.coordinator(etcd_endpoints=line.address, **SHORT_LIFE)
    seeing = await own_fleet.coordinator(**SHORT_LIFE)
    await health_becomes(blind, serving=True)
    async with Owners(own_fleet) as owners, EtcdClient([own_etcd.endpoint]) as client:
        worker = await owners.add(seeing, slots=1)
        task_id = await own_fleet.submit()
        await owners.of([task_id])
        await line.stop()
        await health_becomes(blind, serving=False)
        await seeing.kill()
        await worker.break_off()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.list(CLAIMS)).key_values:
                await asyncio.sleep(0.05)
        await compact(client)
        await line.start()
        await owners.add(blind, slots=1)
        await owners.of([task_id], times=2)
        await owners.check_one_owner_each()
    assert any("COMPACTED" in str(entry["message"]) for entry in blind.lines), "the watch went on as if nothing were"


@pytest.mark.faults
async def test_events_lost_by_a_silent_watch_are_found_by_comparing(own_fleet: Fleet) -> None:
    replica = await own_fleet.coordinator(failpoints="coordinator.deaf_watch", **SHORT_LIFE)
    async with Owners(own_fleet) as owners:
        worker = await owners.add(replica, slots=1)
        task_id = await own_fleet.submit()
        await owners.of([task_id])
        worker.freeze()
        assert "session has ended" in str(await worker.ends())
        await owners.add(replica, slots=1)
        await owners.of([task_id], times=2)
        await owners.check_one_owner_each()
    assert "CLAIM_LOST" in [each.reason for each in await own_fleet.transitions(task_id)]


@pytest.mark.faults
async def test_without_space_nothing_is_granted_and_tasks_continue(tmp_path: Path, fresh_database: Any) -> None:
    etcd = start_etcd(tmp_path / "etcd", arguments=[QUOTA])
    fleet = await make_fleet(etcd, await fresh_database(MIGRATIONS), tmp_path)
    try:
        replica = await fleet.coordinator()
        async with Owners(fleet) as owners, EtcdClient([etcd.endpoint]) as client:
            worker = await owners.add(replica, slots=4)
            running = await fleet.submit()
            await owners.of([running])
            await fill(client)
            await health_becomes(replica, serving=False)
            response = await replica.logged("no claim is granted until etcd and the ledger answer")
            assert "etcdctl alarm disarm" in response["error"]
            waiting = await fleet.submit()
            late = fleet.keep(ScriptedWorker(replica.address, fleet.ledger, worker_id="late"))
            with pytest.raises(Unavailable) as refused:
                await late.attach()
            assert refused.value.reason == "ETCD_OUT_OF_SPACE"
            await renewed(worker, 3)
            assert await owners.may_write(owners.newest(running))
            assert set(owners.by_task) == {running}
            await make_space(client)
            await health_becomes(replica, serving=True)
            await owners.of([waiting])
            await owners.settled(replica)
            assert [len(owned) for owned in owners.by_task.values()] == [1, 1]
            await owners.check_one_owner_each()
        warned = [line for line in replica.lines if line["level"] == "WARNING" and "granted" in line["message"]]
        assert len(warned) == 1, "one line for an outage"
    finally:
        await fleet.aclose()
        etcd.stop()
