"""Time that passes at once, for what is to end by its timeout, however quick the machine is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

PassSeconds = Callable[[float], None]


@pytest.fixture
async def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> PassSeconds:
    """From now on the event loop's clock is ahead by so much: what is due by then is due at once.

    So it also looks to the loop when its process stood still.
    """
    loop = asyncio.get_running_loop()

    def pass_now(seconds: float) -> None:
        before = loop.time
        monkeypatch.setattr(loop, "time", lambda: before() + seconds)

    return pass_now
