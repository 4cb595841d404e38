"""Revokes and requeues claims whose workers never open the task, make no progress, or stay silent for longer than the
TTL of the task's own lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.lease_store import LeaseStore
from services.coordinator.sessions.lease_end import lease_end
from services.coordinator.sessions.session import AttachedSession, WorkedClaim
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import TenureError
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import Reason
from tenure.runtime.process import rest
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import ledger_pb2

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.5
_LATE_SECONDS: Final = 2 * _LOOK_SECONDS
"""After a longer pause between two looks, this replica was frozen, and silence is counted anew."""


class StuckClaims:
    """Checks the renewals of this replica's sessions. The duty is `run`."""

    def __init__(self, store: LeaseStore, sessions: Sessions, lost_claims: LostClaims) -> None:
        self._store = store
        self._sessions = sessions
        self._lost_claims = lost_claims

    async def run(self) -> None:
        """Checks all sessions twice a second. A duty."""
        async with TaskGroup() as group:
            clock = asyncio.get_running_loop().time
            now = watched_since = clock()
            while True:
                looked_at = now
                await rest(_LOOK_SECONDS)
                now = clock()
                if now - looked_at > _LATE_SECONDS:
                    watched_since = now
                for session in self._sessions:
                    if expired := session.expired_claims(now, watched_since):
                        group.create_task(self._end_expired(session, expired))
                    if not session.is_current(now):
                        continue  # a replica that slept has only old reports
                    for claim, end, why in _stuck_claims_of(session):
                        group.create_task(self._end_claim(claim, end, *why))

    async def _end_expired(self, session: AttachedSession, expired: Sequence[WorkedClaim]) -> None:
        """Ends claims whose tasks' own leases have expired, unless their worker moved to another replica."""
        try:
            stored = await self._store.sessions.find(session.session_id)
        except TenureError as error:
            _log.warning("a silent session could not be read", extra={"worker": session.worker_id, "error": error})
            return
        if stored is None or stored.mod_revision != session.held.mod_revision:
            return
        for claim in expired:
            end = lease_end(session, claim.held.record.claim_id)
            if session.revoke(claim.held.record.claim_id, Reason.LEASE_EXPIRED) is not None:
                await self._end_claim(claim, end, Reason.LEASE_EXPIRED, _silence(session, claim))

    async def _end_claim(self, claim: WorkedClaim, end: ledger_pb2.LeaseEnd | None, reason: str, message: str) -> None:
        fields = {"task": claim.held.task_id, "epoch": describe_epoch(claim.held.epoch)}
        fields["claim"] = claim.held.record.claim_id
        _log.warning("a claim is revoked", extra={**fields, "reason": reason, "why": message})
        call = claim.progress.reported.call
        await self._lost_claims.delete_and_requeue(claim.held, LostClaim.of(claim.held, reason, message, call, end))


def _stuck_claims_of(
    session: AttachedSession,
) -> list[tuple[WorkedClaim, ledger_pb2.LeaseEnd | None, tuple[str, str]]]:
    """Revokes the stuck claims of a session, and returns them with the ends of their leases, reason and message."""
    stuck = [
        (claim, lease_end(session, claim_id), why)
        for claim_id, claim in session.claims.items()
        if (why := _why(session, claim)) is not None
    ]
    for claim, _, (reason, _) in stuck:
        session.revoke(claim.held.record.claim_id, reason)
    return stuck


def _silence(session: AttachedSession, claim: WorkedClaim) -> str:
    ttl_seconds = session.timing.lease_seconds(claim.held.record)
    return f"worker {session.worker_id} sent no renewal for {ttl_seconds:g} s, the TTL of the task's lease"


def _why(session: AttachedSession, claim: WorkedClaim) -> tuple[str, str] | None:
    worker, timing, renewed_at = session.worker_id, session.timing, session.renewed_at
    # Counted at the last renewal: a worker that sends none is not stuck but dead, and its lease will expire.
    if renewed_at is None:
        return None
    if claim.unnamed_since is not None:
        unnamed_seconds = renewed_at - claim.unnamed_since
        if unnamed_seconds >= timing.start_timeout_seconds:
            return Reason.CLAIM_LOST, f"worker {worker} did not name the claim for {unnamed_seconds:.1f} s"
    if claim.unopened_since is not None and (limit_seconds := claim.held.record.start_timeout_seconds):
        unopened_seconds = renewed_at - claim.unopened_since
        if unopened_seconds >= limit_seconds:
            return Reason.START_TIMEOUT, f"worker {worker} did not open the task within {unopened_seconds:.1f} s"
    if claim.progress.is_stuck(renewed_at):
        patience = claim.progress.timeout_seconds
        return Reason.WORKER_STUCK, f"worker {worker} is alive but made no progress for {patience:g} s"
    return None
