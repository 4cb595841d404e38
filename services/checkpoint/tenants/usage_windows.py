"""Usage windows: the transaction that uses something writes it; a read sums the window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from services.checkpoint.queries import fetch_all, fetch_row
from services.checkpoint.rows import BillRow
from services.checkpoint.tenants.rows import TENANTS, TenantRow
from tenure.domain.quotas import SPANS, Amounts, QuotaKind, QuotaUse, bucket_of, use_of_running, window_use
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql_arrays import Int8s, Texts

SHARDS = 8
"""Rows per bucket: as many transactions can settle calls of one tenant without waiting for each other."""

Uses = dict[QuotaKind, QuotaUse]


async def read_uses(
    connection: Connection, rows: Sequence[TenantRow], kinds: Iterable[QuotaKind] = tuple(SPANS)
) -> dict[str, Uses]:
    """Returns the current uses by tenant, for the window quotas of these kinds that the tenant has."""
    windows = [(row, kind) for row in rows for kind in kinds if kind in row.quotas]
    amounts = await _amounts(connection, [(row.tenant, kind, row.now) for row, kind in windows])
    uses: dict[str, Uses] = {row.tenant: {} for row in rows}
    for row, kind in windows:
        uses[row.tenant][kind] = window_use(row.quotas[kind], amounts[row.tenant, kind], row.now)
    return uses


async def read_use(connection: Connection, row: TenantRow, kind: QuotaKind, wanted: int) -> QuotaUse | None:
    """Returns the use of one window, and when there is room for the wanted amount; None: no quota."""
    quota = row.quotas.get(kind)
    if quota is None:
        return None
    amounts = await _amounts(connection, [(row.tenant, kind, row.now)])
    return window_use(quota, amounts[row.tenant, kind], row.now, wanted)


async def read_running(connection: Connection, row: TenantRow) -> Uses:
    """Returns the use of the quota of running tasks, if there is one."""
    quota = row.quotas.get(QuotaKind.RUNNING_TASKS)
    if quota is None:
        return {}
    record = await fetch_row(connection, TENANTS.running, {"tenant": row.tenant, "most": quota.most})
    return {QuotaKind.RUNNING_TASKS: use_of_running(quota, record[0])}


async def count_use(connection: Connection, used: Mapping[tuple[str, QuotaKind], int], moment: float) -> None:
    """Adds uses at a moment (seconds since the Unix epoch), in the transaction that uses them."""
    counted = [(tenant, kind, amount) for (tenant, kind), amount in used.items() if amount > 0]
    if not counted:
        return
    buckets = [bucket_of(kind, moment) for _, kind, _ in counted]
    parameters = {
        "tenants": Texts(tenant for tenant, _, _ in counted),
        "quotas": Texts(kind.value for _, kind, _ in counted),
        "slots": Int8s(bucket % SPANS[kind].slots for bucket, (_, kind, _) in zip(buckets, counted, strict=True)),
        "buckets": Int8s(buckets),
        "amounts": Int8s(amount for _, _, amount in counted),
        "shard": connection.backend_pid % SHARDS,
    }
    await connection.execute(TENANTS.use, parameters)


async def count_calls(connection: Connection, bills: Sequence[BillRow], moment: datetime) -> None:
    """Adds the usage of model calls, for all tenants: a quota that is set later counts earlier usage too."""
    if not bills:
        return
    used: defaultdict[tuple[str, QuotaKind], int] = defaultdict(int)
    for bill in bills:
        used[bill.tenant, QuotaKind.TOKENS_PER_HOUR] += bill.usage.total
        used[bill.tenant, QuotaKind.MONEY_PER_DAY] += bill.nano_usd
    await count_use(connection, used, moment.timestamp())


async def _amounts(
    connection: Connection, windows: Sequence[tuple[str, QuotaKind, float]]
) -> defaultdict[tuple[str, QuotaKind], Amounts]:
    amounts: defaultdict[tuple[str, QuotaKind], Amounts] = defaultdict(dict)
    if windows:
        parameters = {
            "tenants": [tenant for tenant, _, _ in windows],
            "quotas": [kind.value for _, kind, _ in windows],
            "firsts": [bucket_of(kind, now) - SPANS[kind].buckets for _, kind, now in windows],
        }
        for tenant, quota, bucket, amount in await fetch_all(connection, TENANTS.windows, parameters):
            amounts[tenant, QuotaKind(quota)][bucket] = amount
    return amounts
