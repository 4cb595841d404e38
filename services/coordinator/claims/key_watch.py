"""Watches deleted keys in etcd, and requeues the claims that ended with their session, with the true reason.

An expired lease deletes its session's key and its claims in one revision: LEASE_EXPIRED. A coordinator that ends a
session deletes the session's key first and then revokes the lease: WORKER_LOST. A claim that is deleted alone was
deleted by a process that knows the reason and requeues the task. This watch is the fast way; the reconciliation is the
reliable one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from typing import Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.generation import Generation
from services.coordinator.lease_store import HeldClaim, HeldSession, LeaseStore
from services.coordinator.lease_store.events import DeletedKeys, GenerationDoubt
from services.coordinator.lease_store.session_keys import DrainMark
from services.coordinator.operator_requests import OperatorRequests
from services.coordinator.sessions.lease_end import lease_end
from services.coordinator.sessions.session import AttachedSession
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.states import Reason
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import ledger_pb2

_MAX_REMEMBERED: Final = 10_000
_OTHERS_HEAD_START_SECONDS: Final = 0.3
"""The replica of the session knows the claims' progress, so the other replicas wait this long."""
_PAUSE_SECONDS: Final = 0.5
_SETTLING_SECONDS: Final = 0.5
"""The duty reports its progress this often while it waits for the generation."""


class KeyWatch:
    """Watches session and claim keys. The duty is `run`."""

    def __init__(
        self,
        coordinator_id: str,
        store: LeaseStore,
        sessions: Sessions,
        lost_claims: LostClaims,
        generation: Generation,
        operator_requests: OperatorRequests,
    ) -> None:
        self._coordinator_id = coordinator_id
        self._store = store
        self._sessions = sessions
        self._lost_claims = lost_claims
        self._generation = generation
        self._operator_requests = operator_requests
        self._ended: OrderedDict[str, tuple[HeldSession, int]] = OrderedDict()

    async def run(self) -> None:
        """Watches from now on. The reconciliation finds earlier and missed deletions. A duty."""
        async with TaskGroup() as requeues:
            while True:
                note_progress()
                try:
                    generation = await self._generation.settled(_SETTLING_SECONDS)
                except Unavailable:
                    continue
                try:
                    revision = (await self._store.generation.read()).revision
                    await self._watch(revision + 1, generation, requeues)
                except Unavailable:
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _watch(self, start_revision: int, generation: int, requeues: TaskGroup) -> None:
        """Watches from a revision.

        `generation`: that of the watch's begin, so that a late doubt about it spares the next one.
        """
        async with aclosing(self._store.watch(start_revision)) as events:
            async for event in events:
                match event:
                    case GenerationDoubt(another_life):
                        self._generation.doubt(lost_life=generation if another_life else -1)
                    case DeletedKeys():
                        self._handle_deletions(event, requeues)
                    case DrainMark(session_id, record):
                        self._operator_requests.is_draining(session_id, record)

    def _handle_deletions(self, event: DeletedKeys, requeues: TaskGroup) -> None:
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
            lost = self._lost_claims_of(claims, expired=ended[1] == event.revision)
            was_attached_here = ended[0].record.coordinator_id == self._coordinator_id
            requeues.create_task(self._requeue(lost, 0.0 if was_attached_here else _OTHERS_HEAD_START_SECONDS))

    def _session_ended(self, ended: HeldSession, revision: int) -> None:
        self._ended[ended.session_id] = (ended, revision)
        if len(self._ended) > _MAX_REMEMBERED:
            self._ended.popitem(last=False)
        session = self._sessions.get(ended.session_id)
        if session is not None and session.held.mod_revision == ended.mod_revision:
            session.lose("the session has ended")

    def _revoke(self, session_id: str, claims: list[HeldClaim]) -> None:
        """Revokes claims that were deleted alone: their worker must stop."""
        session = self._sessions.get(session_id)
        for claim in claims:
            if session is not None:
                session.revoke(claim.record.claim_id, Reason.CLAIM_LOST)

    def _lost_claims_of(self, claims: list[HeldClaim], *, expired: bool) -> list[LostClaim]:
        session = self._sessions.last_known(claims[0].record.session_id)
        reason, message = _why(claims[0].record.worker_id, session, expired=expired)
        if session is not None:
            silent_seconds = session.unheard_of_seconds(asyncio.get_running_loop().time())
            metrics.observe("tenure_loss_detection_seconds", silent_seconds, reason=reason)
        return [
            LostClaim.of(claim, reason, message, _reported_call(session, claim), _lease_end(session, claim))
            for claim in claims
        ]

    async def _requeue(self, lost: list[LostClaim], delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        await self._lost_claims.requeue(lost)


def _why(worker_id: str, session: AttachedSession | None, *, expired: bool) -> tuple[str, str]:
    if expired and session is not None and session.is_unanswered:
        return Reason.CLAIM_LOST, f"worker {worker_id} renewed its lease, but etcd did not answer"
    if expired:
        return Reason.LEASE_EXPIRED, f"worker {worker_id} did not renew its lease in time"
    if session is not None and session.draining:
        return Reason.WORKER_DRAINED, f"worker {worker_id} drained without releasing the task"
    return Reason.WORKER_LOST, f"the stream of worker {worker_id} broke, and the worker did not attach again"


def _lease_end(session: AttachedSession | None, claim: HeldClaim) -> ledger_pb2.LeaseEnd | None:
    return None if session is None else lease_end(session, claim.record.claim_id)


def _reported_call(session: AttachedSession | None, claim: HeldClaim) -> ReportedCall | None:
    """Returns the newest model call as reported to this replica, or None."""
    worked = session.claims.get(claim.record.claim_id) if session is not None else None
    return worked.progress.reported.call if worked is not None else None
