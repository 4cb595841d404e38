"""The ledger's duties note their progress: with limits far below their pauses none of them is taken for silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.runtime.observability import metrics
from tenure.runtime.process import Duties, NoLimit
from tests.support.fix_checkpoint import MakeCheckpoint

pytestmark = pytest.mark.server

LIMIT_SECONDS = 4.0
PACED = {"listen"}
"""It asks every ten seconds whether Postgres still answers: its limit stays as it is."""
LOOKED_ON_SECONDS = 2.5 * LIMIT_SECONDS


async def test_duties_of_an_idle_ledger_report_progress(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: set[str] = set()
    start = Duties.start

    def start_with_short_limit(
        self: Duties, name: str, duty: Callable[[], Awaitable[None]], **options: Any
    ) -> asyncio.Task[None]:
        if name not in PACED and not isinstance(options["silence_seconds"], NoLimit):
            limited.add(name)
            options["silence_seconds"] = LIMIT_SECONDS
        return start(self, name, duty, **options)

    monkeypatch.setattr(Duties, "start", start_with_short_limit)
    await checkpoint()
    before = _stalls(limited)
    await asyncio.sleep(LOOKED_ON_SECONDS)
    assert _stalls(limited) == before
    assert {"commit", "retries", "refusals", "notify", "poll", "webhooks", "queue depths", "old signals"} <= limited


def _stalls(names: set[str]) -> dict[str, float | None]:
    return {name: metrics.read("tenure_duty_stalls_total", duty=name) for name in names}
