"""Sweeps: due starts and retries, passed deadlines, phase timeouts, late signals.

Any number of replicas may sweep, each a bounded number of rows at a time. One lock covers the decision and the change
of a row, by database time. A sweep skips rows that another replica has locked.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from services.checkpoint.commit.close_out import carry_out, carry_out_ending, what_follows
from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait, lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.locked_rows import each_apart, may_be_one_row
from services.checkpoint.queries import QUERIES, fetch_all
from services.checkpoint.queue.due import DueWork
from services.checkpoint.rows import TaskRow
from services.checkpoint.waits import signals, waits
from services.checkpoint.waits.budget_waits import end_budget_wait
from services.checkpoint.waits.escalating import take_step
from services.checkpoint.waits.operator_waits import keep_starts
from services.checkpoint.waits.sub_agent_waits import awaited, end_wait
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import outcome_of_sub_agents
from tenure.domain.timeouts import Phase
from tenure.domain.waits import NO_ANSWER
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

_log: Final = logging.getLogger(__name__)
ROWS_A_SWEEP: Final = 100
FORGET_INTERVAL_SECONDS: Final = 20.0


async def queue_due_retries(pool: Pool) -> list[Draft]:
    """Queues RETRY_SCHEDULED tasks whose delay is over."""

    async def change(_connection: Connection, draft: Draft) -> None:
        draft.move(TaskState.QUEUED, Reason.RETRY_DUE, "", actor=LEDGER)

    return await _sweep(pool, QUERIES.due_retries, change, lambda row: row.next_retry_at)


async def end_overdue(pool: Pool) -> list[Draft]:
    """Requests the end of tasks past their deadline, and ends those without an owner."""

    async def change(connection: Connection, draft: Draft) -> None:
        move = what_follows(draft, Phase.TASK, "the task's timeout has passed")
        assert move is not None, "a passed deadline always ends the task"
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_deadlines, change, lambda row: row.deadline_at)


async def end_queued_too_long(pool: Pool) -> list[Draft]:
    """Applies the queued timeout to tasks that no worker took in time."""

    async def change(connection: Connection, draft: Draft) -> None:
        detail = "its source did not admit it in time" if draft.row.in_line else "no worker took the task in time"
        move = what_follows(draft, Phase.QUEUED, detail)
        assert move is not None, "the statement finds only tasks with a queued timeout"
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_queued, change, lambda row: row.queued_until)


async def start_due(pool: Pool) -> int:
    """Offers tasks whose start_time has come and returns their number. Nothing else of the tasks changes."""

    async def work(connection: Connection) -> int:
        rows = await fetch_all(connection, QUERIES.due_starts, {"limit": ROWS_A_SWEEP})
        if rows:
            await before_sweep()
        return len(rows)

    started = await in_transaction(pool, work)
    if started:
        await after_sweep()
    return started


async def expire_waits(pool: Pool) -> list[Draft]:
    """Ends waits past their deadline. By the wait or the policy, the task continues, asks again later, or ends."""

    async def change(connection: Connection, draft: Draft) -> None:
        wait = current_wait(draft.row)
        assert wait is not None, "the statement finds only rows with a wait deadline, and locks them"
        sub_agents = await awaited(connection, draft, wait)
        # The last sub-agent ended in time, or the budget was raised in time, but the event was not handled yet.
        if end_wait(draft, sub_agents) or end_budget_wait(draft, "the budget of its tree was raised"):
            return
        action = draft.row.task_policy.timeouts.action_of_wait(wait.kind, wait.at_deadline)
        move = what_follows(draft, Phase.WAIT, "no answer to the task's wait came in time", action)
        outcome = None if sub_agents is None else outcome_of_sub_agents(sub_agents.all)
        answer = waits.RecordedAnswer(NO_ANSWER, LEDGER, "", outcome)
        if move is None:
            waits.end_wait_with_answer(draft, wait, answer)
            await carry_out_ending(connection, draft)
            return
        if move.to_state is not TaskState.RETRY_SCHEDULED:  # a retry leaves the call open: the next owner asks again
            waits.record(draft, wait, answer)
        await carry_out(connection, draft, move)

    return await _sweep(pool, QUERIES.due_waits, change, lambda row: row.wait_deadline_at)


async def escalate_waits(pool: Pool) -> list[Draft]:
    """Takes the due steps of escalations, one per wait; a wait with a further due step is found by the next sweep."""
    return await _sweep(pool, QUERIES.due_escalations, take_step, lambda row: row.wait_step_at)


async def deliver_signals(pool: Pool) -> list[Draft]:
    """Delivers signals that were committed at the same moment as their wait."""
    return await _sweep(pool, QUERIES.due_signals, signals.take_kept)


async def _sweep(
    pool: Pool,
    statement: bytes,
    change: Callable[[Connection, Draft], Awaitable[None]],
    due_at: Callable[[TaskRow], datetime | None] = lambda _row: None,
) -> list[Draft]:
    """Changes the tasks that the statement finds. `due_at`: when a task was due.

    When one of them may be at fault for a failure, changes each under a savepoint, and leaves that one out.
    """

    async def of_tasks(connection: Connection, task_ids: Sequence[str]) -> list[Draft]:
        tasks, budgets = await lock_tasks(connection, task_ids)
        drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
        for draft in drafts:
            if (due_time := due_at(draft.row)) is not None:
                draft.late_seconds = max(0.0, (draft.row.locked_at - due_time).total_seconds())
            await change(connection, draft)
        await write(connection, drafts)
        await keep_starts(connection, drafts)
        return drafts

    async def work(connection: Connection, *, apart: bool = False) -> list[Draft]:
        due = [task_id for (task_id,) in await fetch_all(connection, statement, {"limit": ROWS_A_SWEEP})]
        if not due:
            return []
        await before_sweep()
        if apart:
            return await each_apart(connection, due, lambda task_id: of_tasks(connection, [task_id]))
        return await of_tasks(connection, due)

    try:
        drafts = await in_transaction(pool, work)
    except Exception as error:
        if not may_be_one_row(error):
            raise
        _log.warning("a sweep failed; its tasks are changed one by one", extra={"error": str(error).partition("\n")[0]})
        drafts = await in_transaction(pool, partial(work, apart=True))
    if drafts:
        await after_sweep()
    return drafts


async def before_sweep() -> None:
    """Failpoint: a sweep has found work and committed nothing."""
    await failpoint("checkpoint.before_sweep")


async def after_sweep() -> None:
    """Failpoint: a sweep's work is durable and not yet announced."""
    await failpoint("checkpoint.after_sweep")


SWEEPS: Final[dict[str, Callable[[Pool], Awaitable[list[Draft]]]]] = {
    "retries": queue_due_retries,
    "deadlines": end_overdue,
    "queued": end_queued_too_long,
    "waits": expire_waits,
    "escalations": escalate_waits,
    "signals": deliver_signals,
}
"""The sweeps that move tasks, by their names in the statement `due`."""


class Sweeper:
    """One duty per sweep. Each runs until cancelled and sweeps when there is work; after a full sweep at once again."""

    def __init__(self, pool: Pool, announce: Callable[[Announcement], None], due: DueWork) -> None:
        self._pool = pool
        self._announce = announce
        self._due = due

    async def run_starts(self) -> None:
        """Runs the start sweep. It announces only that tasks are claimable, because nothing else changed."""
        started = metrics.cell("tenure_swept_tasks_total", sweep="starts")
        while True:
            await self._due.wait("starts")
            result = ROWS_A_SWEEP
            while result == ROWS_A_SWEEP:
                note_progress()
                result = await start_due(self._pool)
                self._announce(Announcement(claimable=bool(result), source_lines=bool(result)))
                started.value += result

    async def run_forgetting(self) -> None:
        """Deletes old signals, and looks for missed ones of any age. Seldom, because hardly anything waits for it."""
        while True:
            await signals.forget_old(self._pool)
            self._due.wake("signals")
            await rest(FORGET_INTERVAL_SECONDS * random.uniform(0.5, 1.0))

    async def run(self, name: str) -> None:
        """Runs the sweep of SWEEPS that has this name."""
        swept = metrics.cell("tenure_swept_tasks_total", sweep=name)
        late = metrics.histogram("tenure_sweep_lag_seconds", sweep=name)
        while True:
            await self._due.wait(name)
            number = ROWS_A_SWEEP
            while number == ROWS_A_SWEEP:
                note_progress()
                drafts = await SWEEPS[name](self._pool)
                self._announce(announcement_of(drafts))
                swept.value += len(drafts)
                for draft in drafts:
                    if draft.late_seconds is not None:
                        late.observe(draft.late_seconds)
                number = len(drafts)
