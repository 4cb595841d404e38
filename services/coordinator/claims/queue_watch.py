"""Reads the ledger's queue watch. Its messages may be lost or repeated: polls back up the offers and the endings.

For interrupting messages there is no poll: the first message of each stream says that some may have been lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from services.coordinator.ledger_client import LedgerClient
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import TenureError
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import note_progress, rest
from tenure.v1 import coordinator_service_pb2 as coordinator_pb

_log: Final = logging.getLogger(__name__)
_AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


class InterruptNotices:
    """Tells workers that are attached here of interrupting messages. The owner reads the message in the ledger."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def send(self, task_ids: Iterable[str], *, to_all: bool) -> None:
        """Sends the notices. `to_all`: some may have been lost, so that each worker looks into all of its tasks.

        A worker whose outbox is full gets none, because one more message would end its stream.
        """
        wanted = [("", session) for session in self._sessions] if to_all else self._sessions.holders_of(set(task_ids))
        for task_id, session in wanted:
            if session.room:
                notice = coordinator_pb.InterruptNotice(task_id=task_id)
                session.send(coordinator_pb.SessionResponse(interrupt=notice))


class QueueListener:
    """Passes on the messages of the queue watch. The duty is `run`."""

    def __init__(
        self,
        ledger: LedgerClient,
        on_queued: Callable[[], None],
        on_cancels: Callable[[Iterable[str]], None],
        notices: InterruptNotices,
    ) -> None:
        self._ledger = ledger
        self._on_queued = on_queued
        self._on_cancels = on_cancels
        self._notices = notices

    async def run(self) -> None:
        """Watches, and watches again after every end. A duty."""
        failures = 0
        while True:
            note_progress()
            self._on_queued()  # messages may have been lost while there was no stream
            try:
                async with aclosing(self._ledger.watch_queue()) as messages:
                    async for message in messages:
                        failures = 0
                        note_progress()
                        if message.claimable:
                            self._on_queued()
                        self._on_cancels(message.cancel_task_ids)
                        self._notices.send(message.interrupt_task_ids, to_all=message.interrupts_lost)
            except TenureError as error:
                _log.info("the queue watch broke and is opened again", extra={"error": error})
            failures += 1
            await rest(_AGAIN.wait_seconds(failures, random.random()))
