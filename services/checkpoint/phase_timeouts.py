"""Phases that took too long, as the ledger carries them out: the task's policy decides, its row's lock is held."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from services.checkpoint.draft import LEDGER
from services.checkpoint.finishing import carry_out_ending
from tenure.domain.endings import Ending
from tenure.domain.states import TaskState
from tenure.domain.timeouts import TimeoutMove, after_timeout

if TYPE_CHECKING:
    from services.checkpoint.draft import Draft
    from tenure.domain.timeouts import Phase, TimeoutAction
    from tenure.runtime.postgres import Connection


def what_follows(draft: Draft, phase: Phase, told: str, action: TimeoutAction | None = None) -> TimeoutMove | None:
    """The task's own policy, unless `action` says what it comes to; None: the task goes on as it does."""
    policy = draft.row.task_policy
    chosen = action or policy.timeouts.action(phase)
    return after_timeout(phase, chosen, policy.retry, draft.row.timeout_retries, told=told, luck=random.random())


def ask(draft: Draft, move: TimeoutMove) -> None:
    """Move it to its retry, or let its end be the pending one, to be carried out by whoever may."""
    if move.to_state is TaskState.RETRY_SCHEDULED:
        delay_seconds = move.retry_delay_seconds or 0.0
        draft.move(move.to_state, move.reason, move.message, actor=LEDGER, retry_delay_seconds=delay_seconds)
    else:
        draft.ask_ending(Ending(move.to_state, move.reason, move.message, LEDGER))


async def carry_out(connection: Connection, draft: Draft, move: TimeoutMove) -> None:
    """The same of a task that nobody may hold: what can be ended at once is."""
    ask(draft, move)
    await carry_out_ending(connection, draft)
