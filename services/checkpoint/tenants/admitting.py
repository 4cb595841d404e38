"""Whether a tenant may have one more task, and when it may start: decided in the transaction that creates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.queries import QUERIES, fetch_one
from services.checkpoint.tenants.rows import TenantRow, ensured, read_tenant
from services.checkpoint.tenants.windows import Uses, count_use, read_running, read_uses
from tenure.domain.quotas import QuotaKind, QuotaPolicy, Start, start_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tenure.domain.quotas import Quota
    from tenure.runtime.postgres import Connection


class Admission(NamedTuple):
    """When the task may start; what of the tenant's quotas was used until then; and when it counts, if it does."""

    start: Start = Start()
    uses: Uses = {}  # noqa: RUF012  never written to
    counts_at: float | None = None


FREE: Final = Admission()
"""Nothing limits it, or it is a repeat: that is answered by the task it made, whatever the quotas say by now."""


async def admit(
    connection: Connection,
    tenant: str,
    request_id: str,
    *,
    may_refuse: bool = True,
    not_before: datetime | None = None,
) -> Admission:
    """Raises LimitReached (TENANT_QUOTA). Submits of a tenant with a rate wait here for each other, no others do.

    Whoever asks for a later start than the quotas allow anyway is not held by them: none that is raised may wake it.
    """
    row = await ensured(connection, tenant)
    if not _matter(row.quotas):
        return FREE
    if QuotaKind.SUBMITS_PER_MINUTE in row.quotas:
        locked = await read_tenant(connection, tenant, lock=True)
        assert locked is not None, "tenants are never deleted"
        row = locked
    if await fetch_one(connection, QUERIES.find_request, {"tenant": tenant, "request_id": request_id}) is not None:
        return FREE
    uses = await _uses(connection, row)
    start = start_of(tenant, uses, may_refuse=may_refuse)
    begins = row.now + start.after_seconds
    if not_before is not None and not_before.timestamp() >= begins:
        start = Start()
    return Admission(start, uses, begins if QuotaKind.SUBMITS_PER_MINUTE in row.quotas else None)


async def count_submit(connection: Connection, tenant: str, admission: Admission) -> None:
    """The task was created: it counts from when it may start."""
    if admission.counts_at is not None:
        await count_use(connection, {(tenant, QuotaKind.SUBMITS_PER_MINUTE): 1}, admission.counts_at)


async def _uses(connection: Connection, row: TenantRow) -> Uses:
    windows = await read_uses(connection, [row])
    return {**windows[row.tenant], **await read_running(connection, row)}


def _matter(quotas: Mapping[QuotaKind, Quota]) -> bool:
    """What only the offers look at is nothing to a submit."""
    return any(
        kind is not QuotaKind.RUNNING_TASKS or quota.policy is QuotaPolicy.REFUSE for kind, quota in quotas.items()
    )
