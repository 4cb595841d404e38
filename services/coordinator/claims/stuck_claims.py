"""Revokes and requeues claims whose workers are alive but never open the task or make no progress."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from tenure.domain.states import Reason
from tenure.runtime.process import rest
from tenure.runtime.task_group import TaskGroup

if TYPE_CHECKING:
    from services.coordinator.sessions.session import AttachedSession, WorkedClaim
    from services.coordinator.sessions.session_attach import Sessions

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.5


class StuckClaims:
    """Checks the renewals of this replica's sessions. The duty is `run`."""

    def __init__(self, sessions: Sessions, lost_claims: LostClaims) -> None:
        self._sessions = sessions
        self._lost_claims = lost_claims

    async def run(self) -> None:
        """Checks all sessions twice a second. A duty."""
        async with TaskGroup() as group:
            while True:
                await rest(_LOOK_SECONDS)
                now = asyncio.get_running_loop().time()
                for session in self._sessions:
                    if not session.is_current(now):
                        continue  # a replica that slept has only old reports
                    for claim, why in _stuck_claims_of(session):
                        group.create_task(self._end_claim(claim, *why))

    async def _end_claim(self, claim: WorkedClaim, reason: str, message: str) -> None:
        _log.warning("a claim is revoked", extra={"task": claim.held.task_id, "reason": reason, "why": message})
        call = claim.progress.reported.call
        await self._lost_claims.delete_and_requeue(claim.held, LostClaim.of(claim.held, reason, message, call))


def _stuck_claims_of(session: AttachedSession) -> list[tuple[WorkedClaim, tuple[str, str]]]:
    """Revokes the stuck claims of a session, and returns them with reason and message."""
    stuck = [(claim, why) for claim in session.claims.values() if (why := _why(session, claim)) is not None]
    for claim, (reason, _) in stuck:
        session.revoke(claim.held.record.claim_id, reason)
    return stuck


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
