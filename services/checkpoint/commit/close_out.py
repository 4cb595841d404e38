"""Carries out pending endings and phase timeouts in the ledger, for tasks without a claim.

The ledger itself ends a task that no worker holds and that has no open call.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import QUERIES, fetch_all
from services.checkpoint.waits import waits
from tenure.domain.close_out import PendingEnding, follow_up
from tenure.domain.conversation import text_of
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.timeouts import TimeoutTransition, after_timeout
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import readable_content_of

if TYPE_CHECKING:
    from services.checkpoint.commit.draft import Draft
    from tenure.domain.timeouts import Phase, TimeoutAction
    from tenure.runtime.store.postgres import Connection


async def carry_out_ending(connection: Connection, draft: Draft) -> None:
    """Ends the task, or moves it to where a worker can end it, under its row's lock. Mostly there is nothing to do."""
    row = draft.row
    ending = row.ending
    if ending is not None and row.state in WAITING:
        waits.abandon(draft)
    while ending is not None:
        to_state = follow_up(row.state, ending, has_open_calls=bool(row.open_calls))
        if to_state is None:
            return
        result = await last_text(connection, draft) if to_state in TERMINAL else ""
        draft.move(to_state, ending.reason, ending.message, actor=ending.actor or LEDGER, result=result)


async def last_text(connection: Connection, draft: Draft) -> str:
    """Returns the partial result of a stopped task: its model's newest text, including that of this transaction.

    Skips answers that are summaries for compaction: a compaction entry with a summary follows each of those.
    """
    kind, compaction = KINDS["assistant_message"], KINDS["compaction"]
    after = [*draft.entries[1:], None]
    fresh = [
        (entry.body, None if later is None or later.kind != compaction else later.body)
        for entry, later in reversed(list(zip(draft.entries, after, strict=False)))
        if entry.kind == kind
    ]
    parameters = {"task_id": draft.row.task_id, "kind": kind, "compaction": compaction}
    for answer, later in (*fresh, *await fetch_all(connection, QUERIES.newest_answers, parameters)):
        text = "" if _is_summary(later) else _text_of(ledger_pb2.EntryBody.FromString(answer).assistant_message)
        if text:
            return text
    return ""


def _is_summary(later: bytes | None) -> bool:
    return later is not None and ledger_pb2.EntryBody.FromString(later).compaction.HasField("summary")


def _text_of(message: ledger_pb2.AssistantMessage) -> str:
    """Returns "" for content that does not follow the contract: an ending must not fail for it."""
    return text_of(readable_content_of(message))


# Phase timeouts that the ledger carries out under the task row's lock. The task's policy decides.


def what_follows(
    draft: Draft, phase: Phase, detail: str, action: TimeoutAction | None = None
) -> TimeoutTransition | None:
    """Returns what follows a phase timeout, by `action` or else by the task's policy. None: the task goes on."""
    policy = draft.row.task_policy
    chosen = action or policy.timeouts.action(phase)
    return after_timeout(
        phase, chosen, policy.retry, draft.row.timeout_retries, detail=detail, random_fraction=random.random()
    )


def ask(draft: Draft, move: TimeoutTransition) -> None:
    """Moves the task to its retry, or records its pending ending for whichever component may carry it out."""
    if move.to_state is TaskState.RETRY_SCHEDULED:
        delay_seconds = move.retry_delay_seconds or 0.0
        draft.move(move.to_state, move.reason, move.message, actor=LEDGER, retry_delay_seconds=delay_seconds)
    else:
        draft.request_ending(PendingEnding(move.to_state, move.reason, move.message, LEDGER))


async def carry_out(connection: Connection, draft: Draft, move: TimeoutTransition) -> None:
    """Does the same for a task that may have no owner, and carries out an ending that needs no worker."""
    ask(draft, move)
    await carry_out_ending(connection, draft)
