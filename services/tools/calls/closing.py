"""Fence: raises a task's fence, and with `close` ends all calls and resources that the task has at the tool service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.tools.calls.accept import lock_fences, locked_calls, raise_fences, send_call_query
from services.tools.calls.accept_rules import ToolFenceRow, admit, admit_fence
from services.tools.calls.bounds import forget_counted_calls
from services.tools.calls.call_log import RefusedCall, insert_refusals, log_refusals
from services.tools.calls.effect_keys import forget_effects, free_undone_effects, undone_by
from services.tools.calls.metrics import count_calls_in_doubt
from services.tools.calls.records import CallKey, CallRow, CallSummary, pack_outcome, unpack_outcome
from services.tools.calls.runs import RunningCalls
from services.tools.statements import QUERIES
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import ResolvedCall, SettledByResolution, apply_resolution, outcome_in_doubt, was_not_made
from tenure.domain.repeated_effects import NOT_RUN
from tenure.domain.tools import CallState, EffectClass, Outcome, bounded
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection

if TYPE_CHECKING:
    from services.tools.workspace.sweep import WorkspaceSweep

_log: Final = logging.getLogger(__name__)
METHOD: Final = "Fence"


@dataclass(frozen=True, slots=True)
class ClosingTimes:
    """`wait_seconds`: the wait for stopped calls to end; calls that still run then are returned as STARTED.

    `poll_seconds`: between two looks at their records. `watch_seconds`: between two looks for fences closed elsewhere.
    """

    wait_seconds: float = 3.0
    poll_seconds: float = 0.05
    watch_seconds: float = 0.2


class FenceCloser:
    """Raises and closes fences. Stops this process's calls of tasks whose fence another replica closed."""

    def __init__(self, pool: Pool, runs: RunningCalls, times: ClosingTimes | None = None) -> None:
        self._pool, self._runs, self._times = pool, runs, times or ClosingTimes()

    async def fence(
        self, claims: Claims, task_id: UUID, *, close: bool, resolved: Sequence[ResolvedCall] = ()
    ) -> list[CallSummary]:
        """Raises the fence, and with `close` ends the task's calls. Returns all call records of the task afterwards.

        `resolved`: calls in doubt that a person has resolved. A repeat is safe. Raises StaleEpoch.
        """
        await self._raise_fence(claims, task_id, close=close, resolved=resolved)
        if close:
            await self._stop(claims, task_id)
        return await self._summaries(task_id)

    async def check(self, claims: Claims, task_id: UUID) -> None:
        """Raises StaleEpoch for a claim whose calls the fence refuses. A newer claim does not raise the fence."""
        async with pool_connection(self._pool) as postgres:
            parameters = {"task_id": task_id, "tenant": claims.tenant}
            row = await (await postgres.execute(QUERIES.read_fence, parameters)).fetchone()
        if row is not None:
            epoch, claim_id, closed, *_ = row
            admitted = admit(ToolFenceRow(Fence(epoch, claim_id), closed=closed), claims.fence)
            if isinstance(admitted, StaleEpoch):
                raise admitted

    async def end(self, claims: Claims, task_id: UUID) -> bool:
        """Closes the fence and returns whether no call of the task runs any more.

        A repeat is safe. Raises StaleEpoch.
        """
        await self._raise_fence(claims, task_id, close=True)
        await self._stop(claims, task_id)
        return await self._is_settled(task_id)

    async def _raise_fence(
        self, claims: Claims, task_id: UUID, *, close: bool, resolved: Sequence[ResolvedCall] = ()
    ) -> None:
        await failpoint("tools.before_fence")

        async def work(postgres: Connection) -> RefusedCall | int:
            result = await self._raise(postgres, claims, task_id, close=close)
            if close and resolved and not isinstance(result, RefusedCall):
                await _conclude_resolved(postgres, claims, task_id, resolved)
            return result

        result = await in_transaction(self._pool, work)
        if isinstance(result, RefusedCall):
            log_refusals([result])
            raise StaleEpoch(presented=result.presented_epoch, current=result.current_epoch)
        count_calls_in_doubt(result)
        await failpoint("tools.after_fence")

    async def _stop(self, claims: Claims, task_id: UUID) -> None:
        self._runs.stop_task(task_id, claims.epoch)
        await self._wait_until_settled(task_id)

    async def watch(self) -> None:
        """Stops the calls of tasks whose fence another replica closed, as a duty."""
        while True:
            if task_ids := self._runs.task_ids():
                async with pool_connection(self._pool) as postgres:
                    cursor = await postgres.execute(QUERIES.closed_fences, {"task_ids": task_ids})
                    for task_id, epoch in await cursor.fetchall():
                        self._runs.stop_task(task_id, epoch)
            await rest(self._times.watch_seconds)

    async def _raise(self, postgres: Connection, claims: Claims, task_id: UUID, *, close: bool) -> RefusedCall | int:
        """Raises the fence, and with `close` calls off the calls that have not started, in one transaction.

        No call of the task can start after a close. Returns the number of calls that the close put in doubt, or the
        refusal.
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
        """Waits until no call is STARTED: each was stopped and recorded, here or elsewhere, or its runner is dead."""
        try:
            async with asyncio.timeout(self._times.wait_seconds):
                while not await self._is_settled(task_id):  # noqa: ASYNC110  other processes end the calls: no event here
                    await asyncio.sleep(self._times.poll_seconds)
        except TimeoutError:
            _log.warning(
                "closed a fence, but a call of the task still ran after %g s",
                self._times.wait_seconds,
                extra={"task": str(task_id)},
            )

    async def _is_settled(self, task_id: UUID) -> bool:
        async with pool_connection(self._pool) as postgres:
            await failpoint("tools.before_settle")
            count_calls_in_doubt((await postgres.execute(QUERIES.settle_dead, {"task_id": task_id})).rowcount)
            await failpoint("tools.after_settle")
            row = await (await postgres.execute(QUERIES.is_any_started, {"task_id": task_id})).fetchone()
        return row is not None and not row[0]

    async def _summaries(self, task_id: UUID) -> list[CallSummary]:
        async with pool_connection(self._pool) as postgres:
            rows = await (await postgres.execute(QUERIES.task_calls, {"task_id": task_id})).fetchall()
        return [_summary(row) for row in rows]


async def _conclude_resolved(
    postgres: Connection, claims: Claims, task_id: UUID, resolved: Sequence[ResolvedCall]
) -> None:
    """Ends calls in doubt as a person resolved them, under the lock of their task's fence. None runs again."""
    words = {CallKey(task_id, one.call_id): one for one in resolved}
    rows = await locked_calls(await send_call_query(postgres, list(words)))
    in_doubt = {key: row for key, row in rows.items() if row.state is CallState.IN_DOUBT}
    outcomes = {
        key: outcome for key, row in in_doubt.items() if (outcome := _resolved_outcome(row, words[key])) is not None
    }
    if not outcomes:
        return
    columns: dict[str, object] = {
        "task_ids": [key.task_id for key in outcomes],
        "call_ids": [key.call_id for key in outcomes],
        "states": [CallState.FINISHED.value] * len(outcomes),
        "attempts": [outcome.call_attempt for outcome in outcomes.values()],
        "epochs": [claims.epoch] * len(outcomes),
        "claim_ids": [claims.claim_id] * len(outcomes),
        "acts_elsewhere": [False] * len(outcomes),
        "outcomes": [pack_outcome(outcome) for outcome in outcomes.values()],
        "doubt_notes": [""] * len(outcomes),
        "settled": [False] * len(outcomes),
    }
    await postgres.execute(QUERIES.change_calls, {**columns, "runner_id": None, "not_run": NOT_RUN})
    undone = [(key, undone_by(words[key], outcome)) for key, outcome in outcomes.items()]
    await free_undone_effects(postgres, [(key, call) for key, call in undone if call])


def _resolved_outcome(row: CallRow, word: ResolvedCall) -> Outcome | None:
    applied = apply_resolution(word.resolution, row.call_attempt, runner_gone=row.runner_gone)
    if not isinstance(applied, SettledByResolution):
        return None
    outcome = replace(applied.outcome, no_effect=was_not_made(row.doubt_note))
    return bounded(outcome, word.output_limit_bytes) if word.output_limit_bytes else outcome


def _summary(row: tuple[Any, ...]) -> CallSummary:
    outcome = None if row[6] is None else unpack_outcome(row[6])
    if CallState(row[3]) is CallState.IN_DOUBT and was_not_made(row[9]):
        outcome = outcome_in_doubt(row[4], row[9])
    return CallSummary(
        call_id=row[0],
        tool=row[1],
        effect_class=EffectClass(row[2]),
        state=CallState(row[3]),
        call_attempt=row[4],
        epoch=row[5],
        outcome=outcome,
        started_at=row[7],
    )


# Forget: deletes the records and files of a task that the ledger has pruned, but not its fence.

CALLS_A_BATCH: Final = 200


class CallForgetter:
    """Deletes the data of pruned tasks. A repeat at any replica continues a Forget that was broken off."""

    def __init__(self, pool: Pool, closing: FenceCloser, workspaces: WorkspaceSweep) -> None:
        self._pool, self._closing, self._workspaces = pool, closing, workspaces

    async def forget(self, claims: Claims, task_id: UUID) -> None:
        """Closes the fence and deletes refusals and call records; the workspace sweep deletes the files.

        Raises StaleEpoch, and Unavailable (CALL_STILL_RUNS) while a call of the task runs.
        """
        if not await self._closing.end(claims, task_id):
            raise Unavailable("a call of this task still runs", reason="CALL_STILL_RUNS", retry_after_seconds=5.0)
        await failpoint("tools.before_forget")
        # The mark comes first: from then on refusals of stale callers are not stored, so none comes after the deletion.
        async with pool_connection(self._pool) as postgres:
            await postgres.execute(QUERIES.forget_task, {"task_id": task_id})
            await postgres.execute(QUERIES.forget_refusals, {"task_id": task_id})
        await in_transaction(self._pool, partial(forget_effects, task_id=task_id))
        await in_transaction(self._pool, partial(forget_counted_calls, task_id=task_id))
        while await self._forget_calls(task_id) == CALLS_A_BATCH:
            pass
        await failpoint("tools.after_forget")
        metrics.count("tenure_forgotten_tasks_total")
        self._workspaces.enqueue(claims.tenant, str(task_id))

    async def _forget_calls(self, task_id: UUID) -> int:
        """Deletes at most CALLS_A_BATCH records and returns how many."""
        async with pool_connection(self._pool) as postgres:
            cursor = await postgres.execute(QUERIES.forget_calls, {"task_id": task_id, "limit": CALLS_A_BATCH})
            return cursor.rowcount
