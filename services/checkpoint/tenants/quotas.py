"""Quotas: checks at a submit and at a reservation, and soft cap warnings.

A soft cap warning comes once per window, from the task that reaches the soft cap first: as an entry, a log line and a
metric.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one
from services.checkpoint.tenants.rows import TENANTS, TenantRow, ensured, read_tenant
from services.checkpoint.tenants.usage_windows import Uses, count_use, read_running, read_uses
from tenure.domain.budget import Denied
from tenure.domain.errors import TryLater
from tenure.domain.quotas import (
    OF_CALLS,
    OF_SUBMITS,
    SPANS,
    Quota,
    QuotaKind,
    QuotaPolicy,
    QuotaUse,
    QuotaWarning,
    StartDecision,
    decide_start,
    recheck_seconds,
    wait_of_call,
)
from tenure.domain.states import Reason
from tenure.domain.task import Source
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import ledger_pb2
from tenure.wire.common import timestamp
from tenure.wire.tenant_service import quota_warning_to_wire

CHECK_AGAIN_SECONDS: Final = 60.0
"""The database decides whether a warning is due. Not every commit of a tenant near its quota needs to ask it."""

_log: Final = logging.getLogger(__name__)


class Warnings:
    """Remembers recent checks of soft caps, for the commits of one replica."""

    def __init__(self) -> None:
        self._checked_at: dict[tuple[str, QuotaKind], float] = {}

    async def is_first(self, connection: Connection, tenant: str, use: QuotaUse) -> bool:
        """Whether to append a soft cap warning now, in this transaction."""
        key, now = (tenant, use.quota.kind), time.monotonic()
        if not use.is_soft or now - self._checked_at.get(key, -CHECK_AGAIN_SECONDS) < CHECK_AGAIN_SECONDS:
            return False
        self._checked_at[key] = now
        return await is_first(connection, tenant, use)


async def is_first(connection: Connection, tenant: str, use: QuotaUse) -> bool:
    """Whether no replica has warned of this soft cap in this window yet: then the caller appends the warning."""
    span = SPANS.get(use.quota.kind)
    window_seconds = float(span.window_seconds if span else CHECK_AGAIN_SECONDS)
    parameters = {"tenant": tenant, "quota": use.quota.kind.value, "window_seconds": window_seconds}
    if await fetch_one(connection, TENANTS.warn, parameters) is None:
        return False
    metrics.count("tenure_tenant_warnings_total", tenant=metrics.tenant_label(tenant), quota=use.quota.kind.value)
    _log.warning("a tenant is near its quota", extra={"tenant": tenant, "used": use.describe()})
    return True


def append_warning(draft: Draft, use: QuotaUse) -> ledger_pb2.Entry:
    """Appends the soft cap warning to the draft and returns it as an entry."""
    row = draft.row
    warning = QuotaWarning(use.quota.kind, use.used, use.quota.most)
    body = ledger_pb2.EntryBody(quota_warning=quota_warning_to_wire(warning))
    draft.append(KINDS["quota_warning"], body.SerializeToString(), step=row.step, actor=LEDGER, by_claim=False)
    draft.warnings.append(draft.entries[-1])
    return ledger_pb2.Entry(
        sequence=row.sequence,
        attempt=row.attempt,
        step=row.step,
        actor=LEDGER,
        record_time=timestamp(row.locked_at),
        body=body,
    )


async def warn_of_submit(connection: Connection, tenant: str, task_id: str, uses: Iterable[QuotaUse]) -> bool:
    """Appends soft cap warnings, in the transaction that created the task: its submit may reach a soft cap.

    Returns whether there are any.
    """
    due = [use for use in uses if use.is_soft and await is_first(connection, tenant, use)]
    if not due:
        return False
    tasks, budgets = await lock_tasks(connection, [task_id])
    row = tasks[task_id]
    draft = Draft(row, budgets[row.root_task_id])
    for use in due:
        append_warning(draft, use)
    await write(connection, [draft])
    return True


# Admission: whether a tenant may have one more task, and when it may start, in the transaction that creates the task.


class Admission(NamedTuple):
    """The start of the task, the usage of the tenant until then, and when the submit counts (None: never)."""

    start: StartDecision = StartDecision()
    uses: Uses = {}  # noqa: RUF012  never written to
    counts_at: float | None = None


FREE: Final = Admission()
"""No quota applies. A repeat returns its task, whatever the quotas are by now."""


async def admit(
    connection: Connection,
    tenant: str,
    request_id: str,
    source: Source,
    *,
    may_refuse: bool = True,
    not_before: datetime | None = None,
) -> Admission:
    """Checks the quotas of a submit. Raises LimitReached (TENANT_QUOTA).

    Submits of a tenant with a rate quota wait here for each other; other tenants' do not.

    A submit with a later start than the quotas allow anyway is not held by quotas: otherwise a raised quota would wake
    it too early.
    """
    row = await ensured(connection, tenant)
    if not _matter(row.quotas):
        return FREE
    if QuotaKind.SUBMITS_PER_MINUTE in row.quotas:
        locked = await read_tenant(connection, tenant, lock=True)
        assert locked is not None, "tenants are never deleted"
        row = locked
    keys = {
        "tenant": tenant,
        "request_id": request_id,
        "source_kind": source.kind.value,
        "source_id": source.source_id,
        "source_run_id": source.source_run_id,
    }
    if await fetch_one(connection, QUERIES.is_repeat, keys) is not None:
        return FREE
    uses = await _uses(connection, row)
    start = decide_start(tenant, uses, may_refuse=may_refuse)
    starts_at = row.now + start.after_seconds
    if not_before is not None and not_before.timestamp() >= starts_at:
        start = StartDecision()
    return Admission(start, uses, starts_at if QuotaKind.SUBMITS_PER_MINUTE in row.quotas else None)


async def without_quotas(connection: Connection, tenants: Collection[str]) -> set[str]:
    """Returns the tenants, among these, whose submits need no check of quotas. A tenant that is new is not one."""
    rows = await fetch_all(connection, TENANTS.find_some, {"tenants": list(tenants)})
    return {row.tenant for row in (TenantRow(*columns) for columns in rows) if not _matter(row.quotas)}


async def count_submit(connection: Connection, tenant: str, admission: Admission) -> None:
    """Counts a created task from the moment at which it may start."""
    if admission.counts_at is not None:
        await count_use(connection, {(tenant, QuotaKind.SUBMITS_PER_MINUTE): 1}, admission.counts_at)


async def _uses(connection: Connection, row: TenantRow) -> Uses:
    windows = await read_uses(connection, [row], OF_SUBMITS)
    return {**windows[row.tenant], **await read_running(connection, row)}


def _matter(quotas: Mapping[QuotaKind, Quota]) -> bool:
    """Whether a submit must check the quotas. A quota of running tasks that does not refuse concerns offers only."""
    running = quotas.get(QuotaKind.RUNNING_TASKS)
    return any(kind in quotas for kind in OF_SUBMITS) or (running is not None and running.policy is QuotaPolicy.REFUSE)


# Quotas of model calls, for the reservations of a batch of commits.

REFRESH_SECONDS: Final = 1.0


class CallQuotas:
    """The quotas and uses of a batch's tenants."""

    def __init__(self, uses: Mapping[str, Uses], warnings: Warnings) -> None:
        self._uses, self._warnings = uses, warnings

    def denied(self, tenant: str) -> Denied | None:
        """Returns the denial of a model call by a quota, whatever its own budget allows; None: no quota denies it."""
        use = wait_of_call(self._uses.get(tenant, {}))
        if use is None:
            return None
        metrics.count("tenure_tenant_quota_total", quota=use.quota.kind.value, outcome="waited")
        return Denied(Reason.TENANT_QUOTA, f"tenant {tenant} has used {use.describe()}", recheck_seconds(use))

    async def warn(self, connection: Connection, draft: Draft) -> list[ledger_pb2.Entry]:
        """Appends due soft cap warnings and returns them."""
        uses = self._uses.get(draft.row.tenant, {}).values()
        return [
            append_warning(draft, use)
            for use in uses
            if await self._warnings.is_first(connection, draft.row.tenant, use)
        ]


class LimitedTenants:
    """Knows the tenants with quotas for model calls, up to a second late; reads the quotas themselves when needed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._names: frozenset[str] = frozenset()
        self._warnings = Warnings()

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except TryLater as error:
                _log.warning(
                    "the tenants with quotas could not be read: the last known ones stay in force",
                    extra={"error": str(error)},
                )
            await rest(REFRESH_SECONDS * random.uniform(0.5, 1.0))

    async def refresh(self) -> None:
        """Reads the tenants with quotas."""
        async with pool_connection(self._pool) as connection:
            self._names = frozenset(name for (name,) in await fetch_all(connection, TENANTS.limited, {}))

    async def read(self, connection: Connection, tenants: Collection[str]) -> CallQuotas:
        """Returns the quotas and uses of these tenants' model calls. Reads nothing when none of them has a quota."""
        limited = sorted(self._names.intersection(tenants))
        if not limited:
            return NO_QUOTAS
        rows = await fetch_all(connection, TENANTS.find_some, {"tenants": limited})
        uses = await read_uses(connection, [TenantRow(*columns) for columns in rows], OF_CALLS)
        return CallQuotas(uses, self._warnings)


NO_QUOTAS: Final = CallQuotas({}, Warnings())
