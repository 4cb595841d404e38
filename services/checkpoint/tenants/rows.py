"""The row of a tenant: its quotas as they hold, in columns, because the offers of tasks read them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.checkpoint.queries import fetch_one
from tenure.domain.quotas import DEFAULT_POLICY, Quota, QuotaKind, QuotaPolicy
from tenure.runtime.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tenure.runtime.postgres import Connection

TENANTS: Final = Queries.load("services.checkpoint", "sql/tenants.sql")
DEFAULTS: Final = ""
"""The name of the row that has the installation's defaults: nobody's."""


class TenantRow(NamedTuple):
    """The columns of `find`, in their order. `now`: the database's time in seconds since the epoch."""

    tenant: str
    own: list[str]
    revision: int
    actor: str
    reason: str
    max_running_tasks: int | None
    max_submits_per_minute: int | None
    max_tokens_per_hour: int | None
    max_nano_usd_per_day: int | None
    running_policy: str
    submits_policy: str
    tokens_policy: str
    money_policy: str
    created_at: datetime
    updated_at: datetime | None
    now: float

    @property
    def quotas(self) -> dict[QuotaKind, Quota]:
        """Those that there are."""
        told = {
            QuotaKind.RUNNING_TASKS: (self.max_running_tasks, self.running_policy),
            QuotaKind.SUBMITS_PER_MINUTE: (self.max_submits_per_minute, self.submits_policy),
            QuotaKind.TOKENS_PER_HOUR: (self.max_tokens_per_hour, self.tokens_policy),
            QuotaKind.MONEY_PER_DAY: (self.max_nano_usd_per_day, self.money_policy),
        }
        return {kind: Quota(kind, most, QuotaPolicy(policy)) for kind, (most, policy) in told.items() if most}


async def read_tenant(connection: Connection, tenant: str, *, lock: bool = False) -> TenantRow | None:
    """None: it was never heard of."""
    found = await fetch_one(connection, TENANTS.lock if lock else TENANTS.find, {"tenant": tenant})
    return None if found is None else TenantRow(*found)


async def ensured(connection: Connection, tenant: str, *, lock: bool = False) -> TenantRow:
    """The row, made when this is the first that is heard of the tenant."""
    row = await read_tenant(connection, tenant, lock=lock)
    if row is None:
        await connection.execute(TENANTS.note, {"tenant": tenant})
        row = await read_tenant(connection, tenant, lock=lock)
    assert row is not None, "tenants are never deleted"
    return row


async def write_quotas(
    connection: Connection, tenant: str, quotas: Mapping[QuotaKind, Quota], own: list[str], actor: str, reason: str
) -> None:
    """All of them, under the row's lock; kinds that are missing have no cap."""
    parameters: dict[str, Any] = {"tenant": tenant, "own": own, "actor": actor, "reason": reason}
    for kind in QuotaKind:
        quota = quotas.get(kind)
        parameters[kind.lower()] = quota.most if quota else None
        parameters[f"{kind.lower()}_policy"] = (quota.policy if quota else DEFAULT_POLICY[kind]).value
    await connection.execute(TENANTS.update, parameters)
