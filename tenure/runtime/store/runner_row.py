"""The row by which the other replicas see that a runner lives: a duty renews it, and the exit of the process ends it.

Use a connection that is used for nothing else: a runner must not count as dead because requests wait for connections.
Its service has the rule when a runner counts as dead: services/tools/runners/liveness.py, services/models/liveness.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import TryLater
from tenure.runtime.process import note_progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenure.runtime.store.dedicated_connection import DedicatedConnection
    from tenure.runtime.store.postgres import Connection

_log: Final = logging.getLogger(__name__)
AGAIN_SECONDS: Final = 0.2


async def keep_renewed(renew: Callable[[], Awaitable[bool]], interval_seconds: float) -> None:
    """Renews at each interval, as a duty, until `renew` returns False: the row has ended."""
    while True:
        note_progress()
        try:
            if not await renew():
                return
        except TryLater as error:
            _log.warning("could not renew the row of this runner: %s", error)
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            await asyncio.sleep(interval_seconds)


async def record_end(kept: DedicatedConnection, seconds: float, end: Callable[[Connection], Awaitable[object]]) -> None:
    """Ends the row if the database answers within `seconds`; else the TTL ends it."""
    try:
        async with asyncio.timeout(seconds), kept.use() as postgres:
            await end(postgres)
    except (TryLater, TimeoutError) as error:
        _log.warning("could not record the end of this runner, so it counts as alive until its TTL: %s", error)
