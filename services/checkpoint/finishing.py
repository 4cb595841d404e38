"""Pending endings that nobody has to carry out: the ledger ends a task that no one holds and that has no open call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from services.checkpoint import waits
from services.checkpoint.draft import LEDGER
from services.checkpoint.kinds import KINDS
from services.checkpoint.queries import QUERIES, fetch_all
from tenure.domain.endings import follow_up
from tenure.domain.fold import text_of
from tenure.domain.states import TERMINAL, WAITING
from tenure.v1 import ledger_pb2

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
    """The partial result of a task that is stopped: the newest words of its model, also those of this transaction."""
    kind = KINDS["assistant_message"]
    fresh = [entry.body for entry in reversed(draft.entries) if entry.kind == kind]
    stored = await fetch_all(connection, QUERIES.newest_answers, {"task_id": draft.row.task_id, "kind": kind})
    for body in (*fresh, *(body for (body,) in stored)):
        text = _words_of(ledger_pb2.EntryBody.FromString(body).assistant_message)
        if text:
            return text
    return ""


def _words_of(message: ledger_pb2.AssistantMessage) -> str:
    """None for content that is not what the contract says: an ending must not fail for it."""
    try:
        content = json.loads(message.content_json or "[]")
        return text_of(content)
    except (ValueError, TypeError, AttributeError, KeyError):
        return ""
