"""One webhook's turn: a replica reads the feed for it, sends what is due and records what came of it.

A turn is a lease in the webhook's row, by the database's time, with a number that only grows. All that is written
compares the number; nothing is sent that might still be under way when the lease has run out. A process that was frozen
in the middle of a request may finish it late: the endpoint knows a repeat by its webhook-id.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.change_cursor import Cursor
from services.checkpoint.queries import fetch_all, fetch_one, in_ledger_transaction
from services.checkpoint.webhooks.reading import Place, read_on
from services.checkpoint.webhooks.recording import record
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import Letter
from tenure.domain.errors import OutOfRange, TenureError
from tenure.domain.webhooks import MOST_RECEIVED_KEPT, judge
from tenure.runtime.failpoint import failpoint
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import task_pb2

if TYPE_CHECKING:
    from services.checkpoint.webhooks.sending import Sender
    from services.checkpoint.webhooks.settings import WebhookSettings
    from tenure.runtime.postgres import Connection, Pool

LONGEST_TURN_SECONDS: Final = 60.0
"""Then it is others' turn, however much there is to do."""
READ_INTERVAL_SECONDS: Final = 0.5
END_SECONDS: Final = 2.0


class _Standing(NamedTuple):
    """The columns of `keep_turn`, in their order."""

    event_types: list[str]
    filter: bytes
    feed_id: str
    xid: int
    position: int
    pending: int
    held: bool

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.feed_id, self.xid, self.position)


@dataclass(frozen=True, slots=True)
class Means:
    """What every turn of a process uses."""

    pool: Pool
    sender: Sender
    settings: WebhookSettings


class Turn:
    """`run` it once."""

    def __init__(self, means: Means, place: Place, taken_at: float) -> None:
        """`taken_at`: when it was asked for, by the monotonic clock."""
        self._means, self._place = means, place
        self._under_way = 0
        self._came_back = asyncio.Event()
        self._ends_at = taken_at + LONGEST_TURN_SECONDS
        self._read_at = 0.0
        self._trust(taken_at)

    async def run(self) -> None:
        """Until there is nothing to do, or it is others' turn. What fails leaves the turn to run out."""
        try:
            async with TaskGroup() as sending:
                await self._work(sending)
        except asyncio.CancelledError:
            # We drain: the others need not wait for the turn to run out. What was under way is sent again.
            with suppress(TimeoutError, TenureError):  # then it runs out after all
                async with asyncio.timeout(END_SECONDS):
                    await self._end()
            raise
        await self._end()

    async def _work(self, sending: TaskGroup) -> None:
        while time.monotonic() < self._ends_at and (standing := await self._keep()) is not None:
            self._came_back.clear()
            more = await self._read(standing)
            letters = [] if standing.held else await self._take()
            for letter in letters:
                self._under_way += 1
                sending.create_task(self._deliver(letter))
            if not (more or letters or self._under_way):
                return
            if not more:
                await self._pause()

    async def _keep(self) -> _Standing | None:
        """The lease lasts on. None: another has it, or the webhook is paused or gone."""
        asked_at = time.monotonic()
        parameters = {**self._place.key, "turn_seconds": self._means.settings.turn_seconds}
        found = await in_ledger_transaction(
            self._means.pool, lambda connection: fetch_one(connection, WEBHOOKS.keep_turn, parameters)
        )
        if found is None:
            return None
        self._trust(asked_at)
        return _Standing(*found)

    def _trust(self, asked_at: float) -> None:
        """A request that begins before this is over before the lease is."""
        settings = self._means.settings
        self._trusted_until = asked_at + settings.turn_seconds - settings.request_timeout_seconds

    async def _read(self, standing: _Standing) -> bool:
        """Whether there may be more at once. Not while too much is pending: the feed keeps the rest, for its time."""
        now = time.monotonic()
        if standing.pending >= self._means.settings.max_pending or now < self._read_at:
            return False
        wanted = task_pb2.TaskFilter.FromString(standing.filter)
        try:
            more = await read_on(self._means.pool, self._place, standing.event_types, wanted, standing.cursor)
        except OutOfRange:
            return True  # pruned in this moment: the gap is found when it is read again
        self._read_at = 0.0 if more else now + READ_INTERVAL_SECONDS
        return more

    async def _take(self) -> list[Letter]:
        free = self._means.settings.max_requests - self._under_way
        if free <= 0:
            return []
        parameters = {**self._place.key, "limit": free}

        async def work(connection: Connection) -> list[Letter]:
            return [Letter(*row) for row in await fetch_all(connection, WEBHOOKS.take_deliveries, parameters)]

        letters = await in_ledger_transaction(self._means.pool, work)
        return sorted(letters)

    async def _deliver(self, letter: Letter) -> None:
        try:
            if time.monotonic() > self._trusted_until:
                return  # taken again in a turn that has the time
            answer = await self._means.sender.send(letter)
            await failpoint("checkpoint.after_delivery")
            settings = self._means.settings
            verdict = judge(answer, letter.attempts, random.random(), settings.retry)
            await record(self._means.pool, self._place, letter, answer, verdict, settings.max_dead)
        finally:
            self._under_way -= 1
            self._came_back.set()

    async def _pause(self) -> None:
        with suppress(TimeoutError):  # there may be something to read
            async with asyncio.timeout(READ_INTERVAL_SECONDS):
                await self._came_back.wait()

    async def _end(self) -> None:
        async def work(connection: Connection) -> None:
            parameters = {"webhook_id": self._place.webhook_id, "kept": MOST_RECEIVED_KEPT}
            await connection.execute(WEBHOOKS.forget_received, parameters)
            await connection.execute(WEBHOOKS.end_turn, self._place.key)

        await in_ledger_transaction(self._means.pool, work)
