"""The duty that undoes the effects of tasks with the policy on_failure UNDO, after they ended without success.

The end of such a task writes a row in its transaction; this duty creates the undo and deletes the row in another one.
Any number of replicas may run it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from services.checkpoint.queries import UNDOS, fetch_all, fetch_one
from services.checkpoint.queue.due import DueWork
from services.checkpoint.queue.sweeps import after_sweep, before_sweep
from services.checkpoint.submit.undoing import undo_in
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.states import WITHOUT_SUCCESS, TaskState
from tenure.runtime.process import heed_cancellation, note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import task_service_pb2 as tasks_pb

UNDOS_A_SWEEP: Final = 100
POSTPONED_SECONDS: Final = 30.0

_log: Final = logging.getLogger(__name__)


class UndoSweeper:
    """Runs until cancelled. A full sweep is followed by the next at once."""

    def __init__(
        self, pool: Pool, announce: Callable[[Announcement], None], due: DueWork, defaults: TaskDefaults
    ) -> None:
        self._pool, self._announce, self._due, self._defaults = pool, announce, due, defaults

    async def run(self) -> None:
        while True:
            await self._due.wait("undos")
            while await self.sweep() == UNDOS_A_SWEEP:
                heed_cancellation()  # a wait for a connection may have swallowed it
            heed_cancellation()

    async def sweep(self) -> int:
        """Returns how many tasks were due. One that fails is postponed, so that the others do not wait for it."""
        async with pool_connection(self._pool) as connection:
            rows = await fetch_all(connection, UNDOS.due, {"limit": UNDOS_A_SWEEP})
        for (task_id,) in rows:
            note_progress()
            await before_sweep()
            try:
                self._announce(await in_transaction(self._pool, partial(self._undo, task_id)))
            except Exception as error:  # noqa: BLE001  logged, and tried again
                heed_cancellation()
                _log.warning("an undo was postponed", extra={"task": task_id, "error": str(error)})
                await self._postpone(task_id)
            await after_sweep()
        return len(rows)

    async def _postpone(self, task_id: str) -> None:
        postponed = {"task_id": task_id, "seconds": POSTPONED_SECONDS}
        await in_transaction(self._pool, lambda connection: connection.execute(UNDOS.postpone, postponed))

    async def _undo(self, task_id: str, connection: Connection) -> Announcement:
        """Creates the undo of a task, unless it has no effect to undo, or was requeued and goes on or succeeded."""
        due = await fetch_one(connection, UNDOS.take_due, {"task_id": task_id})
        if due is None or due[0] is None:
            return Announcement()
        tenant: str = due[0]
        row = await fetch_one(connection, UNDOS.lock_source, {"task_id": task_id, "tenant": tenant})
        if row is None or TaskState(row[0]) not in WITHOUT_SUCCESS:
            return Announcement()
        request = tasks_pb.UndoTaskRequest(request_id=f"on_failure/{task_id}/{row[3]}", task_id=task_id)
        try:
            return (await undo_in(connection, tenant, request, self._defaults, may_refuse=False)).announcement
        except (WrongState, NotFound) as refusal:
            is_usual = refusal.reason == "NOTHING_TO_UNDO"  # the list of an undo says of each effect why
            level = logging.INFO if is_usual else logging.WARNING
            _log.log(level, "a failed task is not undone", extra={"task": task_id, "why": str(refusal)})
            return Announcement()
