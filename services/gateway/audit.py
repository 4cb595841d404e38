"""The audit log at the gateway: records administrative acts before they happen, and refusals; forwards the list."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final

import uuid_utils

from services.gateway.peers import Peers, with_retries
from tenure.domain.audit import MAX_REASON, AuditRecord, Decision, Denials
from tenure.domain.errors import NotFound, TenureError
from tenure.runtime.access_control import current_principal
from tenure.runtime.request_context import current_tenant
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1.audit_service_pb2_grpc import AuditServiceServicer
from tenure.wire.audit import reason_of, record_to_wire, target_of

FLUSH_SECONDS: Final = 1.0
MAX_PEER: Final = 300
_log: Final = logging.getLogger(__name__)


class AuditLog:
    """Records the calls of one gateway. Open it: refusals are written every second."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._denials = Denials()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[AuditLog]:
        """Writes refusals while the block runs, and the last ones at its end."""
        flushing = asyncio.create_task(self._flush_forever())
        try:
            yield self
        finally:
            flushing.cancel()
            await asyncio.wait([flushing])  # a flush that was cancelled returns its records
            await self._flush()

    async def admitted(self, method: str, request: Any, peer: str) -> None:
        """Records a call that is about to be carried out. Raises TryLater if the record cannot be written."""
        reason = reason_of(request)
        record = _record(method, request, peer, Decision.ALLOWED, current_tenant(), reason)
        await self._append([record])

    def refused(self, method: str, request: Any, peer: str, refusal: TenureError) -> None:
        """Notes a refusal, to be recorded soon."""
        tenant = current_principal().tenant or ""
        self._denials.add(_record(method, request, peer, Decision.DENIED, tenant, refusal.reason))

    async def _append(self, records: list[AuditRecord]) -> None:
        request = pb.AppendAuditRecordsRequest(records=[record_to_wire(record) for record in records])
        await with_retries(lambda: self._peers.audit.AppendAuditRecords(request))

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        records = self._denials.take(monotonic())
        if not records:
            return
        try:
            await self._append(records)
        except TenureError as error:
            self._denials.give_back(records)
            _log.warning("refusals cannot be recorded now", extra={"kinds": len(records), "error": str(error)})
        except asyncio.CancelledError:
            self._denials.give_back(records)
            raise


def _record(method: str, request: Any, peer: str, decision: Decision, tenant: str, reason: str) -> AuditRecord:
    return AuditRecord(
        record_id=str(uuid_utils.uuid7()),
        tenant=tenant,
        subject=current_principal().name,
        peer=peer[:MAX_PEER],
        method=method.removeprefix("/").removeprefix("tenure.v1."),
        target=target_of(request),
        decision=decision,
        reason=reason[:MAX_REASON],
    )


class AuditForwarder(AuditServiceServicer):
    """Forwards the list to the ledger."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def ListAuditRecords(self, request: pb.ListAuditRecordsRequest, _context: Any) -> pb.ListAuditRecordsResponse:
        return await with_retries(lambda: self._peers.audit.ListAuditRecords(request))

    async def AppendAuditRecords(
        self, _request: pb.AppendAuditRecordsRequest, _context: Any
    ) -> pb.AppendAuditRecordsResponse:
        """Is for gateways, which ask the ledger."""
        raise NotFound("clients cannot append to the audit log", reason="NOT_FOR_CLIENTS")
