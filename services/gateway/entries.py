"""A task's entries, for as long as somebody wants them: outlives restarts of the ledger's replicas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Final

from services.gateway.peers import Peers
from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy
from tenure.v1 import checkpoint_service_pb2 as ledger

RECONNECT: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


async def follow_entries(
    peers: Peers, task_id: str, after_sequence: int, *, closing_only: bool = False
) -> AsyncGenerator[ledger.WatchEntriesResponse]:
    """Pages without gap or repeat, ending after the one that closes the task; `closing_only`: just that one.

    Takes the next page only when asked, so that a slow reader costs nobody memory. A ledger that is away is waited for:
    the caller's stream goes on where it was. Raises NotFound and OutOfRange as they come.
    """
    failures = 0
    while True:
        try:
            asked = ledger.WatchEntriesRequest(
                task_id=task_id, after_sequence=after_sequence, closing_only=closing_only
            )
            async for page in peers.checkpoint.WatchEntries(asked):
                failures = 0
                if page.entries:
                    after_sequence = page.entries[-1].sequence
                yield page
                if page.closed:
                    return
            failures += 1  # ended in order, without the closing page: a replica that drains
        except TryLater:
            failures += 1
        await asyncio.sleep(RECONNECT.wait_seconds(failures, random.random()))
