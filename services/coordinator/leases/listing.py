"""Who holds what, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from services.coordinator.leases.messages import to_message
from tenure.domain.epochs import compose_epoch
from tenure.v1 import lease_service_pb2 as pb

if TYPE_CHECKING:
    from services.coordinator.lease_store.named_leases import HeldLease, NamedLeases

DEFAULT_PAGE: Final = 100
_AT_ONCE: Final = 16


async def list_leases(
    keys: NamedLeases, tenant: str, generation: int, request: pb.ListLeasesRequest
) -> pb.ListLeasesResponse:
    """A page by name, what is left of each lease included. The page_token is the last name of the page before."""
    listing = await keys.list_tenant(tenant, request.prefix)
    size = request.page_size or DEFAULT_PAGE
    rest = [lease for lease in listing.leases if lease.resource > request.page_token]
    page = rest[:size]
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def told(lease: HeldLease) -> pb.Lease:
        async with at_once:
            return to_message(lease, await keys.remaining_seconds(lease))

    return pb.ListLeasesResponse(
        leases=await asyncio.gather(*map(told, page)),
        next_page_token=page[-1].resource if len(rest) > size else "",
        revision=compose_epoch(generation, listing.revision),
    )
