"""Sub-agent events: the last sub-agent to end wakes its parent, and sub-agents that no parent awaits are cancelled.
passed_messages.py has what its duty does besides: interrupting messages go on to sub-agents.

A transaction that ends a task never locks its parent, and a transaction that ends a parent never locks its sub-agents:
a batch of commits locks many tasks, and two batches would wait for each other. Instead the transaction inserts a
sub-agent event. The duty of this module handles events in transactions that lock only parents, or only sub-agents, in
the order of their ids like all others. It skips events that another replica has locked; the events of a replica that
died are unlocked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from services.checkpoint.commit.close_out import carry_out_ending
from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait, lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS
from services.checkpoint.locked_rows import each_apart, may_be_one_row
from services.checkpoint.queries import SUB_AGENTS, fetch_all
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from services.checkpoint.waits.budget_waits import resume_one_tree
from services.checkpoint.waits.passed_messages import TakenEvents, pass_message_on
from services.checkpoint.waits.sub_agent_waits import are_awaited, awaited, end_wait
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.close_out import PendingEnding
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import WaitKind
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import ledger_pb2

EVENTS_AT_ONCE: Final = 100
CANCELLED_AT_ONCE: Final = 100


class SubAgentEvents:
    """One duty. What this process commits wakes it at once, the events of other replicas when `due` looks."""

    def __init__(self, pool: Pool, announce: Callable[[Announcement], None], due: DueWork) -> None:
        self._pool, self._announce, self._due = pool, announce, due

    async def run(self) -> None:
        """Runs until cancelled. A cancel request passes down a tree level by level: each level's events are handled at
        once.
        """
        while True:
            await self._due.wait("families")
            while await self._once():
                pass

    async def _once(self) -> int:
        passed = await self._take(pass_message_on, "passed")
        woken = await self._take(wake_parents, "woken")
        stopped = await self._take(cancel_orphaned_sub_agents, "stopped")
        return passed + woken + stopped + await self._take(resume_raised, "granted")

    async def _take(self, act: Callable[[Pool], Awaitable[TakenEvents]], name: str) -> int:
        note_progress()
        taken = await act(self._pool)
        self._announce(announcement_of(taken.drafts))
        metrics.count("tenure_sub_agent_events_total", sum(draft.has_work for draft in taken.drafts), what=name)
        return taken.handled


async def wake_parents(pool: Pool) -> TakenEvents:
    """Ends the waits of parents whose sub-agents have all ended."""
    return await _in_transaction(pool, _wake, parent_moved=False)


async def cancel_orphaned_sub_agents(pool: Pool) -> TakenEvents:
    """Cancels sub-agents whose parent has ended or whose call is closed."""
    return await _in_transaction(pool, _cancel_orphans, parent_moved=True)


async def resume_raised(pool: Pool) -> TakenEvents:
    """Continues the tasks of a tree whose budget was raised and that want more."""

    async def work(connection: Connection) -> TakenEvents:
        taken = TakenEvents(*await resume_one_tree(connection))
        if taken.handled:
            await before_sweep()
        await write(connection, taken.drafts)
        return taken

    taken = await in_transaction(pool, work)
    if taken.handled:
        await after_sweep()
    return taken


async def _in_transaction(
    pool: Pool, act: Callable[[Connection, list[str]], Awaitable[list[Draft]]], *, parent_moved: bool
) -> TakenEvents:
    """Handles events. When one parent may be at fault for a failure, handles each under a savepoint: the events of that
    parent are dropped, and its wait ends at its deadline.
    """
    try:
        taken = await in_transaction(pool, partial(_handle, act, parent_moved))
    except Exception as error:
        if not may_be_one_row(error):
            raise
        taken = await in_transaction(pool, partial(_handle, act, parent_moved, apart=True))
    if taken.handled:
        await after_sweep()
    return taken


async def _handle(
    act: Callable[[Connection, list[str]], Awaitable[list[Draft]]],
    parent_moved: bool,
    connection: Connection,
    *,
    apart: bool = False,
) -> TakenEvents:
    async def of_parents(parents: list[str]) -> list[Draft]:
        drafts = await act(connection, parents)
        await write(connection, drafts)
        return drafts

    parameters = {"parent_moved": parent_moved, "limit": EVENTS_AT_ONCE}
    events = [parent for (parent,) in await fetch_all(connection, SUB_AGENTS.take_news, parameters)]
    if not events:
        return TakenEvents(0, [])
    await before_sweep()
    parents = sorted(set(events))
    if apart:
        drafts = await each_apart(connection, parents, lambda parent: of_parents([parent]))
    else:
        drafts = await of_parents(parents)
    return TakenEvents(len(events), drafts)


async def _wake(connection: Connection, parents: list[str]) -> list[Draft]:
    tasks, budgets = await lock_tasks(connection, parents)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
    for draft in drafts:
        wait = current_wait(draft.row)
        waits = wait is not None and wait.kind is WaitKind.SUB_AGENTS
        if wait is not None and waits and not await are_awaited(connection, draft, wait):
            end_wait(draft, await awaited(connection, draft, wait))
    return drafts


async def _cancel_orphans(connection: Connection, parents: list[str]) -> list[Draft]:
    rows = await fetch_all(connection, SUB_AGENTS.to_stop, {"parents": parents, "limit": CANCELLED_AT_ONCE})
    if len(rows) == CANCELLED_AT_ONCE:
        await connection.execute(SUB_AGENTS.tell_again, {"parents": parents})
    endings = {task_id: _ending_for(parent, has_ended, is_to_end) for task_id, parent, has_ended, is_to_end in rows}
    tasks, budgets = await lock_tasks(connection, list(endings))
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
    for draft in drafts:
        if draft.row.ending is None and not draft.ended:
            await _cancel(connection, draft, endings[draft.row.task_id])
    return drafts


def _ending_for(parent: str, has_ended: bool, is_to_end: bool) -> PendingEnding:
    message = f"its parent {parent} {'has ended' if has_ended else 'has a pending ending'}"
    if not has_ended and not is_to_end:
        return PendingEnding(
            TaskState.CANCELLED, Reason.NOT_AWAITED, f"its parent {parent} no longer waits for it", LEDGER
        )
    return PendingEnding(TaskState.CANCELLED, Reason.PARENT_ENDED, message, LEDGER)


async def _cancel(connection: Connection, draft: Draft, ending: PendingEnding) -> None:
    """Cancels as a user does: appends a cancel request and carries out the pending ending where possible."""
    draft.request_ending(ending)
    body = ledger_pb2.EntryBody(cancel_request=ledger_pb2.CancelRequest(reason=ending.message))
    kind = KINDS["cancel_request"]
    draft.append(kind, body.SerializeToString(), step=draft.row.step, actor=LEDGER, by_claim=False)
    await carry_out_ending(connection, draft)
