"""The one place that chooses where a read runs: at a hot standby of Postgres, or at the primary.

How old the standby's data is follows from positions in the log, not from clocks. A duty notes where the primary's log
ends, and what the standby has applied. The standby has everything that the primary had at the newest noted moment whose
end of the log it has applied. That moment is the `as_of` of its answers. Positions are compared only within one
timeline: after a promotion or a restore, a standby that was left behind may have a longer log with other writes.

Two kinds of reads use it: lists of tasks, which may be stale and state their age, and pages of entries, which it must
have up to a sequence that the primary named. Whatever decides or authorizes reads the primary.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import psycopg

from services.checkpoint.entries import PAGE_BYTES, PAGE_ENTRIES, read_page
from services.checkpoint.queries import QUERIES, SCHEMA, fetch_one
from tenure.domain.errors import TryLater
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.settings import Secret, setting
from tenure.runtime.store.postgres import Connection, Pool, PoolOptions, open_pool, pool_connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import ledger_pb2

PREFIX: Final = "TENURE_CHECKPOINT_STANDBY_"
STATEMENTS: Final = Queries.load("services.checkpoint", "sql/standby.sql")
LOOK_SECONDS: Final = 0.25
CONNECT_AGAIN_SECONDS: Final = 15.0
CATCH_UP_ENTRIES: Final = 20
"""Fewer new entries are read at the primary: a stream that keeps up is ahead of every standby."""
_NOTED_MOMENTS: Final = 20_000

_Result = TypeVar("_Result")
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StandbySettings:
    """TENURE_CHECKPOINT_STANDBY_…"""

    dsn: Secret = setting("a hot standby of the ledger's database, for reads; empty: none", default=Secret(""))
    max_lag_seconds: float = setting(
        "a standby whose data is older is not used", default=5.0, minimum=0.5, maximum=3600
    )
    pool_size: int = setting("most connections to the standby", default=8, minimum=1, maximum=200)


class _Moment(NamedTuple):
    """The end of the primary's log at a time, by the primary's clock and by this process's monotonic clock."""

    position: int
    at: datetime
    monotonic: float


class _Log(NamedTuple):
    """The log that a position is in. A promotion begins another timeline: its positions say nothing about the former
    one, which may go on elsewhere with writes that the new primary never had.
    """

    cluster: int
    timeline: int


class Standby:
    """The standby as one process sees it. `run` is its duty, without which it is never used."""

    def __init__(self, settings: StandbySettings, primary: Pool, session: tuple[tuple[str, str], ...]) -> None:
        self._settings, self._primary = settings, primary
        self._options = PoolOptions(
            min_size=1,
            max_size=settings.pool_size,
            acquire_timeout_seconds=1.0,
            start_timeout_seconds=5.0,
            settings=session,
        )
        self._moments: deque[_Moment] = deque(maxlen=_NOTED_MOMENTS)
        self._applied: _Moment | None = None
        self._pool: Pool | None = None
        self._log: _Log | None = None
        self._refusal = ""

    def usable(self) -> tuple[Pool, datetime] | None:
        """Returns its pool and the moment of its data, or None while it is away or its data is too old."""
        applied = self._applied
        if self._pool is None or applied is None:
            return None
        if time.monotonic() - applied.monotonic > self._settings.max_lag_seconds:
            return None
        return self._pool, applied.at

    async def run(self) -> None:
        """Connects to it, again after each failure, and follows how far it is. While it is away, reads do without."""
        with metrics.on_sample(self._sample):
            while True:
                try:
                    await self._connect()
                except TryLater as error:
                    self._refuse(f"it does not answer: {error}")
                finally:
                    self._pool = self._applied = None
                note_progress()
                await rest(CONNECT_AGAIN_SECONDS)

    async def _connect(self) -> None:
        """Follows it until it does not answer. Raises TryLater."""
        dsn, options = self._settings.dsn, self._options
        async with open_pool(dsn, service="checkpoint-standby", schema=SCHEMA, options=options) as pool:
            self._pool = pool
            while True:
                await self._note_primary()
                await self._note_standby(pool)
                note_progress()
                await rest(LOOK_SECONDS)

    async def _note_primary(self) -> None:
        """Notes the end of the primary's log. While the primary is away, the standby's data only grows older."""
        began = time.monotonic()
        try:
            async with pool_connection(self._primary) as connection:
                row = await fetch_one(connection, STATEMENTS.primary_position, {})
        except TryLater as error:
            _log.warning("the primary does not say where its log ends", extra={"error": str(error)})
            return
        assert row is not None
        position, at, *log = row
        if self._log != (now := _Log(*log)):
            self._log, self._applied = now, None
            self._moments.clear()
        self._moments.append(_Moment(position, at, began))

    async def _note_standby(self, pool: Pool) -> None:
        async with pool_connection(pool) as connection:
            row = await fetch_one(connection, STATEMENTS.standby_position, {})
        assert row is not None
        applied_position, *log = row
        if problem := self._problem(applied_position, _Log(*log)):
            self._applied = None
            self._refuse(problem)
            return
        while self._moments and self._moments[0].position <= applied_position:
            self._applied = self._moments.popleft()
            self._refusal = ""

    def _problem(self, applied_position: int | None, log: _Log) -> str:
        """Returns why positions of the server cannot be compared with those of the primary; "": they can."""
        if applied_position is None or self._log is None or log.cluster != self._log.cluster:
            return f"{PREFIX}DSN names a server that is not a standby of the ledger's database"
        if log.timeline != self._log.timeline:
            return (
                f"it is on timeline {log.timeline}, and the primary is on {self._log.timeline}: it is used once it has "
                "a restart point of the primary's timeline; if it cannot follow the primary, make it anew"
            )
        return ""

    def _refuse(self, reason: str) -> None:
        """Logs once why it is not used."""
        if reason != self._refusal:
            _log.warning("the standby is not used, so all reads go to the primary", extra={"reason": reason})
        self._refusal = reason

    def _sample(self) -> None:
        metrics.gauge("tenure_standby_usable", int(self.usable() is not None))
        if self._applied is not None:
            metrics.gauge("tenure_standby_lag_seconds", time.monotonic() - self._applied.monotonic)


class LedgerReads:
    """Runs reads at the standby if there is one that is fresh enough, and else at the primary."""

    def __init__(self, primary: Pool, standby: Standby | None = None) -> None:
        self.primary = primary
        self._standby = standby

    async def stale(
        self, work: Callable[[Connection], Awaitable[_Result]], *, fresh: bool = False
    ) -> tuple[_Result, datetime | None]:
        """Runs a read that may be stale. Returns its result, and the moment of its data; None: it is not stale.

        `fresh`: it must not be stale.
        """
        usable = None if fresh or self._standby is None else self._standby.usable()
        if usable is not None:
            pool, as_of = usable
            try:
                async with pool_connection(pool) as connection:
                    result = await work(connection)
            except (TryLater, psycopg.ProgrammingError) as error:  # the latter: a migration has not arrived there
                self._give_up("list", error)
            else:
                metrics.count("tenure_standby_reads_total", kind="list", source="standby")
                return result, as_of
        async with pool_connection(self.primary) as connection:
            return await work(connection), None

    def may_catch_up(self, new_entries: int) -> bool:
        """Whether so many new entries of a task are worth a look at the standby."""
        return self._standby is not None and new_entries >= CATCH_UP_ENTRIES and self._standby.usable() is not None

    async def page(
        self,
        tenant: str,
        task_id: str,
        *,
        after: int,
        until: int,
        page_size: int = PAGE_ENTRIES,
        page_bytes: int = PAGE_BYTES,
        kinds: Sequence[str] = (),
    ) -> list[ledger_pb2.Entry]:
        """Reads a page of entries at the standby if it has the task up to the sequence `until`, else at the primary."""
        limits: dict[str, Any] = {"after": after, "until": until, "kinds": kinds}
        limits |= {"page_size": page_size, "page_bytes": page_bytes}
        usable = None if self._standby is None else self._standby.usable()
        if usable is not None:
            try:
                async with pool_connection(usable[0]) as connection:
                    place = await fetch_one(connection, QUERIES.task_place, {"task_id": task_id, "tenant": tenant})
                    if place is not None and place[0] >= until:
                        metrics.count("tenure_standby_reads_total", kind="entries", source="standby")
                        return await read_page(connection, task_id, **limits)
            except (TryLater, psycopg.ProgrammingError) as error:
                self._give_up("entries", error)
        async with pool_connection(self.primary) as connection:
            return await read_page(connection, task_id, **limits)

    def _give_up(self, kind: str, error: Exception) -> None:
        metrics.count("tenure_standby_reads_total", kind=kind, source="primary")
        _log.warning("a read of the standby failed and is repeated at the primary", extra={"error": str(error)})
