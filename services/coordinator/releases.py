"""Claims that workers give back. The key is deleted; what the worker left RUNNING goes back into the queue."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

from services.coordinator.losses import LostClaim
from tenure.domain.errors import TenureError
from tenure.domain.states import ReleaseReason

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldClaim, LeaseStore
    from services.coordinator.losses import Losses
    from services.coordinator.session import Session, WorkedClaim
    from tenure.v1 import coordinator_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_NOTHING_LEFT: Final = frozenset({ReleaseReason.CLOSED, ReleaseReason.FENCED})
"""Reasons that leave nothing to requeue: the task was moved out of RUNNING, or is another owner's."""
_CLOSING_SECONDS: Final = 3.0


class Releases:
    """Carries releases out beside the streams they came by: a worker may say goodbye right after them."""

    def __init__(self, store: LeaseStore, losses: Losses) -> None:
        self._store = store
        self._losses = losses
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSING_SECONDS)
        for task in self._running:
            task.cancel()

    def give_back(self, session: Session, release: pb.Release) -> None:
        """Begin it."""
        claim = session.claims.pop(release.claim_id, None)
        carrying_out = self._carry_out(session, claim, release)
        task = asyncio.create_task(carrying_out, name=f"release {release.task_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry_out(self, session: Session, claim: WorkedClaim | None, release: pb.Release) -> None:
        try:
            held = claim.held if claim is not None else await self._find(session, release)
            if held is None:
                return
            if release.reason in _NOTHING_LEFT:
                await self._losses.delete(held)
                return
        except TenureError as error:
            _log.warning("a claim could not be given back", extra={"task": release.task_id, "error": error})
            return
        message = f"worker {session.worker_id} gave the task back"
        call = claim.progress.heard.call if claim is not None else None
        await self._losses.take_away(held, LostClaim.of(held, release.reason, message, call))

    async def _find(self, session: Session, release: pb.Release) -> HeldClaim | None:
        """A claim that a worker let go of while its stream was broken: it came back without holding it."""
        held = (await self._store.claims.find_many([release.task_id])).get(release.task_id)
        if held is None or (held.record.claim_id, held.record.session_id) != (release.claim_id, session.session_id):
            return None
        return held
