"""Reports how much of their quotas the tenants near a cap have used. For metrics only.

A tenant is near a cap if its soft cap was reached in the current window. So a read costs what these tenants cost,
however many others there are.
"""

from __future__ import annotations

import random
from typing import Final

from services.checkpoint.queries import fetch_all
from services.checkpoint.tenants.quotas import CHECK_AGAIN_SECONDS
from services.checkpoint.tenants.rows import TENANTS, TenantRow
from services.checkpoint.tenants.usage_windows import read_running, read_uses
from tenure.domain.quotas import SPANS, QuotaKind, QuotaUse
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, pool_connection

INTERVAL_SECONDS: Final = 15.0
MAX_NEAR: Final = 200
"""The newest warnings that are followed. Tenants without a label of their own share a series anyway."""
_LASTS_SECONDS: Final = {
    kind: (SPANS[kind].window_seconds + SPANS[kind].bucket_seconds if kind in SPANS else 0) + 2 * CHECK_AGAIN_SECONDS
    for kind in QuotaKind
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
            near = await _read(connection)
        ratios = dict[tuple[str, str], float]()
        for tenant, use in near:
            key = metrics.tenant_label(tenant), use.quota.kind.value
            ratios[key] = max(ratios.get(key, 0.0), use.used / use.quota.most)
        for tenant, quota in self._reported - ratios.keys():
            metrics.REGISTRY.remove("tenure_tenant_quota_used_ratio", tenant=tenant, quota=quota)
        for (tenant, quota), ratio in ratios.items():
            metrics.gauge("tenure_tenant_quota_used_ratio", ratio, tenant=tenant, quota=quota)
        self._reported = set(ratios)


async def _read(connection: Connection) -> list[tuple[str, QuotaUse]]:
    """Returns the uses. A quota of 0 has no ratio: it is a stop."""
    parameters = {"quotas": list(_LASTS_SECONDS), "lasts": list(_LASTS_SECONDS.values()), "limit": MAX_NEAR}
    warned = [(tenant, QuotaKind(quota)) for tenant, quota in await fetch_all(connection, TENANTS.near, parameters)]
    tenants = sorted({tenant for tenant, _ in warned})
    rows = [TenantRow(*columns) for columns in await fetch_all(connection, TENANTS.find_some, {"tenants": tenants})]
    uses = await read_uses(connection, rows)
    for row in rows:
        if (row.tenant, QuotaKind.RUNNING_TASKS) in warned:
            uses[row.tenant] |= await read_running(connection, row)
    near = ((tenant, uses.get(tenant, {}).get(kind)) for tenant, kind in warned)
    return [(tenant, use) for tenant, use in near if use is not None and use.quota.most > 0]
