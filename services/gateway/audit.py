"""The audit log at the gateway: records administrative acts before they happen, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.gateway.peers import Peers, with_retries
from tenure.domain.audit import AuditRecord, Decision
from tenure.runtime.request_context import current_tenant
from tenure.runtime.security.audit import RefusalLog
from tenure.wire.audit import append_request, reason_of, target_of


class AuditLog(RefusalLog):
    """Records the calls of one gateway. Open it: refusals are written every second."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(target_of, self._append)
        self._peers = peers

    async def admitted(self, method: str, request: Any, peer: str) -> None:
        """Records a call that is about to be carried out. Raises TryLater if the record cannot be written."""
        record = self.record(method, request, peer, Decision.ALLOWED, reason_of(request), {})
        await self._append([replace(record, tenant=current_tenant())])

    async def _append(self, records: Sequence[AuditRecord]) -> None:
        request = append_request(records)
        await with_retries(lambda: self._peers.audit.AppendAuditRecords(request))
