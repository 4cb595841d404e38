"""The client's calls about leases of named resources."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tenure.client.contact import Contact
from tenure.client.leases import HeldLease
from tenure.domain.errors import TryLater
from tenure.v1 import lease_service_pb2 as pb

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub

LIST_PAGE: Final = 500


class LeaseCalls:
    """A part of Client, which has the stub and the patience."""

    leases: LeaseServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    def lease(
        self,
        resource: str,
        *,
        holder: str,
        ttl_seconds: float = 10.0,
        wait_seconds: float = 0.0,
        cancel_on_loss: bool = True,
    ) -> HeldLease:
        """A lease of a named resource, held while its `async with` block runs: see HeldLease. Raises LeaseHeld."""
        return HeldLease(
            self.leases,
            resource,
            holder=holder,
            ttl_seconds=ttl_seconds,
            wait_seconds=wait_seconds,
            cancel_on_loss=cancel_on_loss,
        )

    async def get_lease(self, resource: str) -> pb.Lease:
        """Who holds a named resource. Raises NotFound (LEASE_NOT_HELD)."""
        asked = pb.GetLeaseRequest(resource=resource)
        answer: pb.GetLeaseResponse = await self._patiently(self.leases.GetLease, asked)
        return answer.lease

    async def list_leases(self, prefix: str = "") -> AsyncGenerator[pb.Lease]:
        """Live leases by name."""
        token = ""
        while True:
            asked = pb.ListLeasesRequest(prefix=prefix, page_size=LIST_PAGE, page_token=token)
            page: pb.ListLeasesResponse = await self._patiently(self.leases.ListLeases, asked)
            for lease in page.leases:
                yield lease
            token = page.next_page_token
            if not token:
                return

    async def watch_leases(self, prefix: str = "", after_revision: int = 0) -> AsyncGenerator[pb.LeaseEvent]:
        """What happens to leases, for ever; a broken stream is resumed without a gap.

        Raises OutOfRange (CURSOR_EXPIRED): list again.
        """
        contact = Contact()
        while True:
            asked = pb.WatchLeasesRequest(prefix=prefix, after_revision=after_revision)
            try:
                async for answer in self.leases.WatchLeases(asked):
                    contact.made()
                    for event in answer.events:
                        yield event
                    after_revision = answer.revision
            except TryLater as error:
                await contact.lost(error)
