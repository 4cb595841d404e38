"""Resumes a wait or a watch after its stream broke."""

from __future__ import annotations

import random
import time
from asyncio import sleep
from typing import Final

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy

RECONNECT: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
RECONNECT_SECONDS: Final = 60.0
"""How long a wait or a watch tries to reach a gateway again."""


class StreamReconnect:
    """The pauses between attempts to reach a gateway again, for at most RECONNECT_SECONDS."""

    def __init__(self) -> None:
        self._lost_at, self._failures = 0.0, 0

    def succeeded(self) -> None:
        """Notes an answer of the gateway. The next failure begins a new series."""
        self._failures = 0

    async def wait(self, error: TryLater) -> None:
        """Waits before the next attempt. Raises `error` after RECONNECT_SECONDS without an answer."""
        if not self._failures:
            self._lost_at = time.monotonic()
        elif time.monotonic() - self._lost_at > RECONNECT_SECONDS:
            raise error
        self._failures += 1
        await sleep(RECONNECT.wait_seconds(self._failures, random.random(), error.retry_after_seconds))
