"""What an undo means for the agent that made the undone calls: its history still says that they succeeded.

A new attempt of the task is refused. A fork goes on, with a message in which its agent reads what was undone. So does a
task that waits for a person while its effects are undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from services.checkpoint.agents.rows import reader_of
from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import UNDOS, fetch_all
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.close_out import no_reader
from tenure.domain.errors import WrongState
from tenure.domain.undo import TaskEffect, note_of_undone, undoable
from tenure.runtime.store.postgres import Connection
from tenure.v1 import ledger_pb2

EFFECTS_UNDONE: Final = "EFFECTS_UNDONE"
MAX_NAMED: Final = 50
"""The most undone calls that a message names."""


class UndoneCall(NamedTuple):
    """A call of a history that an undo has undone, or may have."""

    call_id: str
    undo_task_id: str


async def undone_of_history(connection: Connection, tenant: str, task_id: str, step: int) -> list[UndoneCall]:
    """Returns the undone calls of the task's history through a step, without those that a message of it names."""
    parameters = {"tenant": tenant, "task_id": task_id, "step": step}
    return [UndoneCall(*row) for row in await fetch_all(connection, UNDOS.undone_of_history, parameters)]


async def check_not_undone(connection: Connection, tenant: str, task_id: str, step: int) -> None:
    """Raises WrongState (EFFECTS_UNDONE) for a task that is to run again. Its row is locked, so no undo begins now."""
    if undone := await undone_of_history(connection, tenant, task_id, step):
        undo = undone[-1].undo_task_id
        message = (
            f"{len(undone)} effects of the task were undone by {undo}, and its agent would still count on them: fork "
            "the task, so that its agent reads what was undone, or submit its goal again"
        )
        raise WrongState(message, reason=EFFECTS_UNDONE, metadata={"undo_task_id": undo})


async def tell_agent(connection: Connection, waiting: Draft, effects: Sequence[TaskEffect]) -> Announcement:
    """Writes the message for the agent of a task that waits. Raises WrongState for a function, which reads none."""
    reader = await reader_of(connection, waiting.row.task_id)
    if no_reader(reader.loop, reader.kind) is not None:
        message = "the function that runs the task would count on what is being undone: cancel the task first"
        raise WrongState(message, metadata={"state": waiting.row.state.value})
    wanted = list(undoable(effects))
    calls = [(each.call_id, each.tool, each.arguments_json) for each in reversed(wanted[:MAX_NAMED])]
    note = ledger_pb2.UserMessage(text=note_of_undone(calls, len(wanted) - len(calls)))
    body = ledger_pb2.EntryBody(user_message=note).SerializeToString()
    waiting.append(KINDS["user_message"], body, step=waiting.row.step, actor=LEDGER, by_claim=False)
    await write(connection, [waiting])
    return announcement_of([waiting])
