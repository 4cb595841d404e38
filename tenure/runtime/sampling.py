"""Samples the metrics of a process once a second: the delay of its event loop, and what is read from elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from tenure.runtime import metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INTERVAL_SECONDS: Final = 1.0


@asynccontextmanager
async def sampling(interval_seconds: float = INTERVAL_SECONDS) -> AsyncIterator[None]:
    """Samples inside the block."""
    task = asyncio.create_task(_sample(interval_seconds), name="sample metrics")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(interval_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    delay = metrics.histogram("tenure_event_loop_delay_seconds")
    while True:
        metrics.REGISTRY.sample()
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        delay.observe(max(0.0, loop.time() - due))
