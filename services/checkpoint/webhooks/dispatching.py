"""The duty that looks for webhooks with something to do. In any number of replicas; each webhook's turn is one's."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Final

from services.checkpoint.queries import fetch_all, in_ledger_transaction
from services.checkpoint.webhooks.reading import Place
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import Sender
from services.checkpoint.webhooks.turns import Means, Turn
from tenure.domain.errors import TenureError
from tenure.runtime import metrics
from tenure.runtime.duties import heed_cancellation, rest
from tenure.runtime.task_group import TaskGroup

if TYPE_CHECKING:
    from services.checkpoint.webhooks.settings import WebhookSettings
    from tenure.domain.addresses import Networks
    from tenure.runtime.postgres import Connection, Pool

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
            means = Means(self._pool, sender, settings)
            while True:
                await self._begin_turns(means, group)
                heed_cancellation()  # a wait for a connection may have swallowed it
                # Replicas that started together must not look together for ever.
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def _begin_turns(self, means: Means, group: TaskGroup) -> None:
        free = MOST_TURNS - len(self._turns)
        if not free:
            return
        asked_at = time.monotonic()
        for place in await self._take(free):
            turn = group.create_task(self._run(Turn(means, place, asked_at), place))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _take(self, limit: int) -> list[Place]:
        parameters = {
            "limit": limit,
            "turn_seconds": self._settings.turn_seconds,
            "refresh_seconds": self._refresh_seconds,
            "most_pending": self._settings.max_pending,
        }

        async def work(connection: Connection) -> list[Place]:
            return [Place(*row) for row in await fetch_all(connection, WEBHOOKS.take_turns, parameters)]

        return await in_ledger_transaction(self._pool, work)

    async def _run(self, turn: Turn, place: Place) -> None:
        """One that fails is nobody else's trouble: its turn runs out, and it is tried again."""
        try:
            await turn.run()
        except Exception as error:  # noqa: BLE001  whatever it was: it is logged, and the others go on
            heed_cancellation()
            metrics.count("tenure_webhook_turn_failures_total")
            causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            expected = all(isinstance(one, TenureError) for one in causes)
            facts = {"webhook": place.webhook_id, "error": "; ".join(map(str, causes))}
            _log.warning("a webhook's turn failed", extra=facts, exc_info=None if expected else error)
