"""Pruned tasks that the tools still know: offered to coordinators, which see to it, until they say that it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.queries import RETENTION, fetch_all, in_ledger_transaction
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.runtime.postgres import Connection, Pool

RESERVE_SECONDS: Final = 10.0
MOST_RESERVE_SECONDS: Final = 600.0
"""The longest pause between two tries: so long after an outage of the tools the last one may wait."""


async def list_prunings(pool: Pool, limit: int) -> list[pb.ListPruningsResponse.Pruning]:
    """The oldest, kept from others for a while."""
    parameters = {"limit": limit, "reserve_seconds": RESERVE_SECONDS, "most_seconds": MOST_RESERVE_SECONDS}

    async def work(connection: Connection) -> list[tuple[Any, ...]]:
        return await fetch_all(connection, RETENTION.offer_prunings, parameters)

    rows = await in_ledger_transaction(pool, work)
    rows.sort(key=lambda row: row[4])  # RETURNING has no order
    return [
        pb.ListPruningsResponse.Pruning(task_id=task_id, tenant=tenant, epoch=epoch, claim_id=claim_id)
        for task_id, tenant, epoch, claim_id, _ in rows
    ]


async def note_forgotten(pool: Pool, task_ids: Sequence[str]) -> None:
    """The tools are done with these."""

    async def work(connection: Connection) -> None:
        await connection.execute(RETENTION.note_forgotten, {"task_ids": list(task_ids)})

    await in_ledger_transaction(pool, work)
