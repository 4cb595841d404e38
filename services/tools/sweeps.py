"""Deletes rows in batches, each in a transaction of its own."""

from __future__ import annotations

from typing import Final

from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Pool, pool_connection

ROWS_A_BATCH: Final = 500


async def delete_all(pool: Pool, statement: bytes) -> None:
    """Executes a statement that deletes at most `limit` rows until it finds fewer: more may come than one deletes."""
    while True:
        async with pool_connection(pool) as postgres:
            deleted = (await postgres.execute(statement, {"limit": ROWS_A_BATCH})).rowcount
        if deleted < ROWS_A_BATCH:
            return
        note_progress()
