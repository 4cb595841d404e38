"""The life of this process, as all replicas see it: a row that it renews, timed by the database's clock.

A runner that did not renew in time counts as dead: whoever is asked for one of its calls records the call as lost. A
runner that was only slow notices when it records the end: compare-and-set. So it may go on under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Self
from uuid import UUID

import uuid_utils.compat as uuids

from services.models.statements import QUERIES
from tenure.domain.errors import TryLater, Unavailable
from tenure.runtime.dedicated_connection import DedicatedConnection
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress
from tenure.runtime.service import instance_id

_log: Final = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0


class RunnerLife:
    """The runner row of this process. The connection is used for nothing else, so that load does not delay renewals.

    `on_replicas`: takes the number of living runners with each renewal.
    """

    def __init__(
        self, kept: DedicatedConnection, ttl_seconds: float, on_replicas: Callable[[int], None] = lambda _count: None
    ) -> None:
        self.own_id: UUID = uuids.uuid7()
        self._kept, self._ttl_seconds, self._on_replicas = kept, ttl_seconds, on_replicas
        self._address = ""

    @property
    def runner_id(self) -> UUID:
        """The id under which calls are made. Raises Unavailable (STARTING) before the row exists."""
        if not self._address:
            raise Unavailable("the model runner is starting", reason="STARTING", retry_after_seconds=0.2)
        return self.own_id

    async def begin(self, address: str) -> None:
        """Begins the life of a process that serves at this address. Raises TryLater."""
        host = socket.gethostname()
        parameters = {"runner_id": self.own_id, "address": address, "host": host}
        async with self._kept.use() as postgres:
            await postgres.execute(QUERIES.replace_runners, parameters)
            await postgres.execute(QUERIES.renew_runner, self._row(address))
            await postgres.execute(QUERIES.forget_runners)
        self._address = address
        _log.info("model runner is alive", extra={"runner_id": str(self.own_id), "address": address})

    async def renew(self) -> None:
        """Renews the row three times in each TTL, as a duty."""
        while True:
            note_progress()
            await failpoint("models.before_renewal")
            try:
                async with self._kept.use() as postgres:
                    await postgres.execute(QUERIES.renew_runner, self._row(self._address))
                    counted = await (await postgres.execute(QUERIES.count_runners)).fetchone()
                self._on_replicas(counted[0] if counted else 1)
            except TryLater as error:
                _log.warning("could not renew this model runner: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                await asyncio.sleep(self._ttl_seconds / 3)

    def _row(self, address: str) -> dict[str, object]:
        return {
            "runner_id": self.own_id,
            "instance": instance_id(),
            "host": socket.gethostname(),
            "address": address,
            "ttl_seconds": self._ttl_seconds,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Deletes the row, if the database answers."""
        try:
            async with asyncio.timeout(_END_SECONDS), self._kept.use() as postgres:
                await postgres.execute(QUERIES.end_runner, {"runner_id": self.own_id})
        except (TryLater, TimeoutError) as error:
            _log.warning("could not delete the row of this model runner, so it counts until its TTL: %s", error)
