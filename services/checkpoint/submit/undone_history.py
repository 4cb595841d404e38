"""What an undo means for the agent that made the undone calls: its history still says that they succeeded.

A new attempt of the task is refused. A fork goes on, with a message in which its agent reads what was undone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.checkpoint.queries import UNDOS, fetch_all
from tenure.domain.errors import WrongState
from tenure.runtime.store.postgres import Connection

EFFECTS_UNDONE: Final = "EFFECTS_UNDONE"


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
