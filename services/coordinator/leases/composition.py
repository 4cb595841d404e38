"""LeaseService put together, beside the sessions and claims of workers, with which it shares store and generation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.coordinator.leases.granting import Granting
from services.coordinator.leases.holding import Holding
from services.coordinator.leases.ledger import LeaseLedger
from services.coordinator.leases.servicer import LeaseServicer
from services.coordinator.leases.sweeping import Sweeping
from services.coordinator.leases.watching import Watching

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.issuing import Issuer
    from services.coordinator.lease_store import LeaseStore
    from services.coordinator.settings import Settings
    from tenure.runtime.rpc_channel import TenureChannel


def lease_service(
    settings: Settings,
    store: LeaseStore,
    checkpoint: TenureChannel,
    issuer: Issuer,
    generation: Generation,
    stopping: asyncio.Event,
) -> tuple[LeaseServicer, Sweeping]:
    """The servicer, and the sweep that is to run as a duty."""
    keys, ledger = store.leases, LeaseLedger(checkpoint)
    servicer = LeaseServicer(
        keys,
        ledger,
        Granting(keys, ledger, generation, most_per_tenant=settings.max_leases_per_tenant),
        Holding(keys, ledger, generation),
        Watching(store, generation, stopping),
        issuer,
        generation,
    )
    sweeping = Sweeping(
        keys,
        ledger,
        interval_seconds=settings.reconcile_interval_seconds,
        patience_seconds=settings.start_timeout_seconds,
    )
    return servicer, sweeping
