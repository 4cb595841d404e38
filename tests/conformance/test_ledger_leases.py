"""Laws of the ledger's side of LeaseService: a grant follows the one it says, and epochs only grow."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint

pytestmark = pytest.mark.server
GENERATION = 1 << 40


async def register(replica: Checkpoint, revision: int, previous: int = 0, **fields: object) -> pb.RegisterLeaseResponse:
    """Epochs of the first generation by their revisions."""
    values: dict[str, Any] = {
        "resource": "a",
        "epoch": GENERATION + revision,
        "claim_id": str(uuid4()),
        "holder": "one",
        "previous_epoch": GENERATION + previous if previous else 0,
        "request_id": "r",
        "reason": "FIRST",
        **fields,
    }
    request = pb.RegisterLeaseRequest(grant=pb.LeaseGrant(**values))
    answer: pb.RegisterLeaseResponse = await replica.stub.RegisterLease(request, timeout=TIMEOUT_SECONDS)
    return answer


async def last(replica: Checkpoint, resource: str = "a") -> pb.GetLeaseGrantResponse:
    answer: pb.GetLeaseGrantResponse = await replica.stub.GetLeaseGrant(
        pb.GetLeaseGrantRequest(resource=resource), timeout=TIMEOUT_SECONDS
    )
    return answer


async def test_a_grant_is_registered_only_after_its_predecessor(replica: Checkpoint) -> None:
    assert (await register(replica, 10)).registered
    assert not (await register(replica, 11, 9)).registered
    refused = await register(replica, 11)
    assert (refused.registered, refused.epoch) == (False, GENERATION + 10)
    assert (await register(replica, 11, 10)).registered
    assert (await last(replica)).grant.previous_epoch == GENERATION + 10


async def test_an_epoch_is_never_reused(replica: Checkpoint) -> None:
    assert (await register(replica, 10)).registered
    assert not (await register(replica, 10)).registered
    assert not (await register(replica, 9)).registered
    assert not (await register(replica, 12, 11)).registered  # after a grant that the ledger does not know
    assert (await last(replica)).grant.epoch == GENERATION + 10


async def test_a_first_grant_with_a_predecessor_is_refused(replica: Checkpoint) -> None:
    refused = await register(replica, 10, 9)
    assert (refused.registered, refused.epoch) == (False, 0)


async def test_a_repeated_registration_keeps_the_known_end(replica: Checkpoint) -> None:
    claim_id = str(uuid4())
    assert (await register(replica, 10, claim_id=claim_id)).registered
    note = pb.NoteLeaseReleaseRequest(resource="a", claim_id=claim_id, reason="RELEASED", message="done")
    await replica.stub.NoteLeaseRelease(note, timeout=TIMEOUT_SECONDS)
    assert (await register(replica, 10, claim_id=claim_id)).registered
    assert (await last(replica)).release_reason == "RELEASED"
    note.reason = "OPERATOR_RELEASED"
    await replica.stub.NoteLeaseRelease(note, timeout=TIMEOUT_SECONDS)
    assert (await last(replica)).release_reason == "RELEASED"  # who came first is believed
    assert (await register(replica, 11, 10)).registered
    assert (await last(replica)).release_reason == ""


async def test_nothing_of_a_generation_left_since_is_registered(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    request = pb.RaiseGenerationRequest(expected=1, reason="a test")
    raised = (await replica.stub.RaiseGeneration(request, timeout=TIMEOUT_SECONDS)).generation
    assert not (await register(replica, 10)).registered
    assert (await register(replica, 10, epoch=(raised << 40) + 1)).registered


async def test_nothing_of_a_generation_to_come_is_registered(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    assert not (await register(replica, 10, epoch=2**63 - 1)).registered
    epochs = await replica.stub.GetEpochs(pb.GetEpochsRequest(), timeout=TIMEOUT_SECONDS)
    assert epochs.highest_epoch == 0
    assert (await register(replica, 10)).registered


async def test_of_grants_registered_at_once_one_is(replica: Checkpoint) -> None:
    answers = await asyncio.gather(*(register(replica, 10 + number) for number in range(8)))
    assert sum(answer.registered for answer in answers) == 1


async def test_the_highest_epoch_is_that_of_leases_too(checkpoint: MakeCheckpoint) -> None:
    """So that an etcd that went back behind it is noticed."""
    replica = await checkpoint()
    await register(replica, 500)
    epochs = await replica.stub.GetEpochs(pb.GetEpochsRequest(), timeout=TIMEOUT_SECONDS)
    assert epochs.highest_epoch == GENERATION + 500


async def test_claims_are_found_by_tenant_resource_and_claim(replica: Checkpoint) -> None:
    mine, other = str(uuid4()), str(uuid4())
    await register(replica, 10, claim_id=mine)
    requests = [
        (replica.tenant, "a", mine),
        (replica.tenant, "a", other),
        (replica.tenant, "b", mine),
        ("acme", "a", mine),
    ]
    claims = [pb.InspectLeasesRequest.Claim(tenant=t, resource=r, claim_id=c) for t, r, c in requests]
    answer = await replica.stub.InspectLeases(pb.InspectLeasesRequest(claims=claims[1:]), timeout=TIMEOUT_SECONDS)
    assert list(answer.registered_claim_ids) == []
    answer = await replica.stub.InspectLeases(pb.InspectLeasesRequest(claims=claims[:1]), timeout=TIMEOUT_SECONDS)
    assert list(answer.registered_claim_ids) == [mine]


async def test_a_grant_that_cannot_be_one_is_refused(replica: Checkpoint) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await register(replica, 10, previous_epoch=GENERATION + 10, claim_id="x", resource="a@b")
    fields = {violation.field for violation in refused.value.violations}
    assert fields == {"grant.previous_epoch", "grant.claim_id", "grant.resource"}


async def test_a_release_without_a_reason_is_refused(replica: Checkpoint) -> None:
    claim_id = str(uuid4())
    await register(replica, 10, claim_id=claim_id)
    note = pb.NoteLeaseReleaseRequest(resource="a", claim_id=claim_id)
    with pytest.raises(InvalidRequest) as refused:
        await replica.stub.NoteLeaseRelease(note, timeout=TIMEOUT_SECONDS)
    assert {violation.field for violation in refused.value.violations} == {"reason"}
