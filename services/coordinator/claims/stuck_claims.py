"""Claims of live workers that do not get on: never taken up, or without progress. They go to somebody else."""

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
    """The duty `run` looks at what the renewals of this replica's sessions say."""

    def __init__(self, sessions: Sessions, losses: LostClaims) -> None:
        self._sessions = sessions
        self._losses = losses

    async def run(self) -> None:
        """Duty."""
        async with TaskGroup() as group:
            while True:
                await rest(_LOOK_SECONDS)
                now = asyncio.get_running_loop().time()
                for session in self._sessions:
                    if not session.is_current(now):
                        continue  # a replica that slept judges nobody by what it heard before
                    for claim, why in _stuck_claims_of(session):
                        group.create_task(self._take_away(claim, *why))

    async def _take_away(self, claim: WorkedClaim, reason: str, message: str) -> None:
        _log.warning("a claim is taken away", extra={"task": claim.held.task_id, "reason": reason, "why": message})
        call = claim.progress.reported.call
        await self._losses.take_away(claim.held, LostClaim.of(claim.held, reason, message, call))


def _stuck_claims_of(session: AttachedSession) -> list[tuple[WorkedClaim, tuple[str, str]]]:
    """The claims that have to go; they are the session's no more, and its worker is told."""
    stalled = [(claim, why) for claim in session.claims.values() if (why := _why(session, claim)) is not None]
    for claim, (reason, _) in stalled:
        session.revoke(claim.held.record.claim_id, reason)
    return stalled


def _why(session: AttachedSession, claim: WorkedClaim) -> tuple[str, str] | None:
    worker, timing, renewed_at = session.worker_id, session.timing, session.renewed_at
    # Counted by renewals: a worker that sends none is not idle but dead, and its lease will tell.
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
