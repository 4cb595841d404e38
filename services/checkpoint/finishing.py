"""Pending endings that nobody has to carry out: the ledger ends a task that no one holds and that has no open call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint import waits
from services.checkpoint.draft import LEDGER
from services.checkpoint.kinds import KINDS
from services.checkpoint.queries import QUERIES, fetch_all
from tenure.domain.conversation import text_of
from tenure.domain.endings import follow_up
from tenure.domain.states import TERMINAL, WAITING
from tenure.v1 import ledger_pb2
from tenure.wire.content import readable_content_of

if TYPE_CHECKING:
    from services.checkpoint.draft import Draft
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
    asked = {"task_id": draft.row.task_id, "kind": kind, "compaction": compaction}
    for answer, later in (*fresh, *await fetch_all(connection, QUERIES.newest_answers, asked)):
        text = "" if _is_summary(later) else _words_of(ledger_pb2.EntryBody.FromString(answer).assistant_message)
        if text:
            return text
    return ""


def _is_summary(later: bytes | None) -> bool:
    return later is not None and ledger_pb2.EntryBody.FromString(later).compaction.HasField("summary")


def _words_of(message: ledger_pb2.AssistantMessage) -> str:
    """None for content that is not what the contract says: an ending must not fail for it."""
    return text_of(readable_content_of(message))
