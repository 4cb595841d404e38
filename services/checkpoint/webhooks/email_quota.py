"""Takes due deliveries of e-mail as far as the tenant's quota allows, and lets the others wait.

The transaction that takes a delivery counts its recipients, before anything is sent: so a process that is killed in the
middle of an e-mail cannot send more than the quota. A repeat of that e-mail counts again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.checkpoint.queries import fetch_all, fetch_one
from services.checkpoint.tenants.quotas import is_first
from services.checkpoint.tenants.rows import TenantRow, ensured
from services.checkpoint.tenants.usage_windows import count_use, read_use
from services.checkpoint.webhooks.event_writer import SenderLeaseKey
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import OutgoingDelivery
from tenure.domain.quotas import QuotaKind, QuotaUse, deliveries_allowed, recheck_seconds
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection

_KIND: Final = QuotaKind.EMAILS_PER_HOUR


async def take_deliveries(connection: Connection, lease_key: SenderLeaseKey, limit: int) -> list[OutgoingDelivery]:
    """Takes due deliveries under the sender lease, in order; none when another sender lease began."""
    rows = await fetch_all(connection, WEBHOOKS.take_deliveries, {**lease_key.key, "limit": limit})
    return sorted(OutgoingDelivery(*row) for row in rows)


async def take_emails(
    connection: Connection, lease_key: SenderLeaseKey, recipients: int, limit: int
) -> list[OutgoingDelivery]:
    """Takes due deliveries to at most `recipients` addresses each, as many as the quota allows."""
    counted = await fetch_one(connection, WEBHOOKS.count_due, {**lease_key.key, "limit": limit})
    due: int = counted[0] if counted is not None else 0
    if not due:
        return []
    # All senders of the tenant wait here for each other. The tenant's row is locked before the webhook's.
    tenant = await ensured(connection, lease_key.tenant, lock=True)
    use = await read_use(connection, tenant, _KIND, recipients)
    allowed = due if use is None else min(due, deliveries_allowed(use, recipients))
    taken = await take_deliveries(connection, lease_key, allowed) if allowed else []
    sent = sum(len(one.remaining_addresses) for one in taken)
    await count_use(connection, {(lease_key.tenant, _KIND): sent}, tenant.now)
    if use is not None:
        await _warn(connection, lease_key.tenant, replace(use, used=use.used + sent))
        if allowed < due:
            await _hold(connection, lease_key, tenant, recipients)
    return taken


async def _warn(connection: Connection, tenant: str, use: QuotaUse) -> None:
    """Warns of the soft cap, once per window: in the log and in a metric, because no task reached it."""
    if use.is_soft:
        await is_first(connection, tenant, use)


async def _hold(connection: Connection, lease_key: SenderLeaseKey, tenant: TenantRow, recipients: int) -> None:
    """Lets the due deliveries wait until there is room, or until the quota is read again."""
    use = await read_use(connection, tenant, _KIND, recipients)
    if use is None or not use.room_after_seconds:
        return  # an e-mail to fewer recipients left room
    await connection.execute(WEBHOOKS.hold_deliveries, {**lease_key.key, "wait_seconds": float(recheck_seconds(use))})
    metrics.count("tenure_tenant_quota_total", quota=_KIND.value, outcome="waited")
