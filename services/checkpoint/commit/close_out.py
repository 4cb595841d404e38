"""Pending endings that nobody has to carry out: the ledger ends a task that no one holds and that has no open call."""

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
from tenure.domain.timeouts import TimeoutMove, after_timeout
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import readable_content_of

if TYPE_CHECKING:
    from services.checkpoint.commit.draft import Draft
    from tenure.domain.timeouts import Phase, TimeoutAction
    from tenure.runtime.postgres import Connection


async def carry_out_ending(connection: Connection, draft: Draft) -> None:
    """End the task or put it where it can be ended, under its row's lock. Mostly there is nothing to do."""
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
    """The partial result of a task that is stopped: the newest words of its model, also those of this transaction.

    A summary is an answer too, but one to us: what it is, the compaction behind it says.
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
        text = "" if _is_summary(later) else _words_of(ledger_pb2.EntryBody.FromString(answer).assistant_message)
        if text:
            return text
    return ""


def _is_summary(later: bytes | None) -> bool:
    return later is not None and ledger_pb2.EntryBody.FromString(later).compaction.HasField("summary")


def _words_of(message: ledger_pb2.AssistantMessage) -> str:
    """None for content that is not what the contract says: an ending must not fail for it."""
    return text_of(readable_content_of(message))


# Phases that took too long, as the ledger carries them out: the task's policy decides, its row's lock is held.


def what_follows(draft: Draft, phase: Phase, detail: str, action: TimeoutAction | None = None) -> TimeoutMove | None:
    """The task's own policy, unless `action` says what it comes to; None: the task goes on as it does."""
    policy = draft.row.task_policy
    chosen = action or policy.timeouts.action(phase)
    return after_timeout(phase, chosen, policy.retry, draft.row.timeout_retries, detail=detail, luck=random.random())


def ask(draft: Draft, move: TimeoutMove) -> None:
    """Move it to its retry, or let its end be the pending one, to be carried out by whoever may."""
    if move.to_state is TaskState.RETRY_SCHEDULED:
        delay_seconds = move.retry_delay_seconds or 0.0
        draft.move(move.to_state, move.reason, move.message, actor=LEDGER, retry_delay_seconds=delay_seconds)
    else:
        draft.request_ending(PendingEnding(move.to_state, move.reason, move.message, LEDGER))


async def carry_out(connection: Connection, draft: Draft, move: TimeoutMove) -> None:
    """The same of a task that nobody may hold: what can be ended at once is."""
    ask(draft, move)
    await carry_out_ending(connection, draft)
