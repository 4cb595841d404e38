"""Serves the methods of LeaseService. The rules are in the modules that it calls."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from services.coordinator.claims.issuing import Issuer
from services.coordinator.generation import Generation
from services.coordinator.lease_store import LeaseStore
from services.coordinator.lease_store.named_leases import NamedLease, NamedLeases
from services.coordinator.leases.granting import GrantedLease, LeaseGranter, LeaseRenewal, LeaseRequest
from services.coordinator.leases.messages import (
    Target,
    lost,
    target_of,
    target_of_token,
    to_holders_message,
    to_message,
)
from services.coordinator.leases.watching import LeaseWatch
from services.coordinator.ledger_client import MAX_INSPECTED, LeaseGrantClient
from services.coordinator.settings import CoordinatorSettings
from tenure.domain.errors import NotFound, TenureError
from tenure.domain.fencing import LeaseReason, compose_epoch
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.request_context import current_tenant
from tenure.runtime.rpc.client import TenureChannel
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1.lease_service_pb2_grpc import LeaseServiceServicer
from tenure.wire.common import seconds

# The list of leases, in pages.

DEFAULT_PAGE: Final = 100
_AT_ONCE: Final = 16


async def list_leases(
    keys: NamedLeases, tenant: str, generation: int, request: pb.ListLeasesRequest
) -> pb.ListLeasesResponse:
    """Returns a page sorted by name, with the remaining time of each lease.

    `page_token` is the last name of the page before.
    """
    listing = await keys.list_tenant(tenant, request.prefix)
    size = request.page_size or DEFAULT_PAGE
    rest = [lease for lease in listing.leases if lease.resource > request.page_token]
    page = rest[:size]
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def to_lease_message(lease: NamedLease) -> pb.Lease:
        async with at_once:
            return to_message(lease, await keys.remaining_seconds(lease))

    return pb.ListLeasesResponse(
        leases=await asyncio.gather(*map(to_lease_message, page)),
        next_page_token=page[-1].resource if len(rest) > size else "",
        revision=compose_epoch(generation, listing.revision),
    )


# Unregistered leases: a coordinator died between claim and registration, and the request was not repeated.

_log: Final = logging.getLogger(__name__)


class UnregisteredLeaseSweeper:
    """Deletes unregistered leases, in every replica.

    It asks about a lease until the lease is registered. The duty is `run`.
    """

    def __init__(
        self, keys: NamedLeases, ledger: LeaseGrantClient, *, interval_seconds: float, patience_seconds: float
    ) -> None:
        self._keys, self._ledger = keys, ledger
        self._interval_seconds, self._patience_seconds = interval_seconds, patience_seconds
        self._registered: set[str] = set()
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Sweeps periodically. A duty."""
        while True:
            await rest(self._interval_seconds * random.uniform(0.8, 1.2))
            try:
                await self._sweep()
            except TenureError as error:
                _log.warning("the sweep of unregistered leases failed and is retried", extra={"error": error})

    async def _sweep(self) -> None:
        leases = {lease.record.claim_id: lease for lease in await self._keys.list_all()}
        metrics.gauge("tenure_leases", float(len(leases)))
        self._registered &= leases.keys()
        unknown = [lease for claim_id, lease in leases.items() if claim_id not in self._registered]
        for start in range(0, len(unknown), MAX_INSPECTED):
            note_progress()
            self._registered |= await self._ledger.registered(unknown[start : start + MAX_INSPECTED])
        now = asyncio.get_running_loop().time()
        unregistered = leases.keys() - self._registered
        self._since = {claim_id: self._since.get(claim_id, now) for claim_id in unregistered}
        for claim_id, since in self._since.items():
            if now - since >= self._patience_seconds:
                note_progress()
                await self._delete(leases[claim_id])

    async def _delete(self, lease: NamedLease) -> None:
        fields = {"lease": lease.resource, "tenant": lease.tenant, "holder": lease.record.holder}
        _log.warning("an unregistered lease is deleted", extra=fields)
        await self._keys.delete(lease)


class LeaseServicer(LeaseServiceServicer):
    """See protos/tenure/v1/lease_service.proto for the promises of each method."""

    def __init__(
        self,
        keys: NamedLeases,
        ledger: LeaseGrantClient,
        granting: LeaseGranter,
        holding: LeaseRenewal,
        watching: LeaseWatch,
        issuer: Issuer,
        generation: Generation,
    ) -> None:
        self._keys, self._ledger = keys, ledger
        self._granting, self._holding, self._watching = granting, holding, watching
        self._issuer, self._generation = issuer, generation

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, _context: Any) -> pb.AcquireLeaseResponse:
        ttl_seconds = math.ceil(seconds(request.ttl))
        wanted = LeaseRequest(current_tenant(), request.resource, request.holder, ttl_seconds, request.request_id)
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
        wanted = LeaseRequest(current_tenant(), target.resource, request.holder, ttl_seconds, request.request_id)
        reason = LeaseReason.OPERATOR_TRANSFER if by_operator else LeaseReason.TRANSFERRED
        granted = await self._granting.transfer(target, wanted, reason, request.reason)
        return pb.TransferLeaseResponse(lease=await self._answer(granted))

    async def GetLease(self, request: pb.GetLeaseRequest, _context: Any) -> pb.GetLeaseResponse:
        lease = await self._keys.find(current_tenant(), request.resource)
        if lease is None:
            last = await self._ledger.last_grant(request.resource)
            raise NotFound(
                f"{request.resource} has no holder",
                reason="LEASE_NOT_HELD",
                metadata={"last_epoch": str(last.grant.epoch)},
            )
        return pb.GetLeaseResponse(lease=to_message(lease, await self._keys.remaining_seconds(lease)))

    async def ListLeases(self, request: pb.ListLeasesRequest, _context: Any) -> pb.ListLeasesResponse:
        return await list_leases(self._keys, current_tenant(), self._generation.current(), request)

    async def WatchLeases(self, request: pb.WatchLeasesRequest, _context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        watch = self._watching.watch(current_tenant(), request.prefix, request.after_revision)
        async with aclosing(watch) as answers:
            async for answer in answers:
                yield answer

    async def ListSigningKeys(self, _request: pb.ListSigningKeysRequest, _context: Any) -> pb.ListSigningKeysResponse:
        return pb.ListSigningKeysResponse(keys=self._issuer.signing_keys())

    async def _answer(self, granted: GrantedLease) -> pb.Lease:
        """Returns the granted lease.

        A lease of this call lives at least its TTL from now; an older one may be gone already.
        """
        lease = granted.lease
        remaining_now_seconds = await self._keys.remaining_seconds(lease)
        if remaining_now_seconds <= 0:
            raise lost(Target(lease.resource, lease.epoch, lease.record.claim_id), None)
        remaining_seconds = remaining_now_seconds if granted.repeated else lease.record.ttl_seconds
        return to_holders_message(self._issuer, lease, remaining_seconds)


# The parts of LeaseService. They share the store and the generation with the sessions and claims of workers.


def lease_service(
    settings: CoordinatorSettings,
    store: LeaseStore,
    checkpoint: TenureChannel,
    issuer: Issuer,
    generation: Generation,
    stopping: asyncio.Event,
) -> tuple[LeaseServicer, UnregisteredLeaseSweeper]:
    """Returns the servicer, and the sweep that must run as a duty."""
    keys, ledger = store.leases, LeaseGrantClient(checkpoint)
    servicer = LeaseServicer(
        keys,
        ledger,
        LeaseGranter(keys, ledger, generation, most_per_tenant=settings.max_leases_per_tenant),
        LeaseRenewal(keys, ledger, generation),
        LeaseWatch(store, generation, stopping),
        issuer,
        generation,
    )
    sweeping = UnregisteredLeaseSweeper(
        keys,
        ledger,
        interval_seconds=settings.reconcile_interval_seconds,
        patience_seconds=settings.start_timeout_seconds,
    )
    return servicer, sweeping
