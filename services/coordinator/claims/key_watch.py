"""Watches keys vanish, and requeues what vanished with its session, for a reason that is true.

A lease that ends takes its session's key and its claims in one revision: LEASE_EXPIRED. A coordinator that ends a
session deletes the session's key first and revokes the lease after it: WORKER_LOST. A claim that vanishes alone was
deleted by somebody who knows why, and who requeues it. This is the quick way; the reconciliation is the sure one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.lease_store.events import DeletedKeys, GenerationDoubt
from services.coordinator.lease_store.session_keys import DrainMark
from tenure.domain.errors import Unavailable
from tenure.domain.states import Reason
from tenure.runtime.process import note_progress
from tenure.runtime.task_group import TaskGroup

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.lease_store import HeldClaim, HeldSession, LeaseStore
    from services.coordinator.operator_requests import OperatorRequests
    from services.coordinator.sessions.session import AttachedSession
    from services.coordinator.sessions.session_attach import Sessions
    from tenure.domain.lost_model_calls import ReportedCall

_log: Final = logging.getLogger(__name__)
_MOST_REMEMBERED: Final = 10_000
_OTHERS_HEAD_START_SECONDS: Final = 0.3
"""The replica a session was attached to has heard its progress, so it goes first."""
_PAUSE_SECONDS: Final = 0.5


class KeyWatch:
    """The duty `run` is the watch."""

    def __init__(
        self,
        coordinator_id: str,
        store: LeaseStore,
        sessions: Sessions,
        losses: LostClaims,
        generation: Generation,
        operating: OperatorRequests,
    ) -> None:
        self._coordinator_id = coordinator_id
        self._store = store
        self._sessions = sessions
        self._losses = losses
        self._generation = generation
        self._operating = operating
        self._ended: OrderedDict[str, tuple[HeldSession, int]] = OrderedDict()

    async def run(self) -> None:
        """Duty: watch from now on; what happened before, or is missed, is found by the reconciliation."""
        async with TaskGroup() as requeues:
            while True:
                try:
                    generation = await self._generation.settled(_PAUSE_SECONDS)
                    revision = (await self._store.generation.read()).revision
                    await self._watch(revision + 1, generation, requeues)
                except Unavailable:
                    note_progress()
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _watch(self, start_revision: int, generation: int, requeues: TaskGroup) -> None:
        """`generation`: where the watch began. What it learns late of that one's end is not held against the next."""
        async with aclosing(self._store.watch(start_revision)) as events:
            async for event in events:
                match event:
                    case GenerationDoubt(another_life):
                        self._generation.doubt(lost_life=generation if another_life else -1)
                    case DeletedKeys():
                        self._take_in(event, requeues)
                    case DrainMark(session_id, record):
                        self._operating.is_draining(session_id, record)

    def _take_in(self, event: DeletedKeys, requeues: TaskGroup) -> None:
        for session in event.sessions:
            self._session_ended(session, event.revision)
        by_session: dict[str, list[HeldClaim]] = {}
        for claim in event.claims:
            by_session.setdefault(claim.record.session_id, []).append(claim)
        for session_id, claims in by_session.items():
            ended = self._ended.get(session_id)
            if ended is None:
                self._revoke(session_id, claims)
                continue
            lost = self._lost(claims, expired=ended[1] == event.revision)
            is_ours = ended[0].record.coordinator_id == self._coordinator_id
            requeues.create_task(self._requeue(lost, 0.0 if is_ours else _OTHERS_HEAD_START_SECONDS))

    def _session_ended(self, ended: HeldSession, revision: int) -> None:
        self._ended[ended.session_id] = (ended, revision)
        if len(self._ended) > _MOST_REMEMBERED:
            self._ended.popitem(last=False)
        session = self._sessions.get(ended.session_id)
        if session is not None and session.held.mod_revision == ended.mod_revision:
            session.lose("the session has ended")

    def _revoke(self, session_id: str, claims: list[HeldClaim]) -> None:
        """Somebody deleted these alone. Whoever worked on them is to know."""
        session = self._sessions.get(session_id)
        for claim in claims:
            if session is not None:
                session.revoke(claim.record.claim_id, Reason.CLAIM_LOST)

    def _lost(self, claims: list[HeldClaim], *, expired: bool) -> list[LostClaim]:
        session = self._sessions.last_known(claims[0].record.session_id)
        reason, message = _why(claims[0].record.worker_id, session, expired=expired)
        return [LostClaim.of(claim, reason, message, _reported_call(session, claim)) for claim in claims]

    async def _requeue(self, lost: list[LostClaim], delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        await self._losses.requeue(lost)


def _why(worker_id: str, session: AttachedSession | None, *, expired: bool) -> tuple[str, str]:
    if expired and session is not None and session.is_unanswered:
        return Reason.CLAIM_LOST, f"worker {worker_id} renewed its lease, and etcd did not answer"
    if expired:
        return Reason.LEASE_EXPIRED, f"worker {worker_id} did not renew its lease in time"
    if session is not None and session.draining:
        return Reason.WORKER_DRAINED, f"worker {worker_id} drained and left the task behind"
    return Reason.WORKER_LOST, f"the connection to worker {worker_id} broke and it did not come back"


def _reported_call(session: AttachedSession | None, claim: HeldClaim) -> ReportedCall | None:
    """The newest model call, as far as this replica heard of it."""
    worked = session.claims.get(claim.record.claim_id) if session is not None else None
    return worked.progress.reported.call if worked is not None else None
