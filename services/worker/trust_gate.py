"""The gate before everything new: open while the trust window is."""

from __future__ import annotations

import asyncio
from time import monotonic

from tenure.domain.trust import TrustWindow
from tenure.runtime.failpoint import failpoint_enabled


class TrustGate:
    """Closed until the first answered renewal, and again whenever none was answered for too long."""

    def __init__(self) -> None:
        self._window: TrustWindow | None = None
        self._renewed = asyncio.Event()

    def begin(self, sent_at: float, ttl_seconds: float) -> None:
        """A new session began, asked for at this monotonic moment."""
        self._window = TrustWindow(sent_at, ttl_seconds)
        self._renewed.set()

    def renew(self, sent_at: float) -> None:
        """The renewal sent at this moment was answered."""
        assert self._window is not None, "no session yet"
        self._window = self._window.renewed(sent_at)
        self._renewed.set()

    @property
    def is_open(self) -> bool:
        """Whether something new may be started now."""
        if failpoint_enabled("worker.ignore_trust_window"):
            return True
        return self._window is not None and self._window.is_open(monotonic())

    async def wait_open(self) -> None:
        """Waits for a renewal while the window is closed."""
        while not self.is_open:
            self._renewed.clear()
            await self._renewed.wait()
