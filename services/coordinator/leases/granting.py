"""Acquires and transfers leases: claims in etcd, registers in the ledger, and only then grants, checking each step.

A claim that was not registered because the ledger did not answer stays in etcd: a repeat of the request finds it by its
request id and continues. Without a repeat, the sweep deletes it.
"""

from __future__ import annotations

import logging
from time import time
from typing import Final, NamedTuple
from uuid import uuid4

from services.coordinator.generation import Generation
from services.coordinator.lease_store import GenerationMoved, SessionLost
from services.coordinator.lease_store.named_leases import LeaseRecord, LeaseTaken, NamedLease, NamedLeases
from services.coordinator.leases.messages import Target, is_meant, lost
from services.coordinator.ledger_client import LeaseGrantClient
from tenure.domain.errors import AlreadyExists, LeaseHeld, LimitReached, Unavailable
from tenure.domain.fencing import LeaseReason, describe_epoch
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.v1 import checkpoint_service_pb2 as pb

# Renewal and release of a held lease.

_log: Final = logging.getLogger(__name__)


class LeaseRenewal:
    """Renews and releases leases. Each method names one lease."""

    def __init__(self, keys: NamedLeases, ledger: LeaseGrantClient, generation: Generation) -> None:
        self._keys, self._ledger, self._generation = keys, ledger, generation

    async def renew(self, tenant: str, target: Target) -> tuple[NamedLease, int]:
        """Returns the lease and the seconds that it lives from now.

        Raises StaleEpoch when it is gone, and Unavailable.
        """
        generation = self._generation.current()
        lease = await self._keys.find(tenant, target.resource)
        if lease is None or not is_meant(lease, target):
            raise self._lost(target, lease)
        if lease.record.generation != generation:  # of a former life of etcd, and about to be deleted
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled")
        try:
            return lease, await self._keys.keep_alive(lease)
        except SessionLost:
            raise self._lost(target, None) from None

    async def release(self, tenant: str, target: Target, message: str, *, by_operator: bool) -> bool:
        """Releases a lease.

        Returns whether this call ended it. Records the reason first, so that it is never missing.
        """
        self._generation.current()
        lease = await self._keys.find(tenant, target.resource)
        if lease is None or not is_meant(lease, target):
            return False
        reason = LeaseReason.OPERATOR_RELEASED if by_operator else LeaseReason.RELEASED
        await self._ledger.note_release(lease, reason, message)
        released = await self._keys.delete(lease)
        if released:
            fields = {"lease": lease.resource, "epoch": describe_epoch(lease.epoch), "holder": lease.record.holder}
            _log.info("a lease was released", extra={**fields, "reason": reason, "why": message})
        return released

    def _lost(self, target: Target, lease: NamedLease | None) -> Exception:
        metrics.count("tenure_leases_lost_total")
        return lost(target, lease)


_MAX_ROUNDS: Final = 4
_AGAIN_SECONDS: Final = 0.5


class LeaseRequest(NamedTuple):
    """A request for a lease. `request_id` identifies repeats. `ttl_seconds` 0: the TTL of the lease before."""

    tenant: str
    resource: str
    holder: str
    ttl_seconds: int
    request_id: str


class GrantedLease(NamedTuple):
    """A registered lease. `repeated`: an earlier call made it, so less than its TTL is left."""

    lease: NamedLease
    repeated: bool


class LeaseGranter:
    """Grants leases, by acquire and by transfer: both give the resource a new epoch."""

    def __init__(
        self, keys: NamedLeases, ledger: LeaseGrantClient, generation: Generation, *, most_per_tenant: int
    ) -> None:
        self._keys, self._ledger, self._generation = keys, ledger, generation
        self._most_per_tenant = most_per_tenant

    async def acquire(self, wanted: LeaseRequest) -> GrantedLease:
        """Acquires a lease.

        Raises LeaseHeld, AlreadyExists, LimitReached, StaleEpoch for a late repeat, and Unavailable.
        """
        for _ in range(_MAX_ROUNDS):
            existing = await self._keys.find(wanted.tenant, wanted.resource)
            repeated = existing is not None and existing.record.request_id == wanted.request_id
            if existing is not None and repeated:
                lease = await self._repeat(existing, wanted)
            elif existing is None or _is_meant_for(existing, wanted.holder):
                lease = await self._take(wanted, existing)
            else:
                raise await self._held_by_another(existing)
            if lease is not None:
                return GrantedLease(lease, repeated)
        raise Unavailable(
            "other holders keep taking and losing this lease; try again later", retry_after_seconds=_AGAIN_SECONDS
        )

    async def transfer(self, target: Target, wanted: LeaseRequest, reason: str, message: str) -> GrantedLease:
        """Transfers a lease in one step, so that no other holder comes in between.

        Raises StaleEpoch, AlreadyExists and Unavailable.
        """
        existing = await self._keys.find(wanted.tenant, wanted.resource)
        if existing is not None and existing.record.request_id == wanted.request_id:
            repeated = await self._repeat(existing, wanted)
            if repeated is not None:
                return GrantedLease(repeated, repeated=True)
        last = (await self._ledger.last_grant(wanted.resource)).grant
        if existing is None or not is_meant(existing, target) or last.claim_id != existing.record.claim_id:
            raise lost(target, existing)
        ttl_seconds = wanted.ttl_seconds or existing.record.asked_ttl_seconds
        record = self._record(wanted._replace(ttl_seconds=ttl_seconds), last.epoch, reason, message, transferred=True)
        claimed = await self._claim(wanted, record, existing)
        lease = None if claimed is None else await self._register(claimed)
        if lease is None:
            raise lost(target, await self._keys.find(wanted.tenant, wanted.resource))
        return GrantedLease(lease, repeated=False)

    async def _take(self, wanted: LeaseRequest, existing: NamedLease | None) -> NamedLease | None:
        """Claims a free resource, or one that was transferred to the caller. None: look again."""
        last = await self._ledger.last_grant(wanted.resource)
        if last.grant.request_id == wanted.request_id:
            raise lost(Target(wanted.resource, last.grant.epoch, last.grant.claim_id), existing)
        if existing is None:
            await self._check_room(wanted.tenant)
            reason, message = _how_it_ended(last)
        else:
            reason, message = existing.record.reason, existing.record.message
        claimed = await self._claim(wanted, self._record(wanted, last.grant.epoch, reason, message), existing)
        return None if claimed is None else await self._register(claimed)

    async def _repeat(self, lease: NamedLease, wanted: LeaseRequest) -> NamedLease | None:
        """Handles a repeat of the request: completes the steps that the first try left undone."""
        record = lease.record
        if record.holder != wanted.holder or wanted.ttl_seconds not in {0, record.asked_ttl_seconds}:
            raise AlreadyExists(
                f"request {wanted.request_id} acquired this lease with another holder or ttl",
                reason="REQUEST_ID_REUSED",
            )
        if record.generation != self._generation.current():
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled", retry_after_seconds=_AGAIN_SECONDS)
        return await self._register(lease)

    async def _claim(
        self, wanted: LeaseRequest, record: LeaseRecord, replacing: NamedLease | None
    ) -> NamedLease | None:
        try:
            claimed = await self._keys.claim(wanted.tenant, wanted.resource, record, replacing=replacing)
        except LeaseTaken:
            return None
        except GenerationMoved as error:
            self._generation.doubt()
            raise Unavailable(str(error), retry_after_seconds=_AGAIN_SECONDS) from error
        await failpoint("coordinator.after_lease_claim")
        if replacing is not None:
            await self._keys.forget(replacing)
        return claimed

    async def _register(self, held: NamedLease) -> NamedLease | None:
        """Returns the lease once it is a grant. None: another lease was registered between the read and the claim."""
        registration = await self._ledger.register(held)
        if registration.registered:
            await failpoint("coordinator.after_lease_register")
            metrics.count("tenure_leases_granted_total", reason=held.record.reason)
            fields = {"lease": held.resource, "holder": held.record.holder, "reason": held.record.reason}
            _log.info("granted a lease", extra={**fields, "epoch": describe_epoch(held.epoch)})
            return held
        await self._keys.delete(held)
        if held.record.previous_epoch < registration.epoch < held.epoch:
            return None
        _log.warning("the claim of a lease was not registered", extra={"lease": held.resource})
        self._generation.doubt()  # the ledger knows a higher epoch, or another generation: etcd may have gone back
        raise Unavailable("etcd's generation is being settled", retry_after_seconds=_AGAIN_SECONDS)

    async def _check_room(self, tenant: str) -> None:
        """Limits the leases of a tenant to protect etcd. Concurrent requests may exceed the limit by a few."""
        if await self._keys.count(tenant) >= self._most_per_tenant:
            raise LimitReached(
                f"a tenant holds at most {self._most_per_tenant} leases at once",
                reason="TOO_MANY_LEASES",
                metadata={"subject": f"tenant:{tenant}"},
            )

    async def _held_by_another(self, lease: NamedLease) -> LeaseHeld:
        metrics.count("tenure_leases_refused_total")
        remaining = await self._keys.remaining_seconds(lease)
        return LeaseHeld(
            f"{lease.resource} is held by {lease.record.holder}",
            retry_after_seconds=float(max(remaining, 1)),
            metadata={"holder": lease.record.holder, "epoch": str(lease.epoch)},
        )

    def _record(
        self, wanted: LeaseRequest, previous_epoch: int, reason: str, message: str, *, transferred: bool = False
    ) -> LeaseRecord:
        return LeaseRecord(
            claim_id=str(uuid4()),
            holder=wanted.holder,
            generation=self._generation.current(),
            request_id=wanted.request_id,
            asked_ttl_seconds=wanted.ttl_seconds,
            ttl_seconds=wanted.ttl_seconds,
            previous_epoch=previous_epoch,
            reason=reason,
            message=message,
            acquired_at=time(),
            transferred=transferred,
        )


def _is_meant_for(lease: NamedLease, holder: str) -> bool:
    """Whether the lease was transferred to this holder, which has not acquired it itself yet."""
    return lease.record.transferred and lease.record.holder == holder


def _how_it_ended(last: pb.GetLeaseGrantResponse) -> tuple[str, str]:
    """Returns the reason and the message of the last lease's end, for the next holder."""
    if not last.grant.epoch:
        return LeaseReason.FIRST, ""
    return last.release_reason or LeaseReason.LEASE_EXPIRED, last.release_message
