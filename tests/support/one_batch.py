"""Calls that a batcher writes in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.checkpoint.ledger_batches import LedgerBatches
from tests.support.patience import PATIENCE_SECONDS


async def in_one_batch(batches: LedgerBatches[Any, Any], *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """The answers and refusals of calls to batches that do not run yet, in order."""
    waiting = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)  # all wait now
    running = asyncio.create_task(batches.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
