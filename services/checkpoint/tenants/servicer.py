"""TenantService, as far as the ledger serves it: always for the caller's tenant, whatever the request says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.queries import fetch_all, ledger_transaction
from services.checkpoint.queue.stops import confirm_stop, delete_stop, write_stop
from services.checkpoint.tenants.rows import DEFAULTS, TENANTS, TenantRow, ensured, read_tenant, write_quotas
from services.checkpoint.tenants.usage_windows import Uses, read_running, read_uses
from tenure.domain.budget import SIMULATED_MODEL_PREFIX, SIMULATED_REQUEST_PREFIX, TokenUsage
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.quotas import Quota, QuotaKind, QuotaUse, installation_defaults
from tenure.domain.stops import Stop, stop_of
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import tenant_service_pb2 as pb
from tenure.v1.tenant_service_pb2_grpc import TenantServiceServicer
from tenure.wire.common import moment, timestamp
from tenure.wire.task import usage_to_wire
from tenure.wire.tenant_service import KINDS, no_quota_to_wire, quota_to_domain, quota_use_to_wire

# Sums of a tenant's bills, including those of pruned tasks; each grouping has its index.

DEFAULT_SUMS: Final = 100
DEFAULT_SPAN: Final = timedelta(days=1)
LONGEST_SPAN: Final = timedelta(days=366)
_GROUPINGS: Final = {
    pb.USAGE_GROUPING_UNSPECIFIED: "TENANT",
    pb.USAGE_GROUPING_TENANT: "TENANT",
    pb.USAGE_GROUPING_ROOT: "ROOT",
    pb.USAGE_GROUPING_MODEL: "MODEL",
    pb.USAGE_GROUPING_DAY: "DAY",
}


async def sum_up(pool: Pool, tenant: str, request: pb.GetTenantUsageRequest) -> pb.GetTenantUsageResponse:
    """Returns a page of sums by key, or the dearest. Raises InvalidRequest for a span that is too long."""
    page_size = request.page_size or DEFAULT_SUMS
    parameters: dict[str, Any] = {
        "tenant": tenant,
        "grouping": _GROUPINGS[request.group_by],
        "after": request.page_token,
        "dearest": request.dearest_first,
        "limit": page_size + 1,
        "simulated_request": SIMULATED_REQUEST_PREFIX,
        "simulated_model": SIMULATED_MODEL_PREFIX,
    }
    if request.root_task_id:
        statement = TENANTS.usage_of_root
        parameters["root_task_id"] = request.root_task_id
    else:
        statement = TENANTS.usage
        parameters["begin_at"], parameters["end_at"] = _span(request, datetime.now(UTC))
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, statement, parameters)
    sums = [_sum(*columns) for columns in rows[:page_size]]
    has_more = len(rows) > page_size and not request.dearest_first
    return pb.GetTenantUsageResponse(sums=sums, next_page_token=sums[-1].key if has_more else "")


def _span(request: pb.GetTenantUsageRequest, now: datetime) -> tuple[datetime, datetime]:
    """Returns the span. An open end is only exact to a minute: the database's clock times the bills."""
    end_at = moment(request.end_time) if request.HasField("end_time") else now + timedelta(minutes=1)
    begin_at = moment(request.begin_time) if request.HasField("begin_time") else end_at - DEFAULT_SPAN
    if end_at - begin_at > LONGEST_SPAN + timedelta(minutes=1):
        raise InvalidRequest(violations=[("begin_time", "at most 366 days before end_time")])
    return begin_at, end_at


def _sum(
    key: str,
    calls: int,
    lost_calls: int,
    nano_usd: int,
    simulated_calls: int,
    simulated_nano_usd: int,
    unpriced_calls: int,
    *counts: int,
) -> pb.UsageSum:
    return pb.UsageSum(
        key=key,
        calls=calls,
        lost_calls=lost_calls,
        nano_usd=nano_usd,
        simulated_calls=simulated_calls,
        simulated_nano_usd=simulated_nano_usd,
        unpriced_calls=unpriced_calls,
        usage=usage_to_wire(TokenUsage(*counts)),
    )


# Reads and changes of tenants.

DEFAULT_TENANTS: Final = 50
MAX_WOKEN: Final = 10_000


async def get_tenant(pool: Pool, tenant: str) -> pb.Tenant:
    """Returns the tenant. An unknown tenant has the default quotas and no times."""
    async with pool_connection(pool) as connection:
        row = await read_tenant(connection, tenant)
        if row is None:
            defaults = await read_tenant(connection, DEFAULTS)
            assert defaults is not None, "the row is made with the table"
            row = defaults._replace(tenant=tenant, own=[], revision=0, actor="", reason="", updated_at=None)
            tenant_message = (await _to_messages(connection, [row]))[0]
            tenant_message.ClearField("create_time")
            return tenant_message
        return (await _to_messages(connection, [row]))[0]


async def list_tenants(pool: Pool, request: pb.ListTenantsRequest) -> pb.ListTenantsResponse:
    """Returns a page by name. The token is the last name."""
    page_size = request.page_size or DEFAULT_TENANTS
    parameters = {"after": request.page_token, "limit": page_size + 1}
    async with pool_connection(pool) as connection:
        rows = [TenantRow(*columns) for columns in await fetch_all(connection, TENANTS.list, parameters)]
        tenants = await _to_messages(connection, rows[:page_size])
    more = len(rows) > page_size
    return pb.ListTenantsResponse(tenants=tenants, next_page_token=tenants[-1].tenant if more else "")


async def update_limits(pool: Pool, tenant: str, request: pb.UpdateTenantLimitsRequest) -> pb.Tenant:
    """Sets quotas. A quota of 0 is a stop, which this confirms: see `queue/stops.py`.

    Raises WrongState (TENANT_CHANGED), LimitReached (TOO_MANY_STOPS) and Unavailable (STOP_UNCONFIRMED).
    """
    updated = await _update_limits(pool, tenant, request)
    if updated.HasField("stopped"):
        await confirm_stop(pool)
    return updated


@ledger_transaction
async def _update_limits(connection: Connection, tenant: str, request: pb.UpdateTenantLimitsRequest) -> pb.Tenant:
    """Sets quotas, and wakes tasks and e-mails that wait because of one."""
    row = await ensured(connection, tenant, lock=True)
    quotas, own = await _requested_quotas(connection, row, request)
    if (quotas, own) != (row.quotas, sorted(row.own)):
        _check_revision(row, request)
        await write_quotas(connection, tenant, quotas, own, request.actor, request.reason)
        await connection.execute(TENANTS.wake, {"tenant": tenant, "limit": MAX_WOKEN})
        await connection.execute(TENANTS.wake_emails, {"tenant": tenant})
    stop = stop_of(tenant, quotas, own, request.actor, request.reason)
    others = stop_of(tenant, row.quotas, row.own, "", "") != stop_of(tenant, quotas, own, "", "")
    await _stop_or_resume(connection, tenant, stop, other_quotas=others)
    return (await _to_messages(connection, [await ensured(connection, tenant)]))[0]


@ledger_transaction
async def adopt_defaults(connection: Connection, defaults: Mapping[QuotaKind, Quota | None]) -> None:
    """Adopts the default quotas of this replica's file. When files differ, the replica that started last wins."""
    effective = installation_defaults(defaults)
    row = await ensured(connection, DEFAULTS, lock=True)
    if row.quotas != effective:
        await write_quotas(connection, DEFAULTS, effective, [], LEDGER, "the file of defaults")
        await connection.execute(TENANTS.follow_defaults)


async def _requested_quotas(
    connection: Connection, row: TenantRow, request: pb.UpdateTenantLimitsRequest
) -> tuple[dict[QuotaKind, Quota], list[str]]:
    """Returns the effective quotas and the kinds that the tenant sets itself."""
    defaults = await ensured(connection, DEFAULTS)
    quotas, own = row.quotas, set(row.own)
    for quota_message in request.quotas:
        quota = quota_to_domain(quota_message)
        own.add(quota.kind.value)
        quotas[quota.kind] = quota
        if quota_message.no_limit:
            del quotas[quota.kind]
    for number in request.follow_defaults:
        kind = KINDS.to_domain(number)
        own.discard(kind.value)
        quotas.pop(kind, None)
        if kind in defaults.quotas:
            quotas[kind] = defaults.quotas[kind]
    return quotas, sorted(own)


async def _stop_or_resume(connection: Connection, tenant: str, wanted: Stop | None, *, other_quotas: bool) -> None:
    """Writes or ends the stop that a quota of 0 is. The caller has locked the tenant's row.

    `other_quotas`: others are 0 now than before, so that a stop in force gets the new reason.
    """
    present = (await _stops(connection, [tenant])).get(tenant)
    if wanted is not None and (other_quotas or present is None):
        await write_stop(connection, wanted)
    elif wanted is None and present is not None:
        await delete_stop(connection, present)


async def _stops(connection: Connection, tenants: list[str]) -> dict[str, Stop]:
    """Returns the stops that quotas of 0 are, by tenant."""
    rows = await fetch_all(connection, TENANTS.stops, {"tenants": tenants})
    return {stop.tenant: stop for stop in (Stop(*row) for row in rows)}


def _check_revision(row: TenantRow, request: pb.UpdateTenantLimitsRequest) -> None:
    if request.HasField("expected_revision") and request.expected_revision != row.revision:
        raise WrongState(
            f"the tenant was updated meanwhile, it is at revision {row.revision}: read it and update it again",
            reason="TENANT_CHANGED",
            metadata={"revision": str(row.revision)},
        )


async def _to_messages(connection: Connection, rows: Sequence[TenantRow]) -> list[pb.Tenant]:
    """Returns tenants with their uses and the times of their warnings."""
    windows = await read_uses(connection, rows)
    parameters = {"tenants": [row.tenant for row in rows]}
    warned = {
        (tenant, quota): warned_at
        for tenant, quota, warned_at in await fetch_all(connection, TENANTS.warnings, parameters)
    }
    stops = await _stops(connection, parameters["tenants"])
    return [
        _tenant(row, {**windows[row.tenant], **await read_running(connection, row)}, warned, stops.get(row.tenant))
        for row in rows
    ]


def _tenant(row: TenantRow, uses: Uses, warned: Mapping[tuple[str, str], datetime], stop: Stop | None) -> pb.Tenant:
    return pb.Tenant(
        tenant=row.tenant,
        quotas=list(_uses(row, uses, warned)),
        revision=row.revision,
        actor=row.actor,
        reason=row.reason,
        create_time=timestamp(row.created_at),
        update_time=None if row.updated_at is None else timestamp(row.updated_at),
        stopped=None if stop is None else _stop_to_wire(stop),
    )


def _stop_to_wire(stop: Stop) -> pb.QuotaStop:
    assert stop.stop_time is not None, "the ledger sets it"
    return pb.QuotaStop(reason=stop.reason, stopped_by=stop.stopped_by, stop_time=timestamp(stop.stop_time))


def _uses(row: TenantRow, uses: Uses, warned: Mapping[tuple[str, str], datetime]) -> Iterable[pb.QuotaUse]:
    for kind in QuotaKind:
        use: QuotaUse | None = uses.get(kind)
        use_message = no_quota_to_wire(kind) if use is None else quota_use_to_wire(use)
        use_message.is_default = kind.value not in row.own
        warned_at = warned.get((row.tenant, kind.value))
        if warned_at is not None:
            use_message.warn_time.CopyFrom(timestamp(warned_at))
        yield use_message


class TenantServicer(TenantServiceServicer):
    """See protos/tenure/v1/tenant_service.proto for each method. The gateway decides who may call."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def GetTenant(self, _request: pb.GetTenantRequest, _context: Any) -> pb.GetTenantResponse:
        return pb.GetTenantResponse(tenant=await get_tenant(self._pool, current_tenant()))

    async def UpdateTenantLimits(
        self, request: pb.UpdateTenantLimitsRequest, _context: Any
    ) -> pb.UpdateTenantLimitsResponse:
        updated = await update_limits(self._pool, current_tenant(), request)
        return pb.UpdateTenantLimitsResponse(tenant=updated)

    async def ListTenants(self, request: pb.ListTenantsRequest, _context: Any) -> pb.ListTenantsResponse:
        return await list_tenants(self._pool, request)

    async def GetTenantUsage(self, request: pb.GetTenantUsageRequest, _context: Any) -> pb.GetTenantUsageResponse:
        return await sum_up(self._pool, current_tenant(), request)
