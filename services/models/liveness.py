"""Renews the row by which the other replicas see that this process lives, and watches the rows of the others.

A runner that did not renew in time counts as dead: the replica that gets a request for one of its calls records the
call as lost. A runner that was only slow notices this when it records the end, which is a compare-and-set. So it may go
on under the same id.

Each replica measures by its own monotonic clock how long it has seen the same renewal. So no runner counts as dead
because a clock jumped, or because no runner could renew in an outage of Postgres.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Iterable
from datetime import datetime
from time import monotonic
from typing import Final, NamedTuple, Self
from uuid import UUID

import uuid_utils.compat as uuids

from services.models.statements import QUERIES
from tenure.domain.errors import Unavailable
from tenure.runtime.service import instance_id
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.runner_row import keep_renewed, record_end

_log: Final = logging.getLogger(__name__)
_END_SECONDS: Final = 5.0


class _SeenRenewal(NamedTuple):
    """A renewal, and how long it may stay the last one of a runner that lives. `since`: when it was seen first."""

    renewed_at: datetime
    ttl_seconds: float
    since: float


class SeenRunners:
    """The renewals of all runners, as this process has seen them. `now`: monotonic seconds.

    `patience_seconds`: the longest pause between two looks that counts as time without a renewal. After a longer pause
    Postgres or this process may have stood still, so all renewals count as seen just now.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._renewals: dict[UUID, _SeenRenewal] = {}
        self._looked_at = -math.inf

    def look(self, now: float, rows: Iterable[tuple[UUID, datetime, float]]) -> None:
        """Takes the rows of all runners."""
        before = self._renewals if self._is_fresh(now) else {}
        self._renewals, self._looked_at = {}, now
        for runner_id, renewed_at, ttl_seconds in rows:
            known = before.get(runner_id)
            since = now if known is None or known.renewed_at != renewed_at else known.since
            self._renewals[runner_id] = _SeenRenewal(renewed_at, ttl_seconds, since)

    def is_alive(self, now: float, runner_id: UUID, renewed_at: datetime) -> bool:
        """Whether a runner with this last renewal lives. One that was not seen for long enough counts as alive."""
        seen = self._renewals.get(runner_id)
        if seen is None or seen.renewed_at != renewed_at or not self._is_fresh(now):
            return True
        return now - seen.since < seen.ttl_seconds

    def count_alive(self, now: float) -> int:
        """Returns the number of runners that live."""
        return sum(self.is_alive(now, runner_id, seen.renewed_at) for runner_id, seen in self._renewals.items())

    def _is_fresh(self, now: float) -> bool:
        return now - self._looked_at <= self._patience_seconds


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
        self._has_ended = False
        self._others = SeenRunners(ttl_seconds / 2)

    @property
    def runner_id(self) -> UUID:
        """The id under which calls are made. Raises Unavailable (STARTING) before the row exists."""
        if not self._address:
            raise Unavailable("the model runner is starting", reason="STARTING", retry_after_seconds=0.2)
        return self.own_id

    def is_alive(self, runner_id: UUID, renewed_at: datetime) -> bool:
        """Whether a runner whose last renewal is this one counts as alive."""
        return self._others.is_alive(monotonic(), runner_id, renewed_at)

    async def begin(self, address: str) -> None:
        """Begins the life of a process that serves at this address. Raises TryLater."""
        host = socket.gethostname()
        parameters = {"runner_id": self.own_id, "address": address, "host": host}
        async with self._kept.use() as postgres:
            await postgres.execute(QUERIES.replace_runners, parameters)
            await postgres.execute(QUERIES.renew_runner, self._row(address))
        self._address = address
        _log.info("model runner is alive", extra={"runner_id": str(self.own_id), "address": address})

    async def renew(self) -> None:
        """Renews the row and looks at the others three times in each TTL, as a duty that ends with the life."""

        async def renew() -> bool:
            async with self._kept.use() as postgres:
                if self._has_ended:  # the row is deleted, or about to be: a renewal would insert it again
                    return False
                await postgres.execute(QUERIES.renew_runner, self._row(self._address))
                rows = await (await postgres.execute(QUERIES.read_renewals)).fetchall()
            self._others.look(monotonic(), rows)
            self._on_replicas(self._others.count_alive(monotonic()))
            return True

        await keep_renewed(renew, self._ttl_seconds / 3)

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
        self._has_ended = True
        parameters = {"runner_id": self.own_id}
        await record_end(self._kept, _END_SECONDS, lambda postgres: postgres.execute(QUERIES.end_runner, parameters))
