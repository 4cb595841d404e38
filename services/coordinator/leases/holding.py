"""Renew and release: what is done with a lease that is held."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from services.coordinator.lease_store import SessionLost
from services.coordinator.leases.target import Target, is_meant, lost
from tenure.domain.epochs import describe_epoch
from tenure.domain.errors import Unavailable
from tenure.domain.leases import LeaseReason
from tenure.runtime import metrics

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.lease_store.named_leases import HeldLease, NamedLeases
    from services.coordinator.leases.ledger import LeaseLedger

_log: Final = logging.getLogger(__name__)


class Holding:
    """Everything here names the one lease it means."""

    def __init__(self, keys: NamedLeases, ledger: LeaseLedger, generation: Generation) -> None:
        self._keys, self._ledger, self._generation = keys, ledger, generation

    async def renew(self, tenant: str, target: Target) -> tuple[HeldLease, int]:
        """The lease and the seconds it lives from now. Raises StaleEpoch when it is gone, Unavailable."""
        generation = self._generation.current()
        found = await self._keys.find(tenant, target.resource)
        if found is None or not is_meant(found, target):
            raise self._lost(target, found)
        if found.record.generation != generation:  # of a former life of etcd, and about to be deleted
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled")
        try:
            return found, await self._keys.keep_alive(found)
        except SessionLost:
            raise self._lost(target, None) from None

    async def release(self, tenant: str, target: Target, message: str, *, by_operator: bool) -> bool:
        """Whether this call ended it. What is written down first is the reason, so that it is never missing."""
        self._generation.current()
        found = await self._keys.find(tenant, target.resource)
        if found is None or not is_meant(found, target):
            return False
        reason = LeaseReason.OPERATOR_RELEASED if by_operator else LeaseReason.RELEASED
        await self._ledger.note_release(found, reason, message)
        released = await self._keys.delete(found)
        if released:
            facts = {"lease": found.resource, "epoch": describe_epoch(found.epoch), "holder": found.record.holder}
            _log.info("a lease was given back", extra={**facts, "reason": reason, "why": message})
        return released

    def _lost(self, target: Target, found: HeldLease | None) -> Exception:
        metrics.count("tenure_leases_lost_total")
        return lost(target, found)
