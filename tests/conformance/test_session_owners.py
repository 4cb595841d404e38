"""Whose session it is: who may attach it again, whose claims it may name, and where its live text is."""

from __future__ import annotations

import base64
import os

import pytest

from tenure.domain.errors import InvalidRequest, NotFound, PermissionDenied
from tenure.domain.fencing import holder_proof, is_proof
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tests.support.fix_coordinator import Fleet, epoch_of
from tests.support.patience import CALL_SECONDS
from tests.support.scripted_worker import ScriptedWorker
from tests.support.service_process import ServiceProcess

FINISHED = {"to_state": task_pb2.TASK_STATE_SUCCEEDED, "reason": "FINAL_ANSWER"}


async def until_settled(fleet: Fleet, replica: ServiceProcess) -> None:
    """Waits until the replica takes sessions."""
    await fleet.worker(replica, slots=0, worker_id="first")


async def refusal_of(worker: ScriptedWorker) -> str:
    """The reason for which the worker is not attached."""
    try:
        with pytest.raises(PermissionDenied) as refused:
            await worker.attach()
    finally:
        await worker.break_off()
    return refused.value.reason


def taker_of(worker: ScriptedWorker, replica: ServiceProcess, fleet: Fleet, secret: bytes) -> ScriptedWorker:
    """A process that names the session of another one."""
    taker = ScriptedWorker(replica.address, fleet.ledger)
    taker.hello.CopyFrom(worker.hello)
    taker.hello.session_id, taker.hello.session_secret = worker.session_id, secret
    taker.hello.holdings.extend(named(grant) for grant in worker.held.values())
    return taker


async def test_a_session_is_attached_again_with_its_secret_only(fleet: Fleet) -> None:
    """The ids are not secret: operators list them. Any replica knows the secret's digest, from etcd."""
    first, second = await fleet.coordinator(), await fleet.coordinator()
    worker = await fleet.worker(first, session_secret=os.urandom(32))
    await until_settled(fleet, second)
    await fleet.submit()
    grant = await worker.next_grant()
    for replica, wrong in ((first, os.urandom(32)), (second, os.urandom(32))):
        assert await refusal_of(taker_of(worker, replica, fleet, wrong)) == "OTHER_HOLDER"
    again = fleet.keep(await worker.reattach(second.address))
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await worker.open(grant)
    await again.commit(grant, 1, transition=FINISHED)


async def test_a_restarted_coordinator_still_knows_the_secret(fleet: Fleet) -> None:
    replica, secret = await fleet.coordinator(), os.urandom(32)
    worker = await fleet.worker(replica, session_secret=secret)
    await replica.kill()
    restarted = await fleet.coordinator()
    await until_settled(fleet, restarted)
    assert await refusal_of(taker_of(worker, restarted, fleet, os.urandom(32))) == "OTHER_HOLDER"
    again = fleet.keep(await worker.reattach(restarted.address))
    assert again.session_id == worker.session_id


async def test_the_secret_is_neither_in_etcd_nor_in_logs_nor_listed(fleet: Fleet) -> None:
    replica, secret = await fleet.coordinator(), os.urandom(32)
    worker = await fleet.worker(replica, session_secret=secret)
    await refusal_of(taker_of(worker, replica, fleet, os.urandom(32)))
    async with fleet.etcd() as etcd:
        stored = b" ".join(each.value for each in (await etcd.list(b"")).key_values)
    listed = b" ".join(each.SerializeToString() for each in await fleet.workers(replica))
    assert b"secret_digest" in stored
    for text in (secret, secret.hex().encode(), base64.b64encode(secret), holder_proof(secret).hex().encode()):
        assert text not in stored + listed + replica.log_text().encode()


@pytest.mark.faults
async def test_a_session_without_a_secret_is_refused(fleet: Fleet) -> None:
    worker = ScriptedWorker((await fleet.coordinator()).address, fleet.ledger, worker_id="w", session_secret=b"")
    with pytest.raises(InvalidRequest, match="session_secret"):
        await worker.attach()
    await worker.break_off()


def named(grant: pb.Grant) -> pb.Holding:
    return pb.Holding(task_id=grant.task_id, claim_id=grant.claim_id, progress=pb.Progress(sequence=10**6))


async def test_a_session_moves_no_claim_of_another_session(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    owner = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await owner.next_grant()
    await owner.open(grant)
    other = await fleet.worker(replica, slots=0, worker_id="other", holdings=[named(grant)])
    assert other.lost == [grant.claim_id]
    await other.say(pb.SessionRequest(calls_heard=pb.CallsHeard(holdings=[named(grant)])))
    await other.say(pb.SessionRequest(renew=pb.Renew(renew_number=1000, holdings=[named(grant)])))
    revoked = await other.hears("revoke")
    assert (revoked.claim_id, revoked.reason) == (grant.claim_id, "CLAIM_LOST")
    for reason in ("CLOSED", "WORKER_DRAINED"):
        await other.release(grant, reason)
    await other.close()
    await other.ends()
    await replica.logged("ended a session")  # by then its releases were carried out or refused
    [claim] = await fleet.claims(replica, task_id)
    assert (claim.claim_id, claim.session_id) == (grant.claim_id, owner.session_id)
    await owner.commit(grant, 1, transition=FINISHED)
    assert not any(each.HasField("revoke") for each in owner.heard)


async def live_source(
    replica: ServiceProcess, task_id: str, epoch: int, tenant: str = "default"
) -> pb.GetLiveSourceResponse:
    async with open_channel(replica.address, tenant=tenant) as channel:
        request = pb.GetLiveSourceRequest(task_id=task_id, epoch=epoch)
        return await CoordinatorServiceStub(channel).GetLiveSource(request, timeout=CALL_SECONDS)


async def test_the_live_source_is_that_of_the_claims_session(fleet: Fleet) -> None:
    """Not that of other workers with the same id, which attached before and after it."""
    replica, secret = await fleet.coordinator(), os.urandom(32)
    twins = [await fleet.worker(replica, slots=0, worker_id="w", live_address=f"127.0.0.1:{port}") for port in (2, 3)]
    worker = await fleet.worker(replica, worker_id="w", live_address="127.0.0.1:1", session_secret=secret)
    twins += [await fleet.worker(replica, slots=0, worker_id="w", live_address=f"127.0.0.1:{port}") for port in (4, 5)]
    task_id = await fleet.submit()
    epoch = epoch_of((await worker.next_grant()).token)
    source = await live_source(replica, task_id, epoch)
    assert (source.address, source.allows_loopback) == ("127.0.0.1:1", True)
    assert is_proof(holder_proof(secret), source.proof_digest)
    for unknown in (live_source(replica, task_id, epoch + 1), live_source(replica, task_id, epoch, tenant="other")):
        with pytest.raises(NotFound):
            await unknown


@pytest.mark.faults
async def test_the_setting_of_networks_limits_live_addresses(fleet: Fleet) -> None:
    replica = await fleet.coordinator(live_networks="session,10.7.0.0/16")
    recorded = {
        "127.0.0.1:9001": "127.0.0.1:9001",
        "localhost:9001": "127.0.0.1:9001",
        "10.7.1.1:9001": "10.7.1.1:9001",
        "127.0.0.2:9001": "",
        "10.8.1.1:9001": "",
        "no-such-host.invalid:9001": "",
    }
    for number, address in enumerate(recorded):
        await fleet.worker(replica, slots=0, worker_id=f"w-{number}", live_address=address)
    listed = [each.live_address for each in await fleet.workers(replica)]
    assert listed == list(recorded.values())
    assert replica.log_text().count("a worker has no live text") == 3


@pytest.mark.faults
async def test_a_special_live_address_is_refused(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    await until_settled(fleet, replica)
    worker = ScriptedWorker(replica.address, fleet.ledger, worker_id="w", live_address="169.254.169.254:80")
    with pytest.raises(InvalidRequest) as refused:
        await worker.attach()
    await worker.break_off()
    assert [violation.field for violation in refused.value.violations] == ["hello.live_address"]
