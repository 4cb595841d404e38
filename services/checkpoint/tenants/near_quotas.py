"""Reports how much of their quotas the tenants near a cap have used. For metrics only.

A tenant is near the cap of a window if its soft cap was reached in the current window. So a read costs what these
tenants and the held tasks cost, however many other tenants there are.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from services.checkpoint.queries import fetch_all
from services.checkpoint.tenants.quotas import CHECK_AGAIN_SECONDS
from services.checkpoint.tenants.rows import TENANTS, TenantRow
from services.checkpoint.tenants.usage_windows import read_uses
from tenure.domain.quotas import SOFT_PERCENT, SPANS, QuotaKind
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, pool_connection

INTERVAL_SECONDS: Final = 15.0
MAX_NEAR: Final = 200
"""The newest warnings that are followed. Tenants without a label of their own share a series anyway."""
_LASTS_SECONDS: Final = {
    kind: span.window_seconds + span.bucket_seconds + 2 * CHECK_AGAIN_SECONDS for kind, span in SPANS.items()
}
"""How long a warning says that the quota may be near its cap. After that the next task of the tenant warns again."""


class NearQuotas:
    """Reads the quotas of all tenants near their caps. Each replica reports the same numbers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Updates the metric, as a duty."""
        while True:
            await self.look()
            await rest(INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def look(self) -> None:
        """Reads once."""
        async with pool_connection(self._pool) as connection:
            near = [*await _windows(connection), *await _running(connection)]
        ratios = dict[tuple[str, str], float]()
        for tenant, kind, used, most in near:
            key = metrics.tenant_label(tenant), kind.value
            ratios[key] = max(ratios.get(key, 0.0), used / most)
        for tenant, quota in self._reported - ratios.keys():
            metrics.REGISTRY.remove("tenure_tenant_quota_used_ratio", tenant=tenant, quota=quota)
        for (tenant, quota), ratio in ratios.items():
            metrics.gauge("tenure_tenant_quota_used_ratio", ratio, tenant=tenant, quota=quota)
        self._reported = set(ratios)


class _Near(NamedTuple):
    """A use of a quota. A quota of 0 is none: it is a stop."""

    tenant: str
    kind: QuotaKind
    used: int
    most: int


async def _windows(connection: Connection) -> list[_Near]:
    parameters = {"quotas": list(_LASTS_SECONDS), "lasts": list(_LASTS_SECONDS.values()), "limit": MAX_NEAR}
    warned = [(tenant, QuotaKind(quota)) for tenant, quota in await fetch_all(connection, TENANTS.near, parameters)]
    tenants = sorted({tenant for tenant, _ in warned})
    rows = [TenantRow(*columns) for columns in await fetch_all(connection, TENANTS.find_some, {"tenants": tenants})]
    uses = await read_uses(connection, rows)
    near = ((tenant, uses.get(tenant, {}).get(kind)) for tenant, kind in warned)
    return [
        _Near(tenant, use.quota.kind, use.used, use.quota.most)
        for tenant, use in near
        if use is not None and use.quota.most > 0
    ]


async def _running(connection: Connection) -> list[_Near]:
    rows = await fetch_all(connection, TENANTS.near_running, {"percent": SOFT_PERCENT, "limit": MAX_NEAR})
    return [_Near(tenant, QuotaKind.RUNNING_TASKS, running, most) for tenant, running, most in rows]
