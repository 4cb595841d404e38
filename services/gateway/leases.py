"""LeaseService handed through to the coordinators, so that backends need to know one address only.

Every call may be repeated: those that take something have a request_id, the others name the one lease they mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from services.gateway.peers import RETRY_AFTER_SECONDS, Peers, patiently
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc_server import draining
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1.lease_service_pb2_grpc import LeaseServiceServicer

_log: Final = logging.getLogger(__name__)


class LeaseServicer(LeaseServiceServicer):
    """Adds nothing but patience with replicas that restart."""

    def __init__(self, peers: Peers, stopping: asyncio.Event) -> None:
        self._peers, self._stopping = peers, stopping

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, _context: Any) -> pb.AcquireLeaseResponse:
        return await patiently(lambda: self._peers.leases.AcquireLease(request))

    async def RenewLease(self, request: pb.RenewLeaseRequest, _context: Any) -> pb.RenewLeaseResponse:
        """A repeat renews later than the holder, who counts from its own sending, believes: no harm."""
        return await patiently(lambda: self._peers.leases.RenewLease(request))

    async def ReleaseLease(self, request: pb.ReleaseLeaseRequest, _context: Any) -> pb.ReleaseLeaseResponse:
        return await patiently(lambda: self._peers.leases.ReleaseLease(request))

    async def TransferLease(self, request: pb.TransferLeaseRequest, _context: Any) -> pb.TransferLeaseResponse:
        return await patiently(lambda: self._peers.leases.TransferLease(request))

    async def GetLease(self, request: pb.GetLeaseRequest, _context: Any) -> pb.GetLeaseResponse:
        return await patiently(lambda: self._peers.leases.GetLease(request))

    async def ListLeases(self, request: pb.ListLeasesRequest, _context: Any) -> pb.ListLeasesResponse:
        return await patiently(lambda: self._peers.leases.ListLeases(request))

    async def WatchLeases(self, request: pb.WatchLeasesRequest, _context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        """Ends when the coordinator's stream does, or we drain: one watches again after the last revision heard."""
        call = self._peers.leases.WatchLeases(request)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while True:
                reading = asyncio.create_task(call.read())
                await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
                if self._stopping.is_set():
                    raise draining()
                answer = _read(reading)
                if not isinstance(answer, pb.WatchLeasesResponse):  # the end of the stream
                    return
                yield answer
        finally:
            stopping.cancel()
            call.cancel()

    async def ListSigningKeys(self, request: pb.ListSigningKeysRequest, _context: Any) -> pb.ListSigningKeysResponse:
        return await patiently(lambda: self._peers.leases.ListSigningKeys(request))


def _read(reading: asyncio.Task[Any]) -> Any:
    """What was read. Where our peers are, and how they failed, is for the log alone."""
    try:
        return reading.result()
    except Unavailable as error:
        if error.metadata.get("outcome") != "unknown":
            raise
        _log.warning("the coordinator behind a watch of leases does not answer", extra={"why": str(error)})
        raise Unavailable(
            "watch again after the last revision heard", retry_after_seconds=RETRY_AFTER_SECONDS
        ) from error
