"""A worker's stream broke. It has a moment to come back, to any replica; then its session ends and its tasks go on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

from tenure.domain.errors import Unavailable
from tenure.runtime import metrics

if TYPE_CHECKING:
    from services.coordinator.lease_store import LeaseStore
    from services.coordinator.session import Session

_log: Final = logging.getLogger(__name__)


class Takeover:
    """Ends sessions whose streams broke. Closed, it drops what it was waiting for: a draining replica ends nothing."""

    def __init__(self, store: LeaseStore, grace_seconds: float) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def begin(self, session: Session, *, announced: bool) -> None:
        """End the session after the grace, at once if the worker said goodbye; unless it is attached anew by then."""
        grace_seconds = 0.0 if announced else self._grace_seconds
        task = asyncio.create_task(self._end(session, grace_seconds), name=f"takeover {session.session_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _end(self, session: Session, grace_seconds: float) -> None:
        await asyncio.sleep(grace_seconds)
        facts = {"worker": session.worker_id, "session": session.session_id, "claims": len(session.claims)}
        try:
            ended = await self._store.sessions.end(session.held)
        except Unavailable as error:
            # Not tried again: while etcd did not answer, the worker could not come back either.
            _log.warning("a session could not be ended; its lease will", extra={**facts, "error": error})
            return
        metrics.count("tenure_takeovers_total", ended=str(ended).lower())
        _log.info("ended a session" if ended else "a worker came back elsewhere", extra=facts)
