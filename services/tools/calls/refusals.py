"""The trail of stale writers: counted, logged, and kept in a table, at most 500 for each task."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from services.tools.statements import QUERIES
from tenure.domain.epochs import describe_epoch
from tenure.domain.errors import StaleEpoch
from tenure.domain.token import Claims
from tenure.runtime import metrics
from tenure.runtime.postgres import Connection, Pool, connection

_log: Final = logging.getLogger(__name__)
_REJECTIONS: Final = metrics.cell("tenure_stale_epoch_rejections_total", service="tools")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused call: who came with which epoch, and which one stands."""

    task_id: UUID
    tenant: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str

    @classmethod
    def of(cls, method: str, task_id: UUID, claims: Claims, error: StaleEpoch) -> Refusal:
        """The trail of a refusal that is about to be answered."""
        current = error.current
        assert current is not None
        holder = claims.holder.replace(
            "\0", "\ufffd"
        )  # Postgres keeps no NUL, and the trail is not the caller's answer
        return cls(task_id, claims.tenant, method, claims.epoch, current, holder)


@dataclass(frozen=True, slots=True)
class KeptRefusal:
    """A refusal as it is listed."""

    task_id: str
    method: str
    presented_epoch: int
    current_epoch: int
    holder: str
    refused_at: datetime


async def insert_refusals(postgres: Connection, refusals: Sequence[Refusal]) -> None:
    """In the transaction that refused; call `tell_refusals` once it is committed."""
    if not refusals:
        return
    await postgres.execute(
        QUERIES.insert_refusals,
        {
            "task_ids": [refusal.task_id for refusal in refusals],
            "tenants": [refusal.tenant for refusal in refusals],
            "methods": [refusal.method for refusal in refusals],
            "presented": [refusal.presented_epoch for refusal in refusals],
            "current": [refusal.current_epoch for refusal in refusals],
            "holders": [refusal.holder for refusal in refusals],
        },
    )
    await postgres.execute(QUERIES.trim_refusals, {"task_ids": sorted({refusal.task_id for refusal in refusals})})


def tell_refusals(refusals: Sequence[Refusal]) -> None:
    """Count and log them."""
    _REJECTIONS.value += len(refusals)
    for refusal in refusals:
        _log.warning(
            "refused a stale %s",
            refusal.method,
            extra={
                "task": str(refusal.task_id),
                "epoch": describe_epoch(refusal.presented_epoch),
                "current_epoch": describe_epoch(refusal.current_epoch),
                "holder": refusal.holder,
            },
        )


async def list_refusals(pool: Pool, task_id: UUID, tenant: str) -> list[KeptRefusal]:
    """Newest first, at most 500."""
    async with connection(pool) as postgres:
        cursor = await postgres.execute(QUERIES.list_refusals, {"task_id": task_id, "tenant": tenant})
        return [KeptRefusal(*row) for row in await cursor.fetchall()]
