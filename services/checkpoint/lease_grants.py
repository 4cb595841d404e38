"""The ledger's side of LeaseService: the last grant of each named lease, registered before its token is signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.checkpoint.queries import QUERIES, fetch_all, fetch_one, ledger_transaction
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb


async def get_lease_grant(pool: Pool, tenant: str, resource: str) -> pb.GetLeaseGrantResponse:
    """Returns the last grant; its epoch is 0 for a lease that was never held."""
    async with pool_connection(pool) as connection:
        row = await _last(connection, tenant, resource)
    if row is None:
        return pb.GetLeaseGrantResponse(grant=pb.LeaseGrant(resource=resource))
    epoch, claim_id, holder, previous_epoch, request_id, reason, message, release_reason, release_message = row
    return pb.GetLeaseGrantResponse(
        grant=pb.LeaseGrant(
            resource=resource,
            epoch=epoch,
            claim_id=claim_id,
            holder=holder,
            previous_epoch=previous_epoch,
            request_id=request_id,
            reason=reason,
            message=message,
        ),
        release_reason=release_reason,
        release_message=release_message,
    )


@ledger_transaction
async def register_lease(connection: Connection, tenant: str, grant: pb.LeaseGrant) -> pb.RegisterLeaseResponse:
    """Registers the claim as the lease's grant. Says whether it is the grant; a repeat gets the same answer."""
    parameters = {
        "tenant": tenant,
        "resource": grant.resource,
        "epoch": grant.epoch,
        "claim_id": grant.claim_id,
        "holder": grant.holder,
        "previous_epoch": grant.previous_epoch,
        "request_id": grant.request_id,
        "reason": grant.reason,
        "message": grant.message,
    }
    if await fetch_one(connection, QUERIES.register_lease, parameters) is not None:
        await connection.execute(QUERIES.raise_highest_epoch, {"epoch": grant.epoch})
        return pb.RegisterLeaseResponse(registered=True, epoch=grant.epoch)
    row = await _last(connection, tenant, grant.resource)
    status = (0, "") if row is None else row[:2]
    return pb.RegisterLeaseResponse(registered=status == (grant.epoch, grant.claim_id), epoch=status[0])


@ledger_transaction
async def record_lease_release(connection: Connection, tenant: str, request: pb.NoteLeaseReleaseRequest) -> None:
    """Records why a grant was released, unless a reason is recorded or there is a newer grant."""
    parameters = {
        "tenant": tenant,
        "resource": request.resource,
        "claim_id": request.claim_id,
        "reason": request.reason,
        "message": request.message,
    }
    await connection.execute(QUERIES.note_lease_release, parameters)


async def inspect_leases(pool: Pool, claims: Sequence[pb.InspectLeasesRequest.Claim]) -> list[str]:
    """Returns the claim ids that are registered, in the caller's order."""
    parameters = {
        "tenants": [claim.tenant for claim in claims],
        "resources": [claim.resource for claim in claims],
        "claim_ids": [claim.claim_id for claim in claims],
    }
    async with pool_connection(pool) as connection:
        registered = {claim_id for (claim_id,) in await fetch_all(connection, QUERIES.inspect_leases, parameters)}
    return [claim.claim_id for claim in claims if claim.claim_id in registered]


async def _last(connection: Connection, tenant: str, resource: str) -> tuple[Any, ...] | None:
    return await fetch_one(connection, QUERIES.get_lease_grant, {"tenant": tenant, "resource": resource})
