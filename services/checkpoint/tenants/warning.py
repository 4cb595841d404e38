"""Soft caps: told once a window, by the task that met it first: an entry, a line in the log, a number."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from services.checkpoint.draft import LEDGER, Draft
from services.checkpoint.kinds import KINDS
from services.checkpoint.queries import fetch_one
from services.checkpoint.rows import lock_tasks
from services.checkpoint.tenants.rows import TENANTS
from services.checkpoint.writing import write
from tenure.domain.quotas import SPANS, QuotaWarning
from tenure.runtime import metrics
from tenure.v1 import ledger_pb2
from tenure.wire.quotas import quota_warning_to_wire
from tenure.wire.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.domain.quotas import QuotaKind, QuotaUse
    from tenure.runtime.postgres import Connection

ASK_AGAIN_SECONDS: Final = 60.0
"""Whether a warning is due is decided by the database; it is not asked with every commit of a tenant near its cap."""

_log: Final = logging.getLogger(__name__)


class Warnings:
    """Remembers what was asked lately. For the commits of one replica."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, QuotaKind], float] = {}

    async def is_first(self, connection: Connection, tenant: str, use: QuotaUse) -> bool:
        """Whether to tell it now, in this transaction."""
        key, now = (tenant, use.quota.kind), time.monotonic()
        if not use.is_soft or now - self._asked.get(key, -ASK_AGAIN_SECONDS) < ASK_AGAIN_SECONDS:
            return False
        self._asked[key] = now
        return await is_first(connection, tenant, use)


async def is_first(connection: Connection, tenant: str, use: QuotaUse) -> bool:
    """Whether nobody, of all replicas, has told of this soft cap in this window: then it is for the caller to tell."""
    span = SPANS.get(use.quota.kind)
    window_seconds = float(span.window_seconds if span else ASK_AGAIN_SECONDS)
    parameters = {"tenant": tenant, "quota": use.quota.kind.value, "window_seconds": window_seconds}
    if await fetch_one(connection, TENANTS.warn, parameters) is None:
        return False
    metrics.count("tenure_tenant_warnings_total", tenant=tenant, quota=use.quota.kind.value)
    _log.warning("a tenant is near its cap", extra={"tenant": tenant, "used": use.told()})
    return True


def append_warning(draft: Draft, use: QuotaUse) -> ledger_pb2.Entry:
    """The fact, as others will read it."""
    row = draft.row
    fact = QuotaWarning(use.quota.kind, use.used, use.quota.most)
    body = ledger_pb2.EntryBody(quota_warning=quota_warning_to_wire(fact))
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


async def warn_of_submit(connection: Connection, tenant: str, task_id: str, uses: Iterable[QuotaUse]) -> None:
    """In the transaction that created the task, whose submit may be what reaches a soft cap."""
    due = [use for use in uses if use.is_soft and await is_first(connection, tenant, use)]
    if not due:
        return
    tasks, budgets = await lock_tasks(connection, [task_id])
    row = tasks[task_id]
    draft = Draft(row, budgets[row.root_task_id])
    for use in due:
        append_warning(draft, use)
    await write(connection, [draft])
