"""Listens to the ledger's hints. They may be lost or repeated: polls stand behind both uses of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import TenureError
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import note_progress, rest

if TYPE_CHECKING:
    from services.coordinator.ledger_client import LedgerClient

_log: Final = logging.getLogger(__name__)
_AGAIN: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


class QueueListener:
    """The duty `run` hands hints on."""

    def __init__(
        self, ledger: LedgerClient, on_queued: Callable[[], None], on_cancels: Callable[[Iterable[str]], None]
    ) -> None:
        self._ledger = ledger
        self._on_queued = on_queued
        self._on_cancels = on_cancels

    async def run(self) -> None:
        """Duty: watch, and watch again."""
        failures = 0
        while True:
            note_progress()
            self._on_queued()  # whatever was said while nobody listened
            try:
                async with aclosing(self._ledger.watch_queue()) as hints:
                    async for hint in hints:
                        failures = 0
                        note_progress()
                        if hint.claimable:
                            self._on_queued()
                        self._on_cancels(hint.cancel_task_ids)
            except TenureError as error:
                _log.info("the ledger's hints have to be asked for again", extra={"error": error})
            failures += 1
            await rest(_AGAIN.wait_seconds(failures, random.random()))
