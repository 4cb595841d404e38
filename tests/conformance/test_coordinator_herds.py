"""Laws of numbers: many tasks, claims and replicas at once change nothing but the time it takes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.coordinator.lease_store import ClaimRecord, LeaseStore
from services.coordinator.lease_store.claim_keys import MAX_BATCH, NewClaim
from tenure.runtime.security.signing import write_key_pair
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.token import read_claims
from tests.support.fix_coordinator import Fleet, epoch_of
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.support.scripted_worker import ScriptedWorker

TASKS = 60
MAX_HELD = 10_000
MESSAGE_BYTES = 4 * 1024 * 1024
"""The default limit of gRPC for one message."""


async def test_a_dead_workers_tasks_are_reclaimed_by_two_replicas(fleet: Fleet) -> None:
    replicas = [await fleet.coordinator(), await fleet.coordinator()]
    dying = await fleet.worker(replicas[0], slots=TASKS)
    submitted = await fleet.submit_many(TASKS)
    first = await dying.next_grants(TASKS)
    await asyncio.gather(*map(dying.open, first))
    others = [await fleet.worker(replica, slots=TASKS // 2) for replica in [*replicas, replicas[1]]]
    await dying.break_off()
    again = await collect(others, TASKS)
    assert {grant.task_id for grant in again} == submitted
    before = {grant.task_id: epoch_of(grant.token) for grant in first}
    assert all(epoch_of(grant.token) > before[grant.task_id] for grant in again)
    claims = await fleet.claims(replicas[0])
    assert {claim.claim_id for claim in claims} == {grant.claim_id for grant in again}


@pytest.mark.faults
async def test_three_replicas_share_a_queue_evenly(fleet: Fleet) -> None:
    """Each can take a third: the offers to two others do not hide the other tasks."""
    replicas = [await fleet.coordinator() for _ in range(3)]
    workers = [await fleet.worker(replica, slots=50) for replica in replicas]
    submitted = await fleet.submit_many(150)
    granted = await collect(workers, 150)
    assert len({grant.task_id for grant in granted}) == len(granted)
    assert {grant.task_id for grant in granted} == submitted
    assert [len(worker.held) for worker in workers] == [50, 50, 50]


@pytest.mark.faults
async def test_a_worker_moves_with_10_000_claims_and_gets_new_tokens(fleet: Fleet, tmp_path: Path) -> None:
    patient = {"ttl_seconds": "60", "renew_interval_seconds": "0.5", "start_timeout_seconds": "600"}
    first, second = await fleet.coordinator(**patient), await fleet.coordinator(**patient)
    worker = await fleet.worker(first, slots=0)
    held = await _claims(fleet, worker, MAX_HELD)
    worker.freeze()
    worker.held.update(held)
    again = fleet.keep(await worker.reattach(second.address))
    await worker.break_off()
    assert (again.session_id, again.lost) == (worker.session_id, [])
    write_key_pair(tmp_path / "next.json", fleet.verifying_keys, "test-2")
    (tmp_path / "next.json").replace(fleet.signing_key)
    signed = await _signed_anew(again, MAX_HELD)
    assert set(signed) == set(again.held)
    assert set(signed.values()) == {"test-2"}
    assert max(each.ByteSize() for each in again.heard) < MESSAGE_BYTES / 2


async def collect(workers: list[ScriptedWorker], count: int) -> list[pb.Grant]:
    """What is granted to any of them, until there is so much."""
    granted: list[pb.Grant] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(granted) < count:
                granted += [await worker.next_grant() for worker in workers if worker.grants_waiting]
                assert [worker.ended_with for worker in workers if worker.ended_with] == []
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{len(granted)} of {count} tasks were granted; held: {[len(worker.held) for worker in workers]}")
    return granted


async def _claims(fleet: Fleet, worker: ScriptedWorker, count: int) -> dict[str, pb.Grant]:
    """So many claims under the worker's session, made as a coordinator makes them, for tasks that need not exist."""
    made: dict[str, pb.Grant] = {}
    async with fleet.etcd() as etcd:
        store = LeaseStore(etcd)
        session = await store.sessions.find(worker.session_id)
        assert session is not None
        generation, tools = session.record.generation, tuple(f"tool_{number:02}" for number in range(40))
        for _ in range(count // MAX_BATCH):
            ids = [(str(uuid.uuid4()), str(uuid.uuid4())) for _ in range(MAX_BATCH)]
            records = [_record(claim_id, worker, generation, tools) for _, claim_id in ids]
            wanted = [NewClaim(task_id, record, session) for (task_id, _), record in zip(ids, records, strict=True)]
            claimed = await store.claims.claim_many(wanted)
            assert {each.refusal for each in claimed} == {None}
            made |= {claim_id: pb.Grant(task_id=task_id, claim_id=claim_id) for task_id, claim_id in ids}
    return made


def _record(claim_id: str, worker: ScriptedWorker, generation: int, tools: tuple[str, ...]) -> ClaimRecord:
    return ClaimRecord(
        claim_id=claim_id,
        worker_id=worker.hello.worker_id,
        session_id=worker.session_id,
        generation=generation,
        tenant="default",
        reason="SUBMITTED",
        previous_epoch=0,
        key_id="test-1",
        tools=tools,
    )


async def _signed_anew(worker: ScriptedWorker, count: int) -> dict[str, str]:
    """The keys that tokens were signed with, by claim; once so many have come. Each part of them is waited for."""
    signed: dict[str, str] = {}
    part = 0
    while len(signed) < count:
        signed |= {read_claims(token).claim_id: token.key_id for token in await worker.hears_tokens(part)}
        part += 1
    return signed
