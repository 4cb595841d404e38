"""What TenantService reads and changes of tenants themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.checkpoint.draft import LEDGER
from services.checkpoint.queries import fetch_all, in_ledger_transaction, ledger_connection
from services.checkpoint.tenants.rows import DEFAULTS, TENANTS, TenantRow, ensured, read_tenant, write_quotas
from services.checkpoint.tenants.windows import Uses, read_running, read_uses
from tenure.domain.errors import WrongState
from tenure.domain.quotas import Quota, QuotaKind, QuotaUse
from tenure.v1 import tenant_service_pb2 as pb
from tenure.wire.quotas import KINDS, no_quota_to_wire, quota_to_domain, quota_use_to_wire
from tenure.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tenure.runtime.postgres import Connection, Pool

DEFAULT_TENANTS: Final = 50
MOST_WOKEN: Final = 10_000


async def get_tenant(pool: Pool, tenant: str) -> pb.Tenant:
    """One that was never heard of has the defaults, and no times."""
    async with ledger_connection(pool) as connection:
        row = await read_tenant(connection, tenant)
        if row is None:
            defaults = await read_tenant(connection, DEFAULTS)
            assert defaults is not None, "the row is made with the table"
            row = defaults._replace(tenant=tenant, own=[], revision=0, actor="", reason="", updated_at=None)
            told = (await _told(connection, [row]))[0]
            told.ClearField("create_time")
            return told
        return (await _told(connection, [row]))[0]


async def list_tenants(pool: Pool, request: pb.ListTenantsRequest) -> pb.ListTenantsResponse:
    """A page by name. The token is the last name."""
    page_size = request.page_size or DEFAULT_TENANTS
    parameters = {"after": request.page_token, "limit": page_size + 1}
    async with ledger_connection(pool) as connection:
        rows = [TenantRow(*columns) for columns in await fetch_all(connection, TENANTS.list, parameters)]
        tenants = await _told(connection, rows[:page_size])
    more = len(rows) > page_size
    return pb.ListTenantsResponse(tenants=tenants, next_page_token=tenants[-1].tenant if more else "")


async def update_limits(pool: Pool, tenant: str, request: pb.UpdateTenantLimitsRequest) -> pb.Tenant:
    """Raises WrongState (TENANT_CHANGED). Tasks that wait at a cap look again at once."""

    async def work(connection: Connection) -> pb.Tenant:
        row = await ensured(connection, tenant, lock=True)
        quotas, own = await _asked(connection, row, request)
        if (quotas, own) != (row.quotas, sorted(row.own)):
            _check_revision(row, request)
            await write_quotas(connection, tenant, quotas, own, request.actor, request.reason)
            await connection.execute(TENANTS.wake, {"tenant": tenant, "limit": MOST_WOKEN})
        return (await _told(connection, [await ensured(connection, tenant)]))[0]

    return await in_ledger_transaction(pool, work)


async def adopt_defaults(pool: Pool, defaults: Mapping[QuotaKind, Quota]) -> None:
    """What the file of the replica that starts says. Of several that differ, the one that started last is right."""

    async def work(connection: Connection) -> None:
        row = await ensured(connection, DEFAULTS, lock=True)
        if row.quotas != dict(defaults):
            await write_quotas(connection, DEFAULTS, defaults, [], LEDGER, "the file of defaults")
            await connection.execute(TENANTS.follow_defaults)

    await in_ledger_transaction(pool, work)


async def _asked(
    connection: Connection, row: TenantRow, request: pb.UpdateTenantLimitsRequest
) -> tuple[dict[QuotaKind, Quota], list[str]]:
    """The quotas that will hold, and the kinds that are the tenant's own."""
    defaults = await ensured(connection, DEFAULTS)
    quotas, own = row.quotas, set(row.own)
    for told in request.quotas:
        quota = quota_to_domain(told)
        own.add(quota.kind.value)
        quotas[quota.kind] = quota
    for number in request.follow_defaults:
        kind = KINDS.to_domain(number)
        own.discard(kind.value)
        quotas.pop(kind, None)
        if kind in defaults.quotas:
            quotas[kind] = defaults.quotas[kind]
    return {kind: quota for kind, quota in quotas.items() if quota.most}, sorted(own)


def _check_revision(row: TenantRow, request: pb.UpdateTenantLimitsRequest) -> None:
    if request.HasField("expected_revision") and request.expected_revision != row.revision:
        raise WrongState(
            f"the tenant was updated meanwhile: it is at revision {row.revision}",
            reason="TENANT_CHANGED",
            metadata={"revision": str(row.revision)},
        )


async def _told(connection: Connection, rows: Sequence[TenantRow]) -> list[pb.Tenant]:
    """With what is used, and when it was warned of."""
    windows = await read_uses(connection, rows)
    parameters = {"tenants": [row.tenant for row in rows]}
    warned = {
        (tenant, quota): warned_at
        for tenant, quota, warned_at in await fetch_all(connection, TENANTS.warnings, parameters)
    }
    return [_tenant(row, {**windows[row.tenant], **await read_running(connection, row)}, warned) for row in rows]


def _tenant(row: TenantRow, uses: Uses, warned: Mapping[tuple[str, str], datetime]) -> pb.Tenant:
    return pb.Tenant(
        tenant=row.tenant,
        quotas=list(_uses(row, uses, warned)),
        revision=row.revision,
        actor=row.actor,
        reason=row.reason,
        create_time=timestamp(row.created_at),
        update_time=None if row.updated_at is None else timestamp(row.updated_at),
    )


def _uses(row: TenantRow, uses: Uses, warned: Mapping[tuple[str, str], datetime]) -> Iterable[pb.QuotaUse]:
    for kind in QuotaKind:
        use: QuotaUse | None = uses.get(kind)
        told = no_quota_to_wire(kind) if use is None else quota_use_to_wire(use)
        told.is_default = kind.value not in row.own
        warned_at = warned.get((row.tenant, kind.value))
        if warned_at is not None:
            told.warn_time.CopyFrom(timestamp(warned_at))
        yield told
