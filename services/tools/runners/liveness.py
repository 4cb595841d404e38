"""The life of this runner, as all replicas see it: a row that the runner renews, timed by the database's clock.

The other replicas declare a runner dead that did not renew in time: its calls run again elsewhere, or are in doubt. So
the runner must have stopped by then. Its trust window counts from the moment at which it sent the last answered
renewal, and ends before the row expires. When the window closes, the life is over: the runner stops its effects, and
the process goes on under a new runner id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final, Self
from uuid import UUID

import uuid_utils.compat as uuids

from services.tools.runners.identity import ProcessIdentity
from services.tools.runners.proof import FormerLives, prove_former
from services.tools.statements import QUERIES
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import DEFAULT_MARGIN_SECONDS, TrustWindow
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.runner_row import AGAIN_SECONDS, keep_renewed, record_end

_log: Final = logging.getLogger(__name__)
_NOT_KNOWN: Final = ProcessIdentity(machine_id="", boot_id="", namespaces="", pid=0, start_ticks=0)


@dataclass(frozen=True, slots=True)
class LivenessTimes:
    """The times of a runner's life.

    `ttl_seconds`: how long a renewal lasts. `margin_seconds`: how much earlier the trust window closes.
    """

    ttl_seconds: float = 5.0
    interval_seconds: float = 1.5
    margin_seconds: float = DEFAULT_MARGIN_SECONDS


@dataclass(frozen=True, slots=True)
class RunnerName:
    """The name of the process in its runner rows. `identity` None: no other process can prove that this one is dead."""

    instance: str
    identity: ProcessIdentity | None = None


class Liveness:
    """The lives of this process, one after another.

    `on_lapse` stops the running calls when a life ends. `former` gets the ids of ended lives. The connection is used
    for nothing else: a life must not end because requests wait for connections, as when many tasks end at once.
    """

    def __init__(
        self,
        kept: DedicatedConnection,
        who: RunnerName,
        times: LivenessTimes,
        former: FormerLives,
        on_lapse: Callable[[], Awaitable[None]],
    ) -> None:
        self._kept, self._who, self._times = kept, who, times
        self._former, self._on_lapse = former, on_lapse
        self._runner_id: UUID | None = None
        self._former_id: UUID | None = None
        self._window = TrustWindow(float("-inf"), times.ttl_seconds, times.margin_seconds)

    @property
    def runner_id(self) -> UUID:
        """The id under which calls are accepted and started. Raises Unavailable (RUNNER_LAPSED) between two lives."""
        if self._runner_id is None or not self.trusts(self._runner_id):
            raise Unavailable(
                "this runner could not renew its row in the database; retry until it has a new life",
                reason="RUNNER_LAPSED",
                retry_after_seconds=0.5,
            )
        return self._runner_id

    def trusts(self, runner_id: UUID) -> bool:
        """Whether an effect may begin under this id now."""
        return runner_id == self._runner_id and self._window.is_open(_now())

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the life in the database, and records the proofs about this process's lives, if the database answers."""
        runner_id, self._runner_id = self._runner_id, None
        if runner_id is not None:
            self._former.add(runner_id)

        async def end(postgres: Connection) -> None:
            if runner_id is not None:
                await postgres.execute(QUERIES.end_life, {"runner_id": runner_id})
            await prove_former(postgres, self._former)

        await record_end(self._kept, self._times.interval_seconds, end)

    async def renew(self) -> None:
        """Renews this life, or begins a new life after a lapse, as a duty."""

        async def renew() -> bool:
            await (self._begin() if self._runner_id is None else self._renew(self._runner_id))
            return True

        await keep_renewed(renew, self._times.interval_seconds)

    async def watch(self) -> None:
        """Ends the life at the moment its trust window closes, as a duty of its own: a renewal may hang."""
        while True:
            runner_id, left_seconds = self._runner_id, self._window.ends_at - _now()
            if runner_id is None:
                await rest(AGAIN_SECONDS)
            elif left_seconds > 0:
                await rest(left_seconds)
            else:
                await self._lapse(runner_id)

    async def _begin(self) -> None:
        runner_id, sent_at = uuids.uuid7(), _now()
        parameters = {
            "runner_id": runner_id,
            "former_id": self._former_id or runner_id,
            "instance": self._who.instance,
            "ttl_seconds": self._times.ttl_seconds,
            **asdict(self._who.identity or _NOT_KNOWN),
        }
        await failpoint("tools.before_life")
        async with self._kept.use() as postgres:
            await postgres.execute(QUERIES.begin_life, parameters)
            await postgres.execute(QUERIES.forget_runners)
        await failpoint("tools.after_life")
        self._runner_id, self._former_id = runner_id, runner_id
        self._window = TrustWindow(sent_at, self._times.ttl_seconds, self._times.margin_seconds)
        _log.info("runner is alive", extra={"runner_id": str(runner_id), "instance": self._who.instance})

    async def _renew(self, runner_id: UUID) -> None:
        sent_at = _now()
        await failpoint("tools.before_renewal")
        async with self._kept.use() as postgres:
            cursor = await postgres.execute(QUERIES.renew_life, {"runner_id": runner_id})
            renewed = await cursor.fetchone() is not None
        await failpoint("tools.after_renewal")
        if not renewed:
            await self._lapse(runner_id)
        elif runner_id == self._runner_id:  # the life may have lapsed during the renewal
            self._window = self._window.renewed(sent_at)

    async def _lapse(self, runner_id: UUID) -> None:
        if runner_id != self._runner_id:
            return
        self._runner_id = None
        self._former.add(runner_id)
        metrics.count("tenure_runner_lapses_total")
        _log.error("this runner could not renew in time: it stops what it runs", extra={"runner_id": str(runner_id)})
        await self._on_lapse()


def _now() -> float:
    return asyncio.get_running_loop().time()
