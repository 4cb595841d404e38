"""The checkpoint service as LeaseService uses it. The tenant is that of the request being answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.coordinator.lease_store.named_leases import HeldLease
    from tenure.runtime.rpc_channel import TenureChannel

MAX_INSPECTED: Final = 512
_TIMEOUT_SECONDS: Final = 5.0


class LeaseLedger:
    """Raises what the checkpoint service answers: domain errors, and Unavailable when it does not."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = CheckpointServiceStub(channel)

    async def last_grant(self, resource: str) -> pb.GetLeaseGrantResponse:
        """The resource's last grant, and how it was given back; epoch 0 when it was never held."""
        request = pb.GetLeaseGrantRequest(resource=resource)
        return await self._stub.GetLeaseGrant(request, timeout=_TIMEOUT_SECONDS)

    async def register(self, held: HeldLease) -> pb.RegisterLeaseResponse:
        """Whether this claim may be signed. Repeatable."""
        record = held.record
        grant = pb.LeaseGrant(
            resource=held.resource,
            epoch=held.epoch,
            claim_id=record.claim_id,
            holder=record.holder,
            previous_epoch=record.previous_epoch,
            request_id=record.request_id,
            reason=record.reason,
            message=record.message,
        )
        return await self._stub.RegisterLease(pb.RegisterLeaseRequest(grant=grant), timeout=_TIMEOUT_SECONDS)

    async def note_release(self, held: HeldLease, reason: str, message: str) -> None:
        """Write down why it is about to be given back. Repeatable."""
        request = pb.NoteLeaseReleaseRequest(
            resource=held.resource, claim_id=held.record.claim_id, reason=reason, message=message
        )
        await self._stub.NoteLeaseRelease(request, timeout=_TIMEOUT_SECONDS)

    async def registered(self, leases: Sequence[HeldLease]) -> set[str]:
        """Which of these claims, of any tenants, are registered; at most MAX_INSPECTED at once."""
        claims = [
            pb.InspectLeasesRequest.Claim(tenant=each.tenant, resource=each.resource, claim_id=each.record.claim_id)
            for each in leases
        ]
        answer = await self._stub.InspectLeases(pb.InspectLeasesRequest(claims=claims), timeout=_TIMEOUT_SECONDS)
        return set(answer.registered_claim_ids)
