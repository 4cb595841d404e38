"""What time brings about: due starts and retries, passed deadlines, phases that took too long.

In any number of replicas, a bounded number of rows at a time. Rows are judged and changed under one lock, by database
time; what another replica is at is skipped.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from services.checkpoint.commit.close_out import carry_out, what_follows
from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait, lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.queries import QUERIES, fetch_all, in_ledger_transaction, ledger_connection
from services.checkpoint.waits import signals, waits
from services.checkpoint.waits.sub_agent_waits import awaited, end_wait
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import outcome_of_sub_agents
from tenure.domain.timeouts import Phase
from tenure.domain.waits import NO_ANSWER
from tenure.runtime import metrics
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress, rest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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

    async def change(connection: Connection, draft: Draft) -> None:
        move = what_follows(draft, Phase.TASK, "the task's timeout has passed")
        assert move is not None, "there is no time left to go on in"
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_deadlines, change)


async def end_queued_too_long(pool: Pool) -> list[Draft]:
    """Tasks that no worker took in the time that their policy gives."""

    async def change(connection: Connection, draft: Draft) -> None:
        move = what_follows(draft, Phase.QUEUED, "no worker took the task in time")
        assert move is not None, "only a task that is timed in the queue was found"
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_queued, change)


async def start_due(pool: Pool) -> int:
    """Tasks whose start_time has come are offered from now on; how many. Nothing else of them changes."""

    async def work(connection: Connection) -> int:
        rows = await fetch_all(connection, QUERIES.due_starts, {"limit": ROWS_A_SWEEP})
        if rows:
            await before_sweep()
        return len(rows)

    started = await in_ledger_transaction(pool, work)
    if started:
        await after_sweep()
    return started


async def expire_waits(pool: Pool) -> list[Draft]:
    """Waits past their deadline: the task goes on without an answer, asks again later, or ends, by policy or wait."""

    async def change(connection: Connection, draft: Draft) -> None:
        wait = current_wait(draft.row)
        assert wait is not None, "what has a deadline is a wait, and its row was locked when it was judged"
        sub_agents = await awaited(connection, draft, wait)
        if end_wait(draft, sub_agents):  # the last one ended just in time, and nobody had told its parent
            return
        action = draft.row.task_policy.timeouts.action_of_wait(wait.at_deadline)
        move = what_follows(draft, Phase.WAIT, "nobody answered what the task waited for", action)
        outcome = None if sub_agents is None else outcome_of_sub_agents(sub_agents.all)
        answer = waits.RecordedAnswer(NO_ANSWER, LEDGER, "", outcome)
        if move is None:
            waits.end_wait_with_answer(draft, wait, answer)
            return
        if move.to_state is not TaskState.RETRY_SCHEDULED:  # there the call stays open: its next owner asks again
            waits.record(draft, wait, answer)
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_waits, change)


async def deliver_signals(pool: Pool) -> list[Draft]:
    """Events that came at the very moment in which their wait began."""
    return await _sweep(pool, QUERIES.due_signals, signals.take_kept)


async def _sweep(pool: Pool, statement: bytes, change: Callable[[Connection, Draft], Awaitable[None]]) -> list[Draft]:
    """Looks first: mostly nothing is due, and a transaction takes three journeys to find that out."""
    async with ledger_connection(pool) as looking:
        if not await fetch_all(looking, statement, {"limit": 1}):
            return []

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
    """A sweep, of whatever, has found work and committed nothing."""
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

    async def run_queued(self) -> None:
        await self._run("queued", end_queued_too_long)

    async def run_starts(self) -> None:
        """One task needs no telling of a change: that there is something to claim is all the news."""
        started = metrics.cell("tenure_swept_tasks_total", sweep="starts")
        while True:
            note_progress()
            result = await start_due(self._pool)
            self._announce(Announcement(claimable=bool(result)))
            started.value += result
            if result < ROWS_A_SWEEP:
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))

    async def run_waits(self) -> None:
        await self._run("waits", expire_waits)

    async def run_signals(self) -> None:
        await self._run("signals", deliver_signals)

    async def run_forgetting(self) -> None:
        """Old events go, rarely: a bounded number each time, and nobody waits for it."""
        while True:
            await signals.forget_old(self._pool)
            await rest(FORGET_INTERVAL_SECONDS * random.uniform(0.5, 1.0))

    async def _run(self, name: str, sweep: Callable[[Pool], Awaitable[list[Draft]]]) -> None:
        swept = metrics.cell("tenure_swept_tasks_total", sweep=name)
        while True:
            note_progress()
            drafts = await sweep(self._pool)
            self._announce(announcement_of(drafts))
            swept.value += len(drafts)
            if len(drafts) < ROWS_A_SWEEP:
                # Replicas that started together must not sweep together for ever.
                await rest(self._interval_seconds * random.uniform(0.5, 1.0))
