"""Claims that were made and never registered: a coordinator died in between, and nobody repeated the request."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from services.coordinator.leases.ledger import MAX_INSPECTED
from tenure.domain.errors import TenureError
from tenure.runtime import metrics
from tenure.runtime.duties import note_progress, rest

if TYPE_CHECKING:
    from services.coordinator.lease_store.named_leases import HeldLease, NamedLeases
    from services.coordinator.leases.ledger import LeaseLedger

_log: Final = logging.getLogger(__name__)


class Sweeping:
    """The duty `run`, in every replica. A lease is asked about until it is known to be registered."""

    def __init__(
        self, keys: NamedLeases, ledger: LeaseLedger, *, interval_seconds: float, patience_seconds: float
    ) -> None:
        self._keys, self._ledger = keys, ledger
        self._interval_seconds, self._patience_seconds = interval_seconds, patience_seconds
        self._registered: set[str] = set()
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Duty."""
        while True:
            await rest(self._interval_seconds * random.uniform(0.8, 1.2))
            try:
                await self._sweep()
            except TenureError as error:
                _log.warning("leases could not be compared with the ledger", extra={"error": error})

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

    async def _delete(self, lease: HeldLease) -> None:
        facts = {"lease": lease.resource, "tenant": lease.tenant, "holder": lease.record.holder}
        _log.warning("a lease that was never registered is deleted", extra=facts)
        await self._keys.delete(lease)
