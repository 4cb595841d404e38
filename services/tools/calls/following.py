"""Waiting for calls that run in other replicas: one look at the records for all of them, again and again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from services.tools.calls.records import CallKey
from services.tools.statements import QUERIES
from tenure.domain.errors import LimitReached
from tenure.runtime.duties import rest, resting
from tenure.runtime.postgres import Pool, connection

_MOST_WAITING: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    key: CallKey
    call_attempt: int
    moved: asyncio.Future[None]


class Follower:
    """Polls only while somebody waits."""

    def __init__(self, pool: Pool, poll_seconds: float = 0.1) -> None:
        self._pool, self._poll_seconds = pool, poll_seconds
        self._waiting: set[_Waiting] = set()
        self._arrived = asyncio.Event()

    async def moved(self, key: CallKey, call_attempt: int) -> None:
        """Returns when this attempt no longer runs elsewhere: it ended, was handed on, or its runner died.

        Raises LimitReached when too many wait.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise LimitReached("too many wait for calls that run elsewhere", retry_after_seconds=1.0)
        waiting = _Waiting(key, call_attempt, asyncio.get_running_loop().create_future())
        self._waiting.add(waiting)
        self._arrived.set()
        try:
            await waiting.moved
        finally:
            self._waiting.discard(waiting)

    async def poll(self) -> None:
        """The duty."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                with resting():
                    await self._arrived.wait()
            await self._look(list(self._waiting))
            await rest(self._poll_seconds)

    async def _look(self, waiting: list[_Waiting]) -> None:
        parameters = {
            "ordinals": list(range(len(waiting))),
            "task_ids": [one.key.task_id for one in waiting],
            "call_ids": [one.key.call_id for one in waiting],
            "attempts": [one.call_attempt for one in waiting],
        }
        async with connection(self._pool) as postgres:
            rows = await (await postgres.execute(QUERIES.calls_to_ask_about, parameters)).fetchall()
        for (ordinal,) in rows:
            if not waiting[ordinal].moved.done():
                waiting[ordinal].moved.set_result(None)
