"""The row of a tenant. It has the effective quotas in columns, because the statements of offers read them too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from services.checkpoint.columns import Unlisted, select_list
from services.checkpoint.queries import fetch_one
from tenure.domain.budget import nano_usd_of
from tenure.domain.quotas import DEFAULT_POLICY, Quota, QuotaKind, QuotaPolicy
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql import Queries
from tenure.validators.rules import Violations
from tenure.validators.tenant_service import check_quota
from tenure.wire.tenant_service import quota_to_wire

# The default quotas of tenants, from the installation's file of defaults.

QUOTA_TABLE: Final = "tenant_quotas"
NO_LIMIT: Final = "no limit"
_MONEY: Final = "usd_per_day"
_NAMES: Final = {
    "running_tasks": QuotaKind.RUNNING_TASKS,
    "submits_per_minute": QuotaKind.SUBMITS_PER_MINUTE,
    "tokens_per_hour": QuotaKind.TOKENS_PER_HOUR,
    _MONEY: QuotaKind.MONEY_PER_DAY,
    "emails_per_hour": QuotaKind.EMAILS_PER_HOUR,
}


def read_quotas(table: Any) -> tuple[dict[QuotaKind, Quota | None], list[str]]:
    """Returns the quotas of the table and its problems. Fractions must be Decimal.

    `NO_LIMIT` removes a default of the installation: None.
    """
    if not isinstance(table, dict):
        return {}, ["must be a table"]
    quotas, problems = dict[QuotaKind, Quota | None](), list[str]()
    for name, table_of_quota in table.items():
        try:
            kind, quota = _quota(name, table_of_quota if isinstance(table_of_quota, dict) else {"most": table_of_quota})
        except ValueError as error:
            problems.append(f"{name}: {error}")
        else:
            quotas[kind] = quota
    return quotas, problems


def _quota(name: str, fields: Mapping[str, Any]) -> tuple[QuotaKind, Quota | None]:
    kind = _NAMES.get(name)
    if kind is None:
        raise ValueError(f"is not a quota: use one of {', '.join(_NAMES)}")
    if unknown := sorted(set(fields) - {"most", "policy"}):
        raise ValueError(f"{', '.join(unknown)} cannot be set here, only most and policy")
    if fields.get("most") == NO_LIMIT:
        return kind, None
    policy = fields.get("policy", DEFAULT_POLICY[kind].value)
    if policy not in list(QuotaPolicy):
        raise ValueError(f"policy must be one of {', '.join(QuotaPolicy)}")
    quota = Quota(kind, _most(name, fields.get("most")), QuotaPolicy(policy))
    message = quota_to_wire(quota)
    violations = Violations(message.ByteSize())
    check_quota(message, violations, "")
    if violations.violations:
        raise ValueError("; ".join(one.description for one in violations.violations))
    return kind, quota


def _most(name: str, most: Any) -> int:
    allowed = int | Decimal if name == _MONEY else int
    number = most if isinstance(most, allowed) and not isinstance(most, bool) else None
    if number is not None and name == _MONEY:
        number = nano_usd_of(Decimal(number))
    if number is None:
        needed = "a sum of money" if name == _MONEY else "a whole number"
        raise ValueError(f'most must be {needed}, or "{NO_LIMIT}"')
    return int(number)


DEFAULTS: Final = ""
"""The name of the row with the installation's default quotas; no tenant can have it."""


class TenantRow(NamedTuple):
    """A tenant's quotas. `now`: the database's time in seconds since the epoch."""

    tenant: str
    own: list[str]
    revision: int
    actor: str
    reason: str
    max_running_tasks: int | None
    max_submits_per_minute: int | None
    max_tokens_per_hour: int | None
    max_nano_usd_per_day: int | None
    max_emails_per_hour: int | None
    running_policy: str
    submits_policy: str
    tokens_policy: str
    money_policy: str
    created_at: datetime
    updated_at: datetime | None
    now: Unlisted[float]

    @property
    def quotas(self) -> dict[QuotaKind, Quota]:
        """The quotas that are set, by kind."""
        columns = {
            QuotaKind.RUNNING_TASKS: (self.max_running_tasks, self.running_policy),
            QuotaKind.SUBMITS_PER_MINUTE: (self.max_submits_per_minute, self.submits_policy),
            QuotaKind.TOKENS_PER_HOUR: (self.max_tokens_per_hour, self.tokens_policy),
            QuotaKind.MONEY_PER_DAY: (self.max_nano_usd_per_day, self.money_policy),
            QuotaKind.EMAILS_PER_HOUR: (self.max_emails_per_hour, DEFAULT_POLICY[QuotaKind.EMAILS_PER_HOUR]),
        }
        return {
            kind: Quota(kind, most, QuotaPolicy(policy)) for kind, (most, policy) in columns.items() if most is not None
        }


TENANTS: Final = Queries.load("services.checkpoint", "sql/tenants.sql", {"tenant": select_list(TenantRow, "t")})


async def read_tenant(connection: Connection, tenant: str, *, lock: bool = False) -> TenantRow | None:
    """Returns the tenant's row, or None for an unknown tenant."""
    row = await fetch_one(connection, TENANTS.lock if lock else TENANTS.find, {"tenant": tenant})
    return None if row is None else TenantRow(*row)


async def ensured(connection: Connection, tenant: str, *, lock: bool = False) -> TenantRow:
    """Returns the tenant's row, and creates it for a tenant that is not known yet."""
    row = await read_tenant(connection, tenant, lock=lock)
    if row is None:
        await connection.execute(TENANTS.note, {"tenant": tenant})
        row = await read_tenant(connection, tenant, lock=lock)
    assert row is not None, "tenants are never deleted"
    return row


async def write_quotas(
    connection: Connection, tenant: str, quotas: Mapping[QuotaKind, Quota], own: list[str], actor: str, reason: str
) -> None:
    """Writes all quotas, under the row's lock; a missing kind has no quota."""
    parameters: dict[str, Any] = {"tenant": tenant, "own": own, "actor": actor, "reason": reason}
    for kind in QuotaKind:
        quota = quotas.get(kind)
        parameters[kind.lower()] = quota.most if quota else None
        parameters[f"{kind.lower()}_policy"] = (quota.policy if quota else DEFAULT_POLICY[kind]).value
    await connection.execute(TENANTS.update, parameters)
