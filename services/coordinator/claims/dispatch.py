"""Decides when to ask the ledger for offers and for how many: only as many as sessions here can take now.

The queue watch triggers a request, and a poll backs it up. After a list that was shorter than asked, another free slot
does not trigger a request: a task must have been queued since.
"""

from __future__ import annotations

import asyncio
import logging
from functools import reduce
from typing import Final

from services.coordinator.claims.assigning import tier_of
from services.coordinator.claims.granting import ClaimGranter
from services.coordinator.generation import Generation
from services.coordinator.lease_store.claim_keys import MAX_BATCH
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.sessions.session import AttachedSession, WorkerProfile
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import TenureError
from tenure.domain.fairness import NO_SLOTS, Slots
from tenure.domain.task import Priority
from tenure.runtime.process import note_progress, resting
from tenure.runtime.rpc.status import PeerFailed

_log: Final = logging.getLogger(__name__)
MAX_WORKERS_NAMED: Final = 1000
"""The limit of worker ids in one request. With more workers, an operator's transfer to an unnamed one waits longer."""
_POLL_SECONDS: Final = 0.5


class Dispatch:
    """Brings offers and sessions together, one worker profile at a time. The duty is `run`."""

    def __init__(
        self,
        ledger: LedgerClient,
        sessions: Sessions,
        granting: ClaimGranter,
        generation: Generation,
        stopping: asyncio.Event,
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._granting = granting
        self._generation = generation
        self._stopping = stopping
        self._woken = asyncio.Event()
        self._wakeups = 0
        # Profiles whose last list was shorter than asked, with the lowest tier that had slots left.
        self._dry: dict[WorkerProfile, Priority] = {}

    def on_queued(self) -> None:
        """Wakes the dispatch: a task may be claimable."""
        self._wakeups += 1
        self._dry.clear()
        self._woken.set()

    def on_slots(self, session: AttachedSession) -> None:
        """Wakes the dispatch if a session has slots for which there may be tasks."""
        slots = session.slots(asyncio.get_running_loop().time())
        if not self._is_dry(session.profile, slots):
            self._woken.set()

    async def run(self) -> None:
        """Dispatches until the replica drains. A batch that was begun is carried to its end. A duty."""
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                while await self._round():
                    pass
            except (
                TenureError,
                PeerFailed,
            ) as error:  # one replica may have a bug, or another version
                _log.warning("the dispatch of offers failed and is retried", extra={"error": error})
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                with resting():
                    await self._woken.wait()
        except TimeoutError:
            self._dry.clear()

    async def _round(self) -> bool:
        """Serves each profile with free slots once. Returns whether there may be more offers for any of them."""
        more = False
        for profile, sessions in self._by_profile().items():
            if self._stopping.is_set() or not self._generation.is_settled:
                return False
            note_progress()
            more |= await self._serve(profile, sessions)
        return more

    async def _serve(self, profile: WorkerProfile, sessions: list[AttachedSession]) -> bool:
        now = asyncio.get_running_loop().time()
        slots = sum((session.slots(now) for session in sessions), NO_SLOTS).at_most(MAX_BATCH)
        if self._is_dry(profile, slots):
            return False
        wakeups = self._wakeups
        without_suspects = all(session.has_suspect for session in sessions)
        worker_ids = {session.worker_id for session in sessions[:MAX_WORKERS_NAMED]}
        offers = await self._ledger.list_claimable(profile, slots, worker_ids, without_suspects=without_suspects)
        short_of = reduce(Slots.after, map(tier_of, offers), slots).lowest_tier()
        if short_of is not None and wakeups == self._wakeups:
            self._dry[profile] = short_of
        if offers:
            await self._granting.grant(offers, sessions)
        return short_of is None

    def _is_dry(self, profile: WorkerProfile, slots: Slots) -> bool:
        """Whether the ledger is known to have no task for any of these slots."""
        lowest, dry = slots.lowest_tier(), self._dry.get(profile)
        return lowest is None or (dry is not None and lowest <= dry)

    def _by_profile(self) -> dict[WorkerProfile, list[AttachedSession]]:
        now = asyncio.get_running_loop().time()
        grouped: dict[WorkerProfile, list[AttachedSession]] = {}
        for session in self._sessions:
            if session.slots(now).any > 0:
                grouped.setdefault(session.profile, []).append(session)
        return grouped
