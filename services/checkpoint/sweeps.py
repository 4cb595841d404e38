"""What time brings about: due retries, passed deadlines. In any number of replicas, a bounded number of rows at a time.

Rows are judged and changed under one lock, by database time; what another replica is at is skipped.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from services.checkpoint import signals, waits
from services.checkpoint.announcement import announcement_of
from services.checkpoint.begun_waits import current_wait
from services.checkpoint.draft import LEDGER, Draft
from services.checkpoint.finishing import carry_out_ending
from services.checkpoint.queries import QUERIES, fetch_all, in_ledger_transaction
from services.checkpoint.rows import lock_tasks
from services.checkpoint.writing import write
from tenure.domain.endings import Ending
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import NO_ANSWER, WaitDeadlinePolicy
from tenure.runtime import metrics
from tenure.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.checkpoint.announcement import Announcement
    from tenure.runtime.postgres import Connection, Pool

ROWS_A_SWEEP: Final = 100
FORGET_INTERVAL_SECONDS: Final = 20.0


async def queue_due_retries(pool: Pool) -> list[Draft]:
    """RETRY_SCHEDULED tasks whose wait is over go back into the queue."""

    async def change(_connection: Connection, draft: Draft) -> None:
        draft.move(TaskState.QUEUED, Reason.RETRY_DUE, "", actor=LEDGER)

    return await _sweep(pool, QUERIES.due_retries, change)


async def end_overdue(pool: Pool) -> list[Draft]:
    """Tasks past their deadline are to end; those that nobody holds end here."""
    ending = Ending(TaskState.TIMED_OUT, Reason.DEADLINE_PASSED, "the task's timeout has passed", LEDGER)

    async def change(connection: Connection, draft: Draft) -> None:
        draft.ask_ending(ending)
        await carry_out_ending(connection, draft)

    return await _sweep(pool, QUERIES.due_deadlines, change)


async def expire_waits(pool: Pool) -> list[Draft]:
    """Waits past their deadline: the task goes on without an answer, or ends, as the wait says."""

    async def change(connection: Connection, draft: Draft) -> None:
        wait = current_wait(draft.row)
        assert wait is not None, "what has a deadline is a wait, and its row was locked when it was judged"
        answer = waits.Answer(NO_ANSWER, LEDGER, "")
        if wait.at_deadline is WaitDeadlinePolicy.GO_ON:
            waits.resolve(draft, wait, answer)
            return
        waits.record(draft, wait, answer)
        draft.ask_ending(
            Ending(TaskState.TIMED_OUT, Reason.WAIT_EXPIRED, "nobody answered what the task waited for", LEDGER)
        )
        await carry_out_ending(connection, draft)

    return await _sweep(pool, QUERIES.due_waits, change)


async def deliver_signals(pool: Pool) -> list[Draft]:
    """Events that came at the very moment in which their wait began."""
    return await _sweep(pool, QUERIES.due_signals, signals.take_kept)


async def _sweep(pool: Pool, statement: bytes, change: Callable[[Connection, Draft], Awaitable[None]]) -> list[Draft]:
    async def work(connection: Connection) -> list[Draft]:
        due = [task_id for (task_id,) in await fetch_all(connection, statement, {"limit": ROWS_A_SWEEP})]
        if not due:
            return []
        await before_sweep()
        tasks, budgets = await lock_tasks(connection, due)
        drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
        for draft in drafts:
            await change(connection, draft)
        await write(connection, drafts)
        return drafts

    drafts = await in_ledger_transaction(pool, work)
    if drafts:
        await after_sweep()
    return drafts


async def before_sweep() -> None:
    """A sweep, of whatever, has found work and written nothing."""
    await failpoint("checkpoint.before_sweep")


async def after_sweep() -> None:
    """Its work is durable, and nobody was told."""
    await failpoint("checkpoint.after_sweep")


class Sweeper:
    """One duty per sweep: `run` until cancelled. A full sweep is followed by the next at once."""

    def __init__(self, pool: Pool, announce: Callable[[Announcement], None], interval_seconds: float) -> None:
        self._pool = pool
        self._announce = announce
        self._interval_seconds = interval_seconds

    async def run_retries(self) -> None:
        await self._run("retries", queue_due_retries)

    async def run_deadlines(self) -> None:
        await self._run("deadlines", end_overdue)

    async def run_waits(self) -> None:
        await self._run("waits", expire_waits)

    async def run_signals(self) -> None:
        await self._run("signals", deliver_signals)

    async def run_forgetting(self) -> None:
        """Old events go, rarely: a bounded number each time, and nobody waits for it."""
        while True:
            await signals.forget_old(self._pool)
            await asyncio.sleep(FORGET_INTERVAL_SECONDS * random.uniform(0.5, 1.0))

    async def _run(self, name: str, sweep: Callable[[Pool], Awaitable[list[Draft]]]) -> None:
        swept = metrics.cell("tenure_swept_tasks_total", sweep=name)
        while True:
            drafts = await sweep(self._pool)
            self._announce(announcement_of(drafts))
            swept.value += len(drafts)
            if len(drafts) < ROWS_A_SWEEP:
                # Replicas that started together must not sweep together for ever.
                await asyncio.sleep(self._interval_seconds * random.uniform(0.5, 1.0))
