"""The tenants whose model calls have quotas, and what of these is used when a batch of commits reserves.

Most tenants have none: so who has is kept in memory, and looked up every second. Those without cost a commit nothing.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from services.checkpoint.queries import fetch_all, ledger_connection
from services.checkpoint.tenants.rows import TENANTS, TenantRow
from services.checkpoint.tenants.warning import Warnings, append_warning
from services.checkpoint.tenants.windows import Uses, read_uses
from tenure.domain.budget import Denied
from tenure.domain.errors import TryLater
from tenure.domain.quotas import OF_CALLS, held_seconds, wait_of_call
from tenure.domain.states import Reason
from tenure.runtime import metrics
from tenure.runtime.duties import rest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from services.checkpoint.draft import Draft
    from tenure.runtime.postgres import Connection, Pool
    from tenure.v1 import ledger_pb2

REFRESH_SECONDS: Final = 1.0

_log: Final = logging.getLogger(__name__)


class CallQuotas:
    """How the quotas of a batch's tenants stand."""

    def __init__(self, uses: Mapping[str, Uses], warnings: Warnings) -> None:
        self._uses, self._warnings = uses, warnings

    def denied(self, tenant: str) -> Denied | None:
        """What a model call has to wait for, however well its own budget stands."""
        use = wait_of_call(self._uses.get(tenant, {}))
        if use is None:
            return None
        metrics.count("tenure_tenant_quota_total", quota=use.quota.kind.value, outcome="waited")
        return Denied(Reason.TENANT_QUOTA, f"tenant {tenant} has used {use.told()}", held_seconds(use))

    async def warn(self, connection: Connection, draft: Draft) -> list[ledger_pb2.Entry]:
        """Appends what is to be told of soft caps, and gives it back."""
        uses = self._uses.get(draft.row.tenant, {}).values()
        return [
            append_warning(draft, use)
            for use in uses
            if await self._warnings.is_first(connection, draft.row.tenant, use)
        ]


class LimitedTenants:
    """`run` until cancelled. Who has quotas may be known a second late; what these are is read when it matters."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._names: frozenset[str] = frozenset()
        self._warnings = Warnings()

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except TryLater as error:
                _log.warning("the tenants' quotas were not read: those known hold on", extra={"error": str(error)})
            await rest(REFRESH_SECONDS * random.uniform(0.5, 1.0))

    async def refresh(self) -> None:
        """As the database has them now."""
        async with ledger_connection(self._pool) as connection:
            self._names = frozenset(name for (name,) in await fetch_all(connection, TENANTS.limited, {}))

    async def read(self, connection: Connection, tenants: Collection[str]) -> CallQuotas:
        """What their model calls have used. Nothing is asked when none of these has a quota for them."""
        limited = sorted(self._names.intersection(tenants))
        if not limited:
            return NO_QUOTAS
        found = await fetch_all(connection, TENANTS.find_some, {"tenants": limited})
        uses = await read_uses(connection, [TenantRow(*columns) for columns in found], OF_CALLS)
        return CallQuotas(uses, self._warnings)


NO_QUOTAS: Final = CallQuotas({}, Warnings())
