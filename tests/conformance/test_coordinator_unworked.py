"""Laws of claims without a working owner: a coordinator finds each of them, and its task continues."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.coordinator.etcd.calls import EtcdUnclear
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import Txn, TxnResult
from services.coordinator.lease_store import ClaimRecord, LeaseStore
from services.coordinator.lease_store.claim_keys import ClaimRefusal, NewClaim
from services.coordinator.lease_store.records import claim_key
from tenure.v1 import task_pb2
from tests.support.fix_coordinator import WAITED_FOR, Fleet, epoch_of
from tests.support.patience import PATIENCE_SECONDS

SUCCEEDED = {"to_state": task_pb2.TASK_STATE_SUCCEEDED, "reason": "FINAL_ANSWER"}


@pytest.mark.faults
async def test_a_running_task_continues_without_its_returned_worker(fleet: Fleet) -> None:
    """As when it let go of the task, and the replica it said so to died before it read it."""
    first, second = [await fleet.coordinator(start_timeout_seconds=WAITED_FOR) for _ in range(2)]
    worker = await fleet.worker(first)
    task_id = await fleet.submit()
    lost = await worker.next_grant()
    await worker.open(lost)
    await first.kill()
    worker.held.clear()
    again = fleet.keep(await worker.reattach(second.address))
    assert again.session_id == worker.session_id
    grant = await again.next_grant()
    assert grant.task_id == task_id
    assert epoch_of(grant.token) > epoch_of(lost.token)
    await again.succeed(grant)
    assert "CLAIM_LOST" in [each.reason for each in await fleet.transitions(task_id)]


async def test_a_grant_sent_on_an_abandoned_stream_is_granted_again(fleet: Fleet, tmp_path: Path) -> None:
    first = await fleet.coordinator(failpoints=f"coordinator.after_register=1#wait({tmp_path}/go)")
    worker = await fleet.worker(first)
    second = await fleet.coordinator(start_timeout_seconds=WAITED_FOR)
    task_id = await fleet.submit()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await fleet.claims(second, task_id):
            await asyncio.sleep(0.02)
    again = fleet.keep(await worker.reattach(second.address))  # the claim is made, and the grant not sent
    assert (again.session_id, again.lost) == (worker.session_id, [])
    (tmp_path / "go").touch()
    sent = await worker.next_grant()
    grant = await again.next_grant()
    assert (sent.task_id, grant.task_id) == (task_id, task_id)
    assert sent.claim_id != grant.claim_id
    await again.succeed(grant)


@pytest.mark.faults
async def test_a_draining_replica_grants_nothing_on_old_streams(fleet: Fleet, tmp_path: Path) -> None:
    first = await fleet.coordinator(failpoints=f"coordinator.after_register=1#wait({tmp_path}/go)")
    second = await fleet.coordinator(start_timeout_seconds="60", reconcile_interval_seconds="60")
    worker, other = await fleet.worker(first), await fleet.worker(second, slots=0)
    task_id = await fleet.submit()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await fleet.claims(second, task_id):
            await asyncio.sleep(0.02)
    stopping = asyncio.create_task(first.stop())
    await worker.hears("goaway")
    (tmp_path / "go").touch()
    await other.report_slots(1)
    grant = await other.next_grant()  # given back at once, not found by another coordinator much later
    assert grant.task_id == task_id
    assert await stopping == 0
    assert worker.grants_waiting == 0
    await other.succeed(grant)


@pytest.mark.faults
async def test_a_silent_watch_loses_no_task(fleet: Fleet) -> None:
    """The reconciliation finds the events that the watch missed."""
    replica = await fleet.coordinator(
        failpoints="coordinator.before_requeue=1#sleep(600000)", start_timeout_seconds=WAITED_FOR
    )
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    await worker.open(await worker.next_grant())
    other = await fleet.worker(replica)
    await worker.break_off()
    grant = await other.next_grant()
    assert grant.task_id == task_id
    await other.open(grant)
    assert "CLAIM_LOST" in [each.reason for each in await fleet.transitions(task_id)]


async def test_a_task_whose_claim_was_deleted_is_queued(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    lost = await worker.next_grant()
    await worker.open(lost)
    async with fleet.etcd() as etcd:
        await etcd.delete(claim_key(task_id))
    assert (await worker.hears("revoke")).claim_id == lost.claim_id
    grant = await worker.next_grant()
    assert grant.task_id == task_id
    await worker.succeed(grant)


async def test_a_claim_left_behind_by_a_task_that_ended_is_deleted(fleet: Fleet) -> None:
    replica = await fleet.coordinator(start_timeout_seconds="60")
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    header = await worker.open(grant)
    await worker.commit(grant, header.next_commit_number, transition=SUCCEEDED)
    assert (await worker.hears("revoke")).claim_id == grant.claim_id  # it goes on naming it; the claim is gone
    assert await fleet.claims(replica, task_id) == []


@pytest.mark.faults
async def test_a_claim_without_a_session_is_deleted(fleet: Fleet) -> None:
    """As an unclear one that lands late, after the replica that made it died."""
    replica = await fleet.coordinator(start_timeout_seconds=WAITED_FOR)
    worker = await fleet.worker(replica, slots=0)
    task_id = await fleet.submit()
    async with lease_store(fleet) as (_, store):
        [claimed] = await store.claims.claim_many([await new_claim(store, task_id, worker.session_id)])
    assert claimed.held is not None
    await worker.report_slots(1)
    grant = await worker.next_grant()
    assert grant.task_id == task_id
    assert grant.claim_id != claimed.held.record.claim_id
    await worker.succeed(grant)


async def test_a_claim_with_a_lost_answer_is_found_by_its_id(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica, slots=0)
    task_id = await fleet.submit()
    async with lease_store(fleet) as (etcd, store):
        apply = etcd.txn

        async def unclear(txn: Txn, **options: float | None) -> TxnResult:
            await apply(txn, **options)
            monkeypatch.undo()
            raise EtcdUnclear("the answer is lost on its way")

        wanted = await new_claim(store, task_id, worker.session_id)
        monkeypatch.setattr(etcd, "txn", unclear)
        [mine] = await store.claims.claim_many([wanted])
        monkeypatch.setattr(etcd, "txn", unclear)
        [others] = await store.claims.claim_many([await new_claim(store, task_id, worker.session_id)])
    assert mine.held is not None
    assert mine.held.record == wanted.record
    assert (others.held, others.refusal, others.holder) == (None, ClaimRefusal.TAKEN, mine.held)


@pytest.mark.faults
async def test_a_claim_that_is_not_found_is_unclear_not_lost(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica, slots=0)
    task_id = await fleet.submit()
    async with lease_store(fleet) as (etcd, store):
        wanted = await new_claim(store, task_id, worker.session_id)

        async def nowhere(_txn: Txn, **_options: float | None) -> TxnResult:
            monkeypatch.undo()
            raise EtcdUnclear("sent, and still on its way")

        monkeypatch.setattr(etcd, "txn", nowhere)
        [claimed] = await store.claims.claim_many([wanted])
    assert (claimed.held, claimed.refusal) == (None, ClaimRefusal.UNCLEAR)


@asynccontextmanager
async def lease_store(fleet: Fleet) -> AsyncIterator[tuple[EtcdClient, LeaseStore]]:
    async with fleet.etcd() as etcd:
        yield etcd, LeaseStore(etcd)


async def new_claim(store: LeaseStore, task_id: str, session_id: str) -> NewClaim:
    """A claim under a live session, as a coordinator would make it."""
    session = await store.sessions.find(session_id)
    assert session is not None
    record = ClaimRecord(
        claim_id=str(uuid.uuid4()),
        worker_id=session.record.worker_id,
        session_id=session_id,
        generation=session.record.generation,
        tenant="default",
        reason="SUBMITTED",
        previous_epoch=0,
    )
    return NewClaim(task_id, record, session)
