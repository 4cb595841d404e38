"""Reads the ledger's queue watch. Its messages may be lost or repeated: polls back up both uses of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from services.coordinator.ledger_client import LedgerClient
from tenure.domain.errors import TenureError
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import note_progress, rest

_log: Final = logging.getLogger(__name__)
_AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


class QueueListener:
    """Passes on the messages of the queue watch. The duty is `run`."""

    def __init__(
        self, ledger: LedgerClient, on_queued: Callable[[], None], on_cancels: Callable[[Iterable[str]], None]
    ) -> None:
        self._ledger = ledger
        self._on_queued = on_queued
        self._on_cancels = on_cancels

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
            except TenureError as error:
                _log.info("the queue watch broke and is opened again", extra={"error": error})
            failures += 1
            await rest(_AGAIN.wait_seconds(failures, random.random()))
