"""Resumes a wait or a watch after its stream broke."""

from __future__ import annotations

import random
import time
from asyncio import sleep
from collections.abc import Callable
from typing import Final

from tenure.domain.errors import TryLater
from tenure.domain.retry import RetryPolicy

RECONNECT: Final = RetryPolicy(initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
RECONNECT_SECONDS: Final = 60.0
"""How long a wait or a watch tries to reach a gateway again."""


def ignore() -> None:
    """The default of `on_lost`."""


class StreamReconnect:
    """The pauses between attempts to reach a gateway again, for at most RECONNECT_SECONDS.

    `on_lost` is called once when a first attempt has failed. A stream that only breaks is resumed without it: a gateway
    closes its connections now and then.
    """

    def __init__(self, on_lost: Callable[[], None] = ignore) -> None:
        self._lost_at, self._failures, self._on_lost = 0.0, 0, on_lost

    def succeeded(self) -> None:
        """Notes an answer of the gateway. The next failure begins a new series."""
        self._failures = 0

    async def wait(self, error: TryLater) -> None:
        """Waits before the next attempt. Raises `error` after RECONNECT_SECONDS without an answer."""
        if not self._failures:
            self._lost_at = time.monotonic()
        elif time.monotonic() - self._lost_at > RECONNECT_SECONDS:
            raise error
        elif self._failures == 1:
            self._on_lost()
        self._failures += 1
        await sleep(RECONNECT.wait_seconds(self._failures, random.random(), error.retry_after_seconds))
