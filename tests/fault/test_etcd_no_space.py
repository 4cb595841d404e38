"""While etcd is out of space, workers attach again under their sessions and keep their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devstack.etcd import start_etcd
from services.checkpoint.queries import MIGRATIONS
from services.coordinator.etcd.client import EtcdClient
from tenure.v1 import task_pb2
from tests.fault.etcd_space import QUOTA, fill, make_space
from tests.fault.test_etcd_alone import renewed
from tests.support.claim_tracker import health_becomes
from tests.support.fix_coordinator import make_fleet


async def test_a_worker_reattaches_without_space(tmp_path: Path, fresh_database: Any) -> None:
    etcd = start_etcd(tmp_path / "etcd", arguments=[QUOTA])
    fleet = await make_fleet(etcd, await fresh_database(MIGRATIONS), tmp_path)
    try:
        first = await fleet.coordinator()
        async with EtcdClient([etcd.endpoint]) as client:
            worker = await fleet.worker(first)
            task_id = await fleet.submit()
            grant = await worker.next_grant()
            await worker.open(grant)
            worker.held[grant.claim_id] = grant
            await fill(client)
            await health_becomes(first, serving=False)
            await first.kill()
            second = await fleet.coordinator()
            again = fleet.keep(await worker.reattach(second.address))
            assert (again.session_id, again.lost) == (worker.session_id, [])
            await renewed(again, 3)
            await make_space(client)
            await again.hears("goaway")  # now its session can be recorded
            after = fleet.keep(await again.reattach(second.address))
            assert (after.session_id, after.lost) == (worker.session_id, [])
            await health_becomes(second, serving=True)
            await after.commit(
                grant, 1, transition={"to_state": task_pb2.TASK_STATE_SUCCEEDED, "reason": "FINAL_ANSWER"}
            )
        states = [one.to_state for one in await fleet.transitions(task_id)]
        assert len(states) == 3, "submitted, opened, ended: no takeover"
    finally:
        await fleet.aclose()
        etcd.stop()
