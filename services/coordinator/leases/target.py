"""Which lease a request means: the one of a token, or the one an operator saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tenure.domain.errors import PermissionDenied, StaleEpoch

if TYPE_CHECKING:
    from services.coordinator.issuing import Issuer
    from services.coordinator.lease_store.named_leases import HeldLease
    from tenure.v1 import lease_service_pb2 as pb
    from tenure.v1 import token_pb2

LEASE_LOST = "LEASE_LOST"


class Target(NamedTuple):
    """One lease of a resource. `claim_id` empty: an operator named the epoch only."""

    resource: str
    epoch: int
    claim_id: str


def target_of_token(issuer: Issuer, tenant: str, token: token_pb2.FencingToken) -> Target:
    """Raises Unauthenticated, and PermissionDenied for a task's token or another tenant's."""
    claims = issuer.check(token)
    resource = claims.lease_name
    if claims.tenant != tenant:
        raise PermissionDenied("the token is another tenant's", reason="WRONG_RESOURCE")
    return Target(resource, claims.epoch, claims.claim_id)


def target_of(
    issuer: Issuer, tenant: str, request: pb.ReleaseLeaseRequest | pb.TransferLeaseRequest
) -> tuple[Target, bool]:
    """The lease, and whether an operator speaks."""
    if request.HasField("token"):
        return target_of_token(issuer, tenant, request.token), False
    return Target(request.lease.resource, request.lease.epoch, ""), True


def is_meant(found: HeldLease, target: Target) -> bool:
    """Whether this is still the lease that was meant."""
    return found.epoch == target.epoch and target.claim_id in {"", found.record.claim_id}


def lost(target: Target, found: HeldLease | None) -> StaleEpoch:
    """The lease is gone; `found` is who holds the resource now."""
    now = "nobody holds it" if found is None else f"{found.record.holder} holds it"
    current = 0 if found is None else found.epoch
    return StaleEpoch(
        f"this lease of {target.resource} is gone; now {now}",
        presented=target.epoch,
        current=current,
        reason=LEASE_LOST,
    )
