"""The duty that carries out endings: one that hangs or fails holds up no other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from services.coordinator.claims.close_out import PendingEndings
from services.coordinator.sessions.session_attach import Sessions
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.support.patience import PATIENCE_SECONDS


class Due:
    """What is to be ended, each told once, as the ledger's reservations have it."""

    def __init__(self, *task_ids: str) -> None:
        self._left = list(task_ids)

    async def list_endings(self, limit: int, _grace_seconds: float) -> list[pb.ListEndingsResponse.Ending]:
        entry, self._left = self._left[:limit], self._left[limit:]
        return [pb.ListEndingsResponse.Ending(task_id=task_id, tenant="default") for task_id in entry]


class Ender:
    """Hangs, breaks or ends, by the task's name."""

    def __init__(self, expected: int) -> None:
        self.ended: set[str] = set()
        self.all_ended = asyncio.Event()
        self._expected = expected

    async def end(self, ending: pb.ListEndingsResponse.Ending) -> None:
        if ending.task_id.startswith("hang"):
            await asyncio.Event().wait()
        if ending.task_id.startswith("broken"):
            raise ValueError("an entry of a kind that this version does not know")
        self.ended.add(ending.task_id)
        if len(self.ended) == self._expected:
            self.all_ended.set()


async def test_an_ending_that_hangs_or_breaks_holds_up_no_other() -> None:
    good = [f"good{number}" for number in range(60)]
    hanging = [f"hang{number}" for number in range(12)]
    due, ender = Due("broken", *hanging, *good), Ender(len(good))
    endings = PendingEndings(cast("Any", due), Sessions(), cast("Any", ender), grace_seconds=1.0)
    duty = asyncio.create_task(endings.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ender.all_ended.wait()
        assert not duty.done()
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
    assert ender.ended == set(good)
