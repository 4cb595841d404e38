"""Keeps the coordinator's own session: close-outs use claims like any other, and a claim needs a lease."""

from __future__ import annotations

import asyncio
import logging
from time import time
from typing import Final, Self
from uuid import uuid4

from services.coordinator.generation import Generation
from services.coordinator.lease_store import GenerationMoved, HeldSession, LeaseStore, SessionLost, SessionRecord
from services.coordinator.sessions.session import Timing
from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.process import note_progress

_log: Final = logging.getLogger(__name__)


class OwnSession:
    """A session that begins at the first use, is renewed by this process, and ends with it."""

    def __init__(
        self,
        coordinator_id: str,
        store: LeaseStore,
        generation: Generation,
        timing: Timing,
    ) -> None:
        self.holder = f"coordinator/{coordinator_id}"
        self._coordinator_id = coordinator_id
        self._store = store
        self._generation = generation
        self._timing = timing
        self._held: HeldSession | None = None
        self._beginning = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                await self._store.sessions.end(held)
            except TenureError as error:
                _log.info("the coordinator's own session was not ended; its lease will expire", extra={"error": error})

    async def current(self) -> HeldSession:
        """Returns the session, and begins one if there is none. Raises Unavailable."""
        async with self._beginning:
            generation = self._generation.current()
            if self._held is None or self._held.record.generation != generation:
                self._held = await self._begin(generation)
            return self._held

    async def run(self) -> None:
        """Renews the session. A duty."""
        while True:
            note_progress()
            await asyncio.sleep(self._timing.renew_interval_seconds)
            held = self._held
            if held is None:
                continue
            try:
                await self._store.sessions.keep_alive(held, timeout_seconds=self._timing.renew_interval_seconds)
            except SessionLost:
                self.forget(held)
            except Unavailable as error:
                _log.warning("the coordinator's own session was not renewed", extra={"error": error})

    def forget(self, held: HeldSession) -> None:
        """Drops a lost session: the next close-out begins another."""
        if self._held is held:
            self._held = None

    async def _begin(self, generation: int) -> HeldSession:
        record = SessionRecord(
            worker_id=self.holder,
            coordinator_id=self._coordinator_id,
            generation=generation,
            started_at=time(),
            own=True,
        )
        try:
            return await self._store.sessions.create(str(uuid4()), record, self._timing.ttl_seconds)
        except (GenerationMoved, SessionLost) as error:
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled") from error
