"""Laws of operators at the coordinator: a task is taken from its owner, a worker is drained, by any replica."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.errors import NotFound, StaleEpoch, Unavailable
from tenure.domain.fencing import Claims
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Signer
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import task_pb2
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.wire.token import sign_task_claims
from tests.support.fix_coordinator import Fleet, epoch_of
from tests.support.fix_gateway import Serve
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

QUEUED, RUNNING = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING


async def transfer(replica: Any, task_id: Any, epoch: Any, to_worker_id: str = "", tenant: str = "default") -> Any:
    request = api.TransferTaskRequest(
        task_id=task_id, epoch=epoch, actor="olga", reason="its host is slow", to_worker_id=to_worker_id
    )
    async with open_channel(replica.address, tenant=tenant) as channel:
        return (await CoordinatorServiceStub(channel).TransferTask(request, timeout=CALL_SECONDS)).taken


async def drain(replica: Any, worker_id: Any) -> Any:
    request = api.DrainWorkerRequest(worker_id=worker_id, actor="olga", reason="new kernel")
    async with open_channel(replica.address) as channel:
        return (await CoordinatorServiceStub(channel).DrainWorker(request, timeout=CALL_SECONDS)).workers


async def held(fleet: Any, replica: Any, **worker: Any) -> Any:
    """A worker with a task open."""
    owner = await fleet.worker(replica, **worker)
    task_id = await fleet.submit()
    grant = await owner.next_grant()
    await owner.open(grant)
    return owner, task_id, grant


async def test_any_replica_transfers_a_task_to_another_worker(fleet: Fleet) -> None:
    replica, other = await fleet.coordinator(), await fleet.coordinator()
    owner, task_id, grant = await held(fleet, replica, slots=4)
    assert await transfer(other, task_id, epoch_of(grant.token))
    assert (await owner.hears("revoke")).claim_id == grant.claim_id
    task = await fleet.task(task_id)
    assert (task.state, task.reason, task.message) == (QUEUED, "OPERATOR_TRANSFER", "its host is slow")
    assert (await fleet.entries(task_id))[-1].actor == "olga"
    with pytest.raises(StaleEpoch):
        await owner.commit(grant, 1, transition={"to_state": QUEUED, "reason": "WORKER_DRAINED"})
    successor = await fleet.worker(replica)
    again = await successor.next_grant()
    assert again.task_id == task_id
    assert owner.grants_waiting == 0  # though it has more free slots
    assert epoch_of(again.token) > epoch_of(grant.token)


async def test_a_transferred_task_waits_for_its_target_worker(fleet: Fleet) -> None:
    replica, other = await fleet.coordinator(), await fleet.coordinator()
    _owner, task_id, grant = await held(fleet, replica)
    meant, bystander = await fleet.worker(other, worker_id="meant"), await fleet.worker(replica, slots=9)
    assert await transfer(replica, task_id, epoch_of(grant.token), "meant")
    assert (await meant.next_grant()).task_id == task_id
    assert bystander.grants_waiting == 0


@pytest.mark.faults
async def test_a_repeated_transfer_keeps_the_next_owner(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    _owner, task_id, grant = await held(fleet, replica)
    assert await transfer(replica, task_id, epoch_of(grant.token))
    successor = await fleet.worker(replica)
    await successor.open(await successor.next_grant())
    assert not await transfer(replica, task_id, epoch_of(grant.token))
    assert (await fleet.task(task_id)).owner == successor.hello.worker_id


@pytest.mark.faults
async def test_a_transfer_needs_the_own_tenant_and_an_attached_worker(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    owner, task_id, grant = await held(fleet, replica)
    assert not await transfer(replica, task_id, epoch_of(grant.token), tenant="somebody-else")
    with pytest.raises(NotFound):
        await transfer(replica, task_id, epoch_of(grant.token), "absent")
    assert (await fleet.task(task_id)).owner == owner.hello.worker_id


@pytest.mark.faults
async def test_a_transfer_does_not_count_as_a_lost_worker(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    task_id, workers = await fleet.submit(), [await fleet.worker(replica) for _ in range(3)]
    for _ in range(6):  # more than make a poison
        grants = [asyncio.create_task(worker.next_grant()) for worker in workers]
        done, waiting = await asyncio.wait(grants, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        grant = done.pop().result()
        owner = next(
            worker for worker, each in zip(workers, grants, strict=True) if each.done() and not each.cancelled()
        )
        await owner.open(grant)
        assert await transfer(replica, task_id, epoch_of(grant.token))
        await owner.release(grant, "FENCED")
    assert (await fleet.task(task_id)).state in {QUEUED, RUNNING}


async def test_a_drain_reaches_the_worker_at_any_replica(fleet: Fleet) -> None:
    replica, other = await fleet.coordinator(), await fleet.coordinator()
    owner, task_id, grant = await held(fleet, replica, slots=4, worker_id="tired")
    [response] = await drain(other, "tired")
    assert (response.worker_id, response.draining) == ("tired", True)
    assert (await owner.hears("drain")).message == "olga drains the worker: new kernel"
    waiting = await fleet.submit()
    await owner.commit(grant, 1, transition={"to_state": QUEUED, "reason": "WORKER_DRAINED"})
    await owner.release(grant, "WORKER_DRAINED")
    successor = await fleet.worker(replica, slots=2)
    assert {grant.task_id for grant in await successor.next_grants(2)} == {task_id, waiting}
    assert owner.grants_waiting == 0
    assert {worker.worker_id: worker.draining for worker in await fleet.workers(other)}["tired"]


@pytest.mark.faults
async def test_the_drain_mark_follows_the_session_to_another_replica(fleet: Fleet) -> None:
    replica, other = await fleet.coordinator(), await fleet.coordinator()
    owner = await fleet.worker(replica, worker_id="tired")
    await drain(replica, "tired")
    await owner.hears("drain")
    owner.freeze()  # the session ends with the new stream, or with its lease
    moved = fleet.keep(await owner.reattach(other.address))
    await moved.hears("drain")
    await moved.break_off()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fleet.workers(replica):
            await asyncio.sleep(0.05)
    anew = await fleet.worker(replica, worker_id="tired")  # a new session: it was started anew
    task_id = await fleet.submit()
    assert (await anew.next_grant()).task_id == task_id


@pytest.mark.faults
async def test_the_reconciliation_delivers_a_drain_the_watch_missed(fleet: Fleet) -> None:
    deaf = await fleet.coordinator(failpoints="coordinator.deaf_watch")
    other = await fleet.coordinator()
    owner = await fleet.worker(deaf, worker_id="tired")
    await drain(other, "tired")
    await owner.hears("drain")


async def test_the_reconciliation_revokes_a_claim_the_watch_missed(fleet: Fleet) -> None:
    deaf, other = await fleet.coordinator(failpoints="coordinator.deaf_watch"), await fleet.coordinator()
    owner, task_id, grant = await held(fleet, deaf)
    assert await transfer(other, task_id, epoch_of(grant.token))
    assert (await owner.hears("revoke")).claim_id == grant.claim_id


@pytest.mark.faults
async def test_a_worker_that_is_not_there_cannot_be_drained(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    with pytest.raises(NotFound) as refused:
        await drain(replica, f"worker-{uuid.uuid4()}")
    assert refused.value.reason == "WORKER_NOT_FOUND"


async def test_a_transfer_that_took_nothing_does_not_succeed(fleet: Fleet, gateway: Serve) -> None:
    """The claim is gone from etcd, and the ledger still names it: the task has not moved yet."""
    replica = await fleet.coordinator(reconcile_interval_seconds="600")
    await fleet.worker(replica, queues=["elsewhere"])  # its session says that the coordinator's generation is settled
    task_id, epochs = (
        await fleet.submit(),
        await fleet.ledger.GetEpochs(ledger_pb.GetEpochsRequest(), timeout=CALL_SECONDS),
    )
    epoch = max(epochs.highest_epoch, epochs.generation << 40) + 1
    signer = Signer.load(fleet.signing_key)
    claims = Claims(f"tasks/{task_id}", "default", epoch, str(uuid.uuid4()), "gone", installation=DEFAULT_INSTALLATION)
    grant = ledger_pb.RegisterGrantsRequest.Grant(task_id=task_id, epoch=epoch, claim_id=claims.claim_id)
    await fleet.ledger.RegisterGrants(ledger_pb.RegisterGrantsRequest(grants=[grant]), timeout=CALL_SECONDS)
    opening = ledger_pb.OpenRequest(token=sign_task_claims(signer, claims, datetime.now(UTC)))
    async for _ in fleet.ledger.Open(opening, timeout=CALL_SECONDS):
        pass
    admin = (await gateway(fleet.checkpoint.address, coordinator=replica.address)).admin
    with pytest.raises(Unavailable) as refused:
        await admin.TransferTask(api.TransferTaskRequest(task_id=task_id, reason="slow"), timeout=CALL_SECONDS)
    assert refused.value.reason == "STILL_HELD"
    assert (await fleet.task(task_id)).state == RUNNING
