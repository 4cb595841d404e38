"""The connection that writes batches of commits, and the handling of its failures.

A connection lost during a commit leaves the outcome unknown. The batcher then runs the same batch again on a new
connection, and the ledger recognises commits that were already durable as repeats. The service acknowledges nothing
that Postgres has not committed.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.queries import QUERIES, SCHEMA, SESSION_SETTINGS
from tenure.domain.errors import InvalidRequest, StaleEpoch, TenureError, Unavailable
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress, rest
from tenure.runtime.rpc.status import LOCK_TIMEOUT
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from services.checkpoint.commit.prepared import PreparedCommit
    from services.checkpoint.prices import PriceList
    from services.checkpoint.tenants.quotas import LimitedTenants
    from services.checkpoint.watch.announcement import Announcement
    from tenure.runtime.settings import Secret
    from tenure.runtime.store.batching import Write
    from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
LOCK_TIMEOUT_SECONDS: Final = 2.0
"""Other transactions hold a task's lock for milliseconds; one that holds it longer must not delay the batches."""
ALONE_SECONDS: Final = 0.1
"""The lock timeout of a commit that is written alone. It shrinks when a batch has waited MAX_ALONE_SECONDS."""
MAX_ALONE_SECONDS: Final = 0.5
MIN_ALONE_SECONDS: Final = 0.005
KEPT_SECONDS: Final = 30.0
"""How long a task is written alone after another transaction kept its lock: the owner repeats the commit."""
NOT_RETRIED: Final = frozenset({LOCK_TIMEOUT, "STORAGE_FULL", "READ_ONLY", "TOO_MANY_CONNECTIONS"})
"""Reasons that an immediate retry would not change, whatever the batch has; it would only delay the next batches."""
FAILING_SECONDS: Final = 5.0
"""After so long without a successful write the replica reports that it does not serve."""
FORGOTTEN_SECONDS: Final = 15.0
"""A replica without commits serves again: only a commit can show whether it works."""
# Short patience: the worker can repeat a refused commit itself.
LIMITS: Final = BatchLimits(patience_seconds=2.0, full_reason="COMMIT_QUEUE_FULL")


def commit_batcher(
    write: Write[PreparedCommit, pb.CommitResponse], limits: BatchLimits = LIMITS
) -> Batcher[PreparedCommit, pb.CommitResponse]:
    """Returns a batcher that has commits written together by `LedgerCommitter.write`, never two of one task."""
    return Batcher("commits", write, key=attrgetter("task_id"), size=attrgetter("size_bytes"), limits=limits)


class LedgerCommitter:
    """Commits batches, one after another, on a connection of its own. Close it at the end.

    `on_stale` receives every commit that a fence refused.
    """

    def __init__(
        self,
        dsn: str | Secret,
        announce: Callable[[Announcement], None],
        on_stale: Callable[[PreparedCommit, StaleEpoch], None],
        prices: PriceList,
        limited: LimitedTenants | None = None,
        max_ledger_bytes: int = 0,
        in_session: tuple[tuple[str, str], ...] = SESSION_SETTINGS,
    ) -> None:
        self._postgres = DedicatedConnection(
            dsn,
            service="checkpoint-commits",
            schema=SCHEMA,
            options=PoolOptions(lock_timeout_seconds=LOCK_TIMEOUT_SECONDS, settings=in_session),
            keep_after_errors=True,  # a refused commit is not a reason to prepare all statements again
        )
        self._announce = announce
        self._on_stale = on_stale
        self._prices = prices
        self._limited = limited
        self._max_ledger_bytes = max_ledger_bytes
        self._kept_locks = _KeptLocks()
        self._failing_since, self._failed_at = 0.0, 0.0

    @property
    def failing_seconds(self) -> float:
        """For how long every write has failed. 0: the newest one succeeded, or there was no write lately."""
        now = monotonic()
        if not self._failing_since or now - self._failed_at > FORGOTTEN_SECONDS:
            return 0.0
        return now - self._failing_since

    async def __aenter__(self) -> Self:
        await self._postgres.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._postgres.close()

    async def write(self, commits: Sequence[PreparedCommit]) -> list[pb.CommitResponse | TenureError]:
        """Writes a batch and returns the results in order.

        Raises TryLater when the batch may run again, InvalidRequest for a text that Postgres cannot store.
        """
        results = await self._write_all(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, StaleEpoch):
                self._on_stale(commit, result)
        return results

    async def _write_all(self, commits: Sequence[PreparedCommit]) -> list[pb.CommitResponse | TenureError]:
        """Writes commits together. A task whose lock another transaction keeps is written alone, so that no other
        commit waits.
        """
        together = [commit for commit in commits if not self._kept_locks.has(commit.task_id)]
        results = dict(zip((commit.task_id for commit in together), await self._attempt(together), strict=True))
        waited_seconds = 0.0
        for commit in commits:
            if commit.task_id in results and not _is_lock_timeout(results[commit.task_id]):
                continue
            lock_seconds = min(ALONE_SECONDS, max(MIN_ALONE_SECONDS, MAX_ALONE_SECONDS - waited_seconds))
            [result] = await self._attempt([commit], lock_seconds=lock_seconds)
            is_kept = _is_lock_timeout(result)
            self._kept_locks.note(commit.task_id, is_kept=is_kept)
            waited_seconds += lock_seconds if is_kept else 0.0
            results[commit.task_id] = result
        return [results[commit.task_id] for commit in commits]

    async def _attempt(
        self, commits: Sequence[PreparedCommit], *, lock_seconds: float | None = None
    ) -> list[pb.CommitResponse | TenureError]:
        """Runs one transaction; a refusal of the whole becomes the result of each commit. Raises as `write` does."""
        if not commits:
            return []
        try:
            results = await self._once(commits, lock_seconds)
        except Exception as error:
            if not isinstance(error, InvalidRequest) and getattr(error, "reason", "") != LOCK_TIMEOUT:
                is_first = not self.failing_seconds
                self._failed_at = monotonic()
                self._failing_since = self._failed_at if is_first else self._failing_since
            if not isinstance(error, Unavailable) or error.reason not in NOT_RETRIED:
                raise
            if error.reason == "READ_ONLY":  # the server is a standby now: the next connection may reach the primary
                await self._postgres.close()
            return [error for _ in commits]
        self._failing_since = 0.0
        return results

    async def _once(
        self, commits: Sequence[PreparedCommit], lock_seconds: float | None
    ) -> list[pb.CommitResponse | TenureError]:
        async with self._postgres.transaction() as transaction:
            await failpoint("checkpoint.before_commit")
            if lock_seconds is not None:
                await transaction.execute(QUERIES.lock_timeout, {"lock_timeout": f"{round(lock_seconds * 1000)}ms"})
            results, announcement = await commit_batch(
                transaction, commits, self._prices, self._limited, self._max_ledger_bytes
            )
        self._announce(announcement)
        await failpoint("checkpoint.after_commit")
        return results


async def report_health(committer: LedgerCommitter, set_serving: Callable[[bool], Awaitable[None]]) -> None:
    """Reports NOT_SERVING while every commit of some seconds failed. A duty."""
    while True:
        note_progress()
        serving = committer.failing_seconds < FAILING_SECONDS
        if not serving:
            _log.warning("every commit fails", extra={"seconds": round(committer.failing_seconds, 1)})
        await set_serving(serving)
        await rest(1.0)


class _KeptLocks:
    """Tasks whose lock another transaction recently kept for too long."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def has(self, task_id: str) -> bool:
        return self._until.get(task_id, 0.0) > monotonic()

    def note(self, task_id: str, *, is_kept: bool) -> None:
        now = monotonic()
        self._until = {one: until for one, until in self._until.items() if until > now and one != task_id}
        if is_kept:
            self._until[task_id] = now + KEPT_SECONDS


def _is_lock_timeout(result: pb.CommitResponse | TenureError) -> bool:
    return isinstance(result, Unavailable) and result.reason == LOCK_TIMEOUT
