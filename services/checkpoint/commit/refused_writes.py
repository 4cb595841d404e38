"""Records refused writes: who tried which method with which epoch. It runs beside the refusing path, never in it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.commit.draft import clean
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one
from tenure.domain.fencing import describe_epoch
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import resting
from tenure.runtime.store.postgres import in_transaction, pool_connection
from tenure.v1 import token_pb2
from tenure.wire.common import timestamp

if TYPE_CHECKING:
    from services.checkpoint.commit.prepared import PreparedCommit
    from tenure.domain.errors import StaleEpoch
    from tenure.runtime.store.postgres import Connection, Pool

_log: Final = logging.getLogger(__name__)
KEPT_PER_TASK: Final = 500
_WAITING: Final = 2000
_ROWS_A_WRITE: Final = 200


class _Refusal(NamedTuple):
    task_id: str
    tenant: str
    method: str
    presented: int
    current: int
    holder: str
    refused_at: str


class Refusals:
    """Refused writes that wait to be stored. Start `run` as a duty. One that does not fit is counted and stays in the
    log.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[_Refusal] = deque()
        self._there_is_work = asyncio.Event()
        self._refused = metrics.cell("tenure_stale_epoch_rejections_total", service="checkpoint")

    def note(self, method: str, task_id: str, tenant: str, holder: str, error: StaleEpoch) -> None:
        """Records a write that a fence refused."""
        presented, current = error.presented or 0, error.current or 0
        self._refused.value += 1
        _log.warning(
            "a stale write was refused",
            extra={
                "task": task_id,
                "method": method,
                "epoch": describe_epoch(presented),
                "current_epoch": describe_epoch(current),
                "holder": holder,
            },
        )
        if len(self._waiting) >= _WAITING:
            metrics.count("tenure_refusals_dropped_total")
            return
        refused_at = datetime.now(UTC).isoformat()
        refusal = _Refusal(task_id, tenant, method, presented, current, clean(holder), refused_at)
        self._waiting.append(refusal)
        self._there_is_work.set()

    def note_commit(self, commit: PreparedCommit, error: StaleEpoch) -> None:
        """Records a commit that a fence refused."""
        self.note("Commit", commit.task_id, commit.tenant, commit.holder, error)

    async def run(self) -> None:
        """Writes recorded refusals until cancelled. Rows of a failed write are written again with the next."""
        while True:
            with resting():
                await self._there_is_work.wait()
            rows = [self._waiting[index] for index in range(min(len(self._waiting), _ROWS_A_WRITE))]
            if rows:
                await self._write(rows)
                for _ in rows:
                    self._waiting.popleft()
            if not self._waiting:
                self._there_is_work.clear()

    async def _write(self, rows: list[_Refusal]) -> None:
        names = ("task_ids", "tenants", "methods", "presented", "current", "holders", "times")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

        async def work(connection: Connection) -> None:
            await connection.execute(QUERIES.record_refusals, {**columns, "kept": KEPT_PER_TASK})

        await failpoint("checkpoint.before_refusals")
        await in_transaction(self._pool, work)
        await failpoint("checkpoint.after_refusals")


async def list_refusals(pool: Pool, tenant: str, task_id: str) -> list[token_pb2.RefusedWrite]:
    """Returns a task's refused writes, newest first. Raises NotFound."""
    async with pool_connection(pool) as connection:
        if await fetch_one(connection, QUERIES.task_place, {"task_id": task_id, "tenant": tenant}) is None:
            raise await task_not_found(connection, tenant, task_id)
        rows = await fetch_all(connection, QUERIES.list_refusals, {"task_id": task_id, "limit": KEPT_PER_TASK})
    return [
        token_pb2.RefusedWrite(
            task_id=task_id,
            method=method,
            presented_epoch=presented,
            current_epoch=current,
            holder=holder,
            refuse_time=timestamp(refused_at),
        )
        for method, presented, current, holder, refused_at in rows
    ]
