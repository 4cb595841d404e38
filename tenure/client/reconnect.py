"""How a wait or a watch goes on when its stream breaks."""

from __future__ import annotations

import random
import time
from asyncio import sleep
from typing import TYPE_CHECKING, Final

from tenure.domain.retry import RetryPolicy

if TYPE_CHECKING:
    from tenure.domain.errors import TryLater

RECONNECT: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
RECONNECT_SECONDS: Final = 60.0
"""How long a wait or a watch that has had an answer looks for a gateway again."""


class StreamReconnect:
    """With a gateway that has answered before: it is looked for again, for a while."""

    def __init__(self) -> None:
        self._lost_at, self._failures = 0.0, 0

    def made(self) -> None:
        """It answers."""
        self._failures = 0

    async def lost(self, error: TryLater) -> None:
        """Waits until the next attempt; raises `error` when there has been no answer for too long."""
        if not self._failures:
            self._lost_at = time.monotonic()
        elif time.monotonic() - self._lost_at > RECONNECT_SECONDS:
            raise error
        self._failures += 1
        await sleep(RECONNECT.wait_seconds(self._failures, random.random(), error.retry_after_seconds))
