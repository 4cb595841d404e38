"""The quotas of tenants that have none of their own, as the installation's file of defaults sets them.

    [tenant_quotas]
    running_tasks = 200
    submits_per_minute = { most = 600, policy = "DELAY" }
    tokens_per_hour = { most = 20_000_000 }
    usd_per_day = { most = 250.50, policy = "REFUSE" }

A number alone is the cap. What is missing has none.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.money import nano_usd_of
from tenure.domain.quotas import DEFAULT_POLICY, Quota, QuotaKind, QuotaPolicy
from tenure.validators.tenants import check_quota
from tenure.validators.violations import Violations
from tenure.wire.quotas import quota_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

QUOTA_TABLE: Final = "tenant_quotas"
_MONEY: Final = "usd_per_day"
_NAMES: Final = {
    "running_tasks": QuotaKind.RUNNING_TASKS,
    "submits_per_minute": QuotaKind.SUBMITS_PER_MINUTE,
    "tokens_per_hour": QuotaKind.TOKENS_PER_HOUR,
    _MONEY: QuotaKind.MONEY_PER_DAY,
}


def read_quotas(table: Any) -> tuple[dict[QuotaKind, Quota], list[str]]:
    """The quotas, and what is wrong in the table. Numbers with a point come as Decimal."""
    if not isinstance(table, dict):
        return {}, ["must be a table"]
    quotas, problems = {}, []
    for name, told in table.items():
        try:
            quota = _quota(name, told if isinstance(told, dict) else {"most": told})
        except ValueError as error:
            problems.append(f"{name}: {error}")
        else:
            quotas[quota.kind] = quota
    return quotas, problems


def _quota(name: str, told: Mapping[str, Any]) -> Quota:
    kind = _NAMES.get(name)
    if kind is None:
        raise ValueError(f"is no quota, which are {', '.join(_NAMES)}")
    if unknown := sorted(set(told) - {"most", "policy"}):
        raise ValueError(f"{', '.join(unknown)} cannot be set here, only most and policy")
    policy = told.get("policy", DEFAULT_POLICY[kind].value)
    if policy not in list(QuotaPolicy):
        raise ValueError(f"policy is none of {', '.join(QuotaPolicy)}")
    quota = Quota(kind, _most(name, told.get("most")), QuotaPolicy(policy))
    violations = Violations()
    check_quota(quota_to_wire(quota), violations, "")
    if violations.found or not quota.most:
        raise ValueError("; ".join(one.description for one in violations.found) or "must be above 0")
    return quota


def _most(name: str, most: Any) -> int:
    allowed = int | Decimal if name == _MONEY else int
    number = most if isinstance(most, allowed) and not isinstance(most, bool) else None
    if number is not None and name == _MONEY:
        number = nano_usd_of(Decimal(number))
    if number is None:
        raise ValueError("most must be a sum of money" if name == _MONEY else "most must be a whole number")
    return int(number)
