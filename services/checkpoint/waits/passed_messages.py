"""Passes interrupting messages on to the live sub-agents of a task, level by level: the whole tree is redirected.

The transaction that records a message locks no sub-agent (sub_agent_events.py says why): it inserts a row into
`passed_messages`. The transaction that deletes the row appends the message to a page of the sub-agents, so each gets it
once, whichever replica dies. What a sub-agent has got goes on to its own sub-agents in the same way.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.external_entries import append_passed_message
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.locked_rows import each_apart, may_be_one_row
from services.checkpoint.queries import SUB_AGENTS, fetch_all, fetch_one
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from tenure.domain.sub_agents import passed_request_id
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2

SUB_AGENTS_AT_ONCE: Final = 100


class TakenEvents(NamedTuple):
    """The number of handled events, and the drafts that they led to."""

    handled: int
    drafts: list[Draft]


async def pass_message_on(pool: Pool) -> TakenEvents:
    """Gives the oldest message that goes on to a page of sub-agents.

    When one of them may be at fault for a failure, handles each under a savepoint, and leaves that one out.
    """
    try:
        taken = await in_transaction(pool, _pass_on)
    except Exception as error:
        if not may_be_one_row(error):
            raise
        taken = await in_transaction(pool, partial(_pass_on, apart=True))
    if taken.handled:
        await after_sweep()
    return taken


async def _pass_on(connection: Connection, *, apart: bool = False) -> TakenEvents:
    row = await fetch_one(connection, SUB_AGENTS.take_passed, {})
    if row is None:
        return TakenEvents(0, [])
    await before_sweep()
    parent, sequence, after, actor, body = row
    if body is None:
        return TakenEvents(1, [])
    message = ledger_pb2.EntryBody.FromString(body).user_message
    request = pb.AppendForeignRequest(
        request_id=passed_request_id(parent, sequence),
        actor=actor,
        user_message=ledger_pb2.UserMessage(text=message.text, interrupt=True),
    )
    page = {"parent": parent, "after": after, "limit": SUB_AGENTS_AT_ONCE}
    children = [task_id for (task_id,) in await fetch_all(connection, SUB_AGENTS.live_sub_agents, page)]
    if len(children) == SUB_AGENTS_AT_ONCE:
        await connection.execute(SUB_AGENTS.pass_on, {"parent": parent, "sequence": sequence, "after": children[-1]})
    if apart:
        drafts = await each_apart(connection, children, lambda child: _tell(connection, [child], request))
    else:
        drafts = await _tell(connection, children, request)
    return TakenEvents(1, drafts)


async def _tell(connection: Connection, task_ids: list[str], passed: pb.AppendForeignRequest) -> list[Draft]:
    """Appends the message to these tasks. Returns the drafts, which are written."""
    tasks, budgets = await lock_tasks(connection, task_ids)
    drafts = [Draft(row, budgets[row.root_task_id]) for row in tasks.values()]
    for draft in drafts:
        request = pb.AppendForeignRequest()
        request.CopyFrom(passed)
        request.task_id = draft.row.task_id
        await append_passed_message(connection, draft, request)
    await write(connection, drafts)
    return drafts
