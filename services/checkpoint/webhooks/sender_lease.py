"""One webhook's turn: a replica reads the feed for it, sends what is due and records what came of it.

A turn is a lease in the webhook's row, by the database's time, with a number that only grows. All that is written
compares the number; nothing is sent that might still be under way when the lease has run out. A process that was frozen
in the middle of a request may finish it late: the endpoint knows a repeat by its webhook-id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.queries import fetch_all, fetch_one, in_ledger_transaction
from services.checkpoint.watch.change_feed import ChangeCursor
from services.checkpoint.webhooks.deliveries import record
from services.checkpoint.webhooks.feed_reader import SenderLeaseKey, read_on
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import OutgoingDelivery, Sender
from tenure.domain.errors import OutOfRange, TenureError
from tenure.domain.webhooks import MOST_RECEIVED_KEPT, decide_delivery
from tenure.runtime import metrics
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import heed_cancellation, rest
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import task_pb2

if TYPE_CHECKING:
    from services.checkpoint.webhooks.sending import WebhookSettings
    from tenure.domain.outbound import Networks
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
    def cursor(self) -> ChangeCursor:
        return ChangeCursor(self.feed_id, self.xid, self.position)


@dataclass(frozen=True, slots=True)
class SenderDependencies:
    """What every turn of a process uses."""

    pool: Pool
    sender: Sender
    settings: WebhookSettings


class SenderLease:
    """`run` it once."""

    def __init__(self, means: SenderDependencies, place: SenderLeaseKey, taken_at: float) -> None:
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
        while time.monotonic() < self._ends_at and (status := await self._keep()) is not None:
            self._came_back.clear()
            more = await self._read(status)
            letters = [] if status.held else await self._take()
            for delivery in letters:
                self._under_way += 1
                sending.create_task(self._deliver(delivery))
            if not (more or letters or self._under_way):
                return
            if not more:
                await self._pause()

    async def _keep(self) -> _Standing | None:
        """The lease lasts on. None: another has it, or the webhook is paused or gone."""
        asked_at = time.monotonic()
        parameters = {**self._place.key, "turn_seconds": self._means.settings.turn_seconds}
        renewed = await in_ledger_transaction(
            self._means.pool, lambda connection: fetch_one(connection, WEBHOOKS.keep_turn, parameters)
        )
        if renewed is None:
            return None
        self._trust(asked_at)
        return _Standing(*renewed)

    def _trust(self, asked_at: float) -> None:
        """A request that begins before this is over before the lease is."""
        settings = self._means.settings
        self._trusted_until = asked_at + settings.turn_seconds - settings.request_timeout_seconds

    async def _read(self, status: _Standing) -> bool:
        """Whether there may be more at once. Not while too much is pending: the feed keeps the rest, for its time."""
        now = time.monotonic()
        if status.pending >= self._means.settings.max_pending or now < self._read_at:
            return False
        wanted = task_pb2.TaskFilter.FromString(status.filter)
        try:
            more = await read_on(self._means.pool, self._place, status.event_types, wanted, status.cursor)
        except OutOfRange:
            return True  # pruned in this moment: the gap is found when it is read again
        self._read_at = 0.0 if more else now + READ_INTERVAL_SECONDS
        return more

    async def _take(self) -> list[OutgoingDelivery]:
        free = self._means.settings.max_requests - self._under_way
        if free <= 0:
            return []
        parameters = {**self._place.key, "limit": free}

        async def work(connection: Connection) -> list[OutgoingDelivery]:
            return [OutgoingDelivery(*row) for row in await fetch_all(connection, WEBHOOKS.take_deliveries, parameters)]

        letters = await in_ledger_transaction(self._means.pool, work)
        return sorted(letters)

    async def _deliver(self, delivery: OutgoingDelivery) -> None:
        try:
            if time.monotonic() > self._trusted_until:
                return  # taken again in a turn that has the time
            answer = await self._means.sender.send(delivery)
            await failpoint("checkpoint.after_delivery")
            settings = self._means.settings
            verdict = decide_delivery(answer, delivery.attempts, random.random(), settings.retry)
            await record(self._means.pool, self._place, delivery, answer, verdict, settings.max_dead)
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


# The duty that looks for webhooks with something to do. In any number of replicas; each webhook's turn is one's.

MOST_TURNS: Final = 64
"""Of one process at once. They end in time for others, so none waits for ever."""
LONGEST_REFRESH_SECONDS: Final = 60.0

_log: Final = logging.getLogger(__name__)


class WebhookDispatcher:
    """`run` until cancelled. `kept_seconds`: how long changes are kept, within which every cursor has to move."""

    def __init__(
        self, pool: Pool, networks: Networks, settings: WebhookSettings, interval_seconds: float, kept_seconds: float
    ) -> None:
        self._pool, self._networks, self._settings = pool, networks, settings
        self._interval_seconds = interval_seconds
        self._refresh_seconds = min(LONGEST_REFRESH_SECONDS, kept_seconds / 10)
        self._turns: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        settings = self._settings
        most_connections = MOST_TURNS * settings.max_requests
        async with (
            Sender(self._networks, settings.request_timeout_seconds, most_connections) as sender,
            TaskGroup() as group,
        ):
            means = SenderDependencies(self._pool, sender, settings)
            while True:
                await self._take_leases(means, group)
                heed_cancellation()  # a wait for a connection may have swallowed it
                # Replicas that started together must not look together for ever.
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def _take_leases(self, means: SenderDependencies, group: TaskGroup) -> None:
        free = MOST_TURNS - len(self._turns)
        if not free:
            return
        asked_at = time.monotonic()
        for place in await self._take(free):
            sender_lease = group.create_task(self._run(SenderLease(means, place, asked_at), place))
            self._turns.add(sender_lease)
            sender_lease.add_done_callback(self._turns.discard)

    async def _take(self, limit: int) -> list[SenderLeaseKey]:
        parameters = {
            "limit": limit,
            "turn_seconds": self._settings.turn_seconds,
            "refresh_seconds": self._refresh_seconds,
            "most_pending": self._settings.max_pending,
        }

        async def work(connection: Connection) -> list[SenderLeaseKey]:
            return [SenderLeaseKey(*row) for row in await fetch_all(connection, WEBHOOKS.take_turns, parameters)]

        return await in_ledger_transaction(self._pool, work)

    async def _run(self, sender_lease: SenderLease, place: SenderLeaseKey) -> None:
        """One that fails is nobody else's trouble: its turn runs out, and it is tried again."""
        try:
            await sender_lease.run()
        except Exception as error:  # noqa: BLE001  whatever it was: it is logged, and the others go on
            heed_cancellation()
            metrics.count("tenure_webhook_sender_lease_failures_total")
            causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            expected = all(isinstance(one, TenureError) for one in causes)
            facts = {"webhook": place.webhook_id, "error": "; ".join(map(str, causes))}
            _log.warning("a webhook's turn failed", extra=facts, exc_info=None if expected else error)
