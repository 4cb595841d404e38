"""Translates leases into messages. Only the holder's message has a token."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from services.coordinator.claims.issuing import Issuer
from services.coordinator.lease_store.named_leases import NamedLease
from tenure.domain.errors import PermissionDenied, StaleEpoch
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.common import duration, timestamp

# The lease that a request means: that of a token, or that of an operator's request.

LEASE_LOST = "LEASE_LOST"


class Target(NamedTuple):
    """One lease of a resource. `claim_id` empty: an operator named only the epoch."""

    resource: str
    epoch: int
    claim_id: str


def target_of_token(issuer: Issuer, tenant: str, token: token_pb2.FencingToken) -> Target:
    """Returns the lease of a token.

    Raises Unauthenticated, and PermissionDenied for another tenant's token or a task's.
    """
    claims = issuer.check(token)
    resource = claims.lease_name
    if claims.tenant != tenant:
        raise PermissionDenied("the token belongs to another tenant", reason="WRONG_RESOURCE")
    return Target(resource, claims.epoch, claims.claim_id)


def target_of(
    issuer: Issuer, tenant: str, request: pb.ReleaseLeaseRequest | pb.TransferLeaseRequest
) -> tuple[Target, bool]:
    """Returns the lease of a request, and whether an operator sent it."""
    if request.HasField("token"):
        return target_of_token(issuer, tenant, request.token), False
    return Target(request.lease.resource, request.lease.epoch, ""), True


def is_meant(lease: NamedLease, target: Target) -> bool:
    """Whether this is the lease that the request means."""
    return lease.epoch == target.epoch and target.claim_id in {"", lease.record.claim_id}


def lost(target: Target, lease: NamedLease | None) -> StaleEpoch:
    """Returns the error for a lost lease. `lease` is the present lease of the resource, if any."""
    now = "it has no holder" if lease is None else f"{lease.record.holder} holds it"
    current = 0 if lease is None else lease.epoch
    return StaleEpoch(
        f"this lease of {target.resource} is gone; now {now}",
        presented=target.epoch,
        current=current,
        reason=LEASE_LOST,
    )


def to_message(held: NamedLease, remaining_seconds: float | None = None) -> pb.Lease:
    """Returns the lease without a token."""
    record = held.record
    return pb.Lease(
        resource=held.resource,
        holder=record.holder,
        epoch=held.epoch,
        claim_id=record.claim_id,
        previous_epoch=record.previous_epoch,
        reason=record.reason,
        message=record.message,
        ttl=duration(record.ttl_seconds),
        remaining=None if remaining_seconds is None else duration(remaining_seconds),
        acquire_time=timestamp(datetime.fromtimestamp(record.acquired_at, UTC)),
    )


def to_holders_message(issuer: Issuer, held: NamedLease, remaining_seconds: float) -> pb.Lease:
    """Returns the lease with a token signed now, for its holder."""
    message = to_message(held, remaining_seconds)
    message.token.CopyFrom(issuer.issue_lease(held))
    return message
