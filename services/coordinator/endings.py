"""Endings that are due: owners are told first; what they do not carry out in time is carried out here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import TenureError
from tenure.runtime import semconv
from tenure.runtime.duties import note_progress, rest, resting
from tenure.runtime.logs import log_context
from tenure.runtime.task_group import TaskGroup
from tenure.runtime.telemetry import span
from tenure.runtime.tenancy import set_tenant
from tenure.v1 import coordinator_service_pb2 as pb

if TYPE_CHECKING:
    from services.coordinator.ending import Ender
    from services.coordinator.ledger import Ledger
    from services.coordinator.sessions import Sessions
    from tenure.v1 import checkpoint_service_pb2

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.5
_AT_ONCE: Final = 16
_FAILED_PAUSE_SECONDS: Final = 1.0


class Endings:
    """The duty `run` asks the ledger what is to be ended. In every replica: the ledger gives each to one of them."""

    def __init__(self, ledger: Ledger, sessions: Sessions, ender: Ender, *, grace_seconds: float) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._ender = ender
        self._grace_seconds = grace_seconds
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._under_way: set[str] = set()

    def on_cancels(self, task_ids: Iterable[str]) -> None:
        """Tell the owners that are attached here."""
        wanted = set(task_ids)
        for task_id, session in self._sessions.holders_of(wanted):
            session.send(pb.SessionResponse(cancel=pb.CancelNotice(task_id=task_id)))
        if wanted:
            self._woken.set()

    async def run(self) -> None:
        """Duty. One ending that takes long, or fails, holds up no other."""
        async with TaskGroup() as group:
            while True:
                try:
                    while await self._sweep(group):
                        pass
                except TenureError as error:
                    _log.warning("endings could not be listed", extra={"error": error})
                    await rest(_FAILED_PAUSE_SECONDS)
                await self._wait()

    async def _sweep(self, group: TaskGroup) -> bool:
        """Begin to end what is due, as much as there is room for; whether there may be more."""
        async with self._room:
            wanted = _AT_ONCE - len(self._under_way)
        note_progress()
        due = await self._ledger.list_endings(wanted, self._grace_seconds)
        for ending in due:
            if ending.task_id not in self._under_way:
                await self._room.acquire()
                self._under_way.add(ending.task_id)
                group.create_task(self._end_one(ending))
        return len(due) == wanted

    async def _end_one(self, ending: checkpoint_service_pb2.ListEndingsResponse.Ending) -> None:
        try:
            await self._end(ending)
        except Exception:  # noqa: BLE001  whatever is wrong with one task: logged with its stack, the others are ended
            _log.exception("a task could not be ended", extra={"task": ending.task_id})
            await asyncio.sleep(_FAILED_PAUSE_SECONDS)
        finally:
            self._under_way.discard(ending.task_id)
            self._room.release()

    async def _end(self, ending: checkpoint_service_pb2.ListEndingsResponse.Ending) -> None:
        set_tenant(ending.tenant)  # of this asyncio task only
        attributes = {semconv.TASK_ID: ending.task_id, semconv.REASON: ending.reason}
        with log_context(task=ending.task_id), span("end_task", attributes):
            try:
                await self._ender.end(ending)
            except TenureError as error:
                _log.warning("a task could not be ended yet", extra={"error": error})
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)

    async def _wait(self) -> None:
        """Until the poll, or the end of the grace of a cancel that was hinted at."""
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                with resting():
                    await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()
        await rest(min(self._grace_seconds, _POLL_SECONDS) / 2)
