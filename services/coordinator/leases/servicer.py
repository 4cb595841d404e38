"""LeaseService on the wire: each method names what does it. No rule stands here."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from services.coordinator.leases.granting import Wanted
from services.coordinator.leases.listing import list_leases
from services.coordinator.leases.messages import to_holders_message, to_message
from services.coordinator.leases.target import Target, lost, target_of, target_of_token
from tenure.domain.errors import NotFound
from tenure.domain.leases import LeaseReason
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1.lease_service_pb2_grpc import LeaseServiceServicer
from tenure.wire.times import seconds

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.issuing import Issuer
    from services.coordinator.lease_store.named_leases import NamedLeases
    from services.coordinator.leases.granting import Granted, Granting
    from services.coordinator.leases.holding import Holding
    from services.coordinator.leases.ledger import LeaseLedger
    from services.coordinator.leases.watching import Watching


class LeaseServicer(LeaseServiceServicer):
    """See protos/tenure/v1/lease_service.proto for what each method promises."""

    def __init__(
        self,
        keys: NamedLeases,
        ledger: LeaseLedger,
        granting: Granting,
        holding: Holding,
        watching: Watching,
        issuer: Issuer,
        generation: Generation,
    ) -> None:
        self._keys, self._ledger = keys, ledger
        self._granting, self._holding, self._watching = granting, holding, watching
        self._issuer, self._generation = issuer, generation

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, _context: Any) -> pb.AcquireLeaseResponse:
        ttl_seconds = math.ceil(seconds(request.ttl))
        wanted = Wanted(current_tenant(), request.resource, request.holder, ttl_seconds, request.request_id)
        return pb.AcquireLeaseResponse(lease=await self._answer(await self._granting.acquire(wanted)))

    async def RenewLease(self, request: pb.RenewLeaseRequest, _context: Any) -> pb.RenewLeaseResponse:
        target = target_of_token(self._issuer, current_tenant(), request.token)
        held, remaining_seconds = await self._holding.renew(current_tenant(), target)
        return pb.RenewLeaseResponse(lease=to_holders_message(self._issuer, held, remaining_seconds))

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, _context: Any) -> pb.ReleaseLeaseResponse:
        target, by_operator = target_of(self._issuer, current_tenant(), request)
        released = await self._holding.release(current_tenant(), target, request.reason, by_operator=by_operator)
        return pb.ReleaseLeaseResponse(released=released)

    async def TransferLease(self, request: pb.TransferLeaseRequest, _context: Any) -> pb.TransferLeaseResponse:
        target, by_operator = target_of(self._issuer, current_tenant(), request)
        ttl_seconds = math.ceil(seconds(request.ttl))
        wanted = Wanted(current_tenant(), target.resource, request.holder, ttl_seconds, request.request_id)
        reason = LeaseReason.OPERATOR_TRANSFER if by_operator else LeaseReason.TRANSFERRED
        granted = await self._granting.transfer(target, wanted, reason, request.reason)
        return pb.TransferLeaseResponse(lease=await self._answer(granted))

    async def GetLease(self, request: pb.GetLeaseRequest, _context: Any) -> pb.GetLeaseResponse:
        found = await self._keys.find(current_tenant(), request.resource)
        if found is None:
            last = await self._ledger.last_grant(request.resource)
            raise NotFound(
                f"nobody holds {request.resource}",
                reason="LEASE_NOT_HELD",
                metadata={"last_epoch": str(last.grant.epoch)},
            )
        return pb.GetLeaseResponse(lease=to_message(found, await self._keys.remaining_seconds(found)))

    async def ListLeases(self, request: pb.ListLeasesRequest, _context: Any) -> pb.ListLeasesResponse:
        return await list_leases(self._keys, current_tenant(), self._generation.current(), request)

    async def WatchLeases(self, request: pb.WatchLeasesRequest, _context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        watch = self._watching.watch(current_tenant(), request.prefix, request.after_revision)
        async with aclosing(watch) as answers:
            async for answer in answers:
                yield answer

    async def ListSigningKeys(self, _request: pb.ListSigningKeysRequest, _context: Any) -> pb.ListSigningKeysResponse:
        return pb.ListSigningKeysResponse(keys=self._issuer.signing_keys())

    async def _answer(self, granted: Granted) -> pb.Lease:
        """Made by this call, it lives for its ttl from the sending at least; but it may be gone before we answer."""
        lease = granted.lease
        left_seconds = await self._keys.remaining_seconds(lease)
        if left_seconds <= 0:
            raise lost(Target(lease.resource, lease.epoch, lease.record.claim_id), None)
        remaining_seconds = left_seconds if granted.repeated else lease.record.ttl_seconds
        return to_holders_message(self._issuer, lease, remaining_seconds)
