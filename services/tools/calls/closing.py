"""Fence: raises a task's fence, and when it is to be closed ends everything the task has at the tools."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.tools.calls.accept import lock_fences, raise_fences
from services.tools.calls.accept_rules import admit_fence
from services.tools.calls.audit_log import RefusedCall, insert_refusals, log_refusals
from services.tools.calls.metrics import count_calls_in_doubt
from services.tools.calls.records import CallSummary, unpack_outcome
from services.tools.calls.runs import RunningCalls
from services.tools.statements import QUERIES
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.tools import CallState, EffectClass
from tenure.runtime import metrics
from tenure.runtime.failpoints import failpoint
from tenure.runtime.postgres import Connection, Pool, connection, in_transaction
from tenure.runtime.process import rest

if TYPE_CHECKING:
    from services.tools.workspace.sweep import WorkspaceSweep

_log: Final = logging.getLogger(__name__)
METHOD: Final = "Fence"


@dataclass(frozen=True, slots=True)
class ClosingTimes:
    """`wait_seconds`: how long closing waits for what it stops; what still runs then is told as STARTED."""

    wait_seconds: float = 3.0
    poll_seconds: float = 0.05
    watch_seconds: float = 0.2


class FenceCloser:
    """Raises and closes fences, and stops what runs here when another replica closed one."""

    def __init__(self, pool: Pool, runs: RunningCalls, times: ClosingTimes | None = None) -> None:
        self._pool, self._runs, self._times = pool, runs, times or ClosingTimes()

    async def fence(self, claims: Claims, task_id: UUID, *, close: bool) -> list[CallSummary]:
        """How every call of the task stands, afterwards. Repeatable. Raises StaleEpoch."""
        await self._raise_fence(claims, task_id, close=close)
        if close:
            await self._stop(claims, task_id)
        return await self._standing(task_id)

    async def end(self, claims: Claims, task_id: UUID) -> bool:
        """Close the fence likewise; whether nothing of the task runs any more. Repeatable. Raises StaleEpoch."""
        await self._raise_fence(claims, task_id, close=True)
        await self._stop(claims, task_id)
        return await self._is_settled(task_id)

    async def _raise_fence(self, claims: Claims, task_id: UUID, *, close: bool) -> None:
        await failpoint("tools.before_fence")

        async def work(postgres: Connection) -> RefusedCall | int:
            return await self._raise(postgres, claims, task_id, close=close)

        done = await in_transaction(self._pool, work)
        if isinstance(done, RefusedCall):
            log_refusals([done])
            raise StaleEpoch(presented=done.presented_epoch, current=done.current_epoch)
        count_calls_in_doubt(done)
        await failpoint("tools.after_fence")

    async def _stop(self, claims: Claims, task_id: UUID) -> None:
        self._runs.stop_task(task_id, claims.epoch)
        await self._wait_until_settled(task_id)

    async def watch(self) -> None:
        """A duty: fences closed elsewhere stop what runs here."""
        while True:
            if task_ids := self._runs.task_ids():
                async with connection(self._pool) as postgres:
                    cursor = await postgres.execute(QUERIES.closed_fences, {"task_ids": task_ids})
                    for task_id, epoch in await cursor.fetchall():
                        self._runs.stop_task(task_id, epoch)
            await rest(self._times.watch_seconds)

    async def _raise(self, postgres: Connection, claims: Claims, task_id: UUID, *, close: bool) -> RefusedCall | int:
        """In one transaction with calling off what has not started: nothing can start after it. Says how many
        calls that put in doubt.
        """
        current = (await lock_fences(postgres, {task_id: claims.tenant}))[task_id]
        fence = admit_fence(current, claims.fence, close=close)
        if isinstance(fence, StaleEpoch):
            refusal = RefusedCall.of(METHOD, task_id, claims, fence)
            await insert_refusals(postgres, [refusal])
            return refusal
        if fence != current:
            await raise_fences(postgres, {task_id: fence})
        if not close:
            return 0
        called_off = await (await postgres.execute(QUERIES.call_off, {"task_id": task_id})).fetchall()
        return sum(CallState(state) is CallState.IN_DOUBT for (state,) in called_off)

    async def _wait_until_settled(self, task_id: UUID) -> None:
        """Until nothing is STARTED any more: stopped and recorded, here or elsewhere, or its runner is dead."""
        try:
            async with asyncio.timeout(self._times.wait_seconds):
                while not await self._is_settled(task_id):  # noqa: ASYNC110  another process's doing: no event tells it
                    await asyncio.sleep(self._times.poll_seconds)
        except TimeoutError:
            _log.warning("closed a fence while a call still runs", extra={"task": str(task_id)})

    async def _is_settled(self, task_id: UUID) -> bool:
        async with connection(self._pool) as postgres:
            await failpoint("tools.before_settle")
            count_calls_in_doubt((await postgres.execute(QUERIES.settle_dead, {"task_id": task_id})).rowcount)
            await failpoint("tools.after_settle")
            row = await (await postgres.execute(QUERIES.is_any_started, {"task_id": task_id})).fetchone()
        return row is not None and not row[0]

    async def _standing(self, task_id: UUID) -> list[CallSummary]:
        async with connection(self._pool) as postgres:
            rows = await (await postgres.execute(QUERIES.task_calls, {"task_id": task_id})).fetchall()
        return [_standing(row) for row in rows]


def _standing(row: tuple[Any, ...]) -> CallSummary:
    return CallSummary(
        call_id=row[0],
        tool=row[1],
        effect_class=EffectClass(row[2]),
        state=CallState(row[3]),
        call_attempt=row[4],
        epoch=row[5],
        outcome=None if row[6] is None else unpack_outcome(row[6]),
        started_at=row[7],
    )


# Forget: what the tools have of a task that the ledger has pruned goes. All but its fence.

CALLS_A_BATCH: Final = 200


class CallForgetter:
    """Repeatable at every point: what is half done is done again, by whatever replica is asked."""

    def __init__(self, pool: Pool, closing: FenceCloser, workspaces: WorkspaceSweep) -> None:
        self._pool, self._closing, self._workspaces = pool, closing, workspaces

    async def forget(self, claims: Claims, task_id: UUID) -> None:
        """Raises StaleEpoch, and Unavailable (CALL_STILL_RUNS) while something of the task runs."""
        if not await self._closing.end(claims, task_id):
            raise Unavailable("a call of this task still runs", reason="CALL_STILL_RUNS", retry_after_seconds=5.0)
        await failpoint("tools.before_forget")
        # Marked first: a stale caller leaves no trail from then on, so that nothing comes after what is deleted.
        async with connection(self._pool) as postgres:
            await postgres.execute(QUERIES.forget_task, {"task_id": task_id})
            await postgres.execute(QUERIES.forget_refusals, {"task_id": task_id})
        while await self._forget_calls(task_id) == CALLS_A_BATCH:
            pass
        await failpoint("tools.after_forget")
        metrics.count("tenure_forgotten_tasks_total")
        self._workspaces.hand_in(claims.tenant, str(task_id))

    async def _forget_calls(self, task_id: UUID) -> int:
        """A bounded number; how many went."""
        async with connection(self._pool) as postgres:
            cursor = await postgres.execute(QUERIES.forget_calls, {"task_id": task_id, "limit": CALLS_A_BATCH})
            return cursor.rowcount
