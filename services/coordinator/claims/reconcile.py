"""Lists are truth: every few seconds ledger and etcd are compared, and what does not fit is put right.

Running rows are read first and claims after them: a row read later could belong to a claim made after the list.
Whatever is found, somebody may be about to do already; so each finding has to last before anything is done about it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.ledger_client import MAX_CLAIMS, LedgerClient
from tenure.domain.errors import TenureError
from tenure.domain.states import Reason
from tenure.runtime.process import note_progress, rest
from tenure.v1 import task_pb2

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldClaim, LeaseStore
    from services.coordinator.operator_requests import OperatorRequests
    from services.coordinator.sessions.session import Timing
    from services.coordinator.sessions.session_attach import Sessions
    from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_LASTING_SECONDS: Final = 1.0
"""How long a running row has to be without its claim: the watch needs milliseconds, and knows the reason."""
_WORKED_ON: Final = frozenset({task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING})


class Reconciliation:
    """The duty `run`. In every replica; all it does is conditional."""

    def __init__(
        self,
        store: LeaseStore,
        ledger: LedgerClient,
        sessions: Sessions,
        losses: LostClaims,
        interval_seconds: float,
        timing: Timing,
        operating: OperatorRequests,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sessions = sessions
        self._losses = losses
        self._interval_seconds = interval_seconds
        self._start_timeout_seconds = timing.start_timeout_seconds
        self._operating = operating
        self._suspects: dict[str, float] = {}

    async def run(self) -> None:
        """Duty."""
        while True:
            await rest(self._interval_seconds * random.uniform(0.8, 1.2))
            try:
                await self._compare()
            except TenureError as error:
                _log.warning("ledger and etcd could not be compared", extra={"error": error})

    async def _compare(self) -> None:
        running = {row.task_id: row for row in await self._ledger.list_running()}
        claims = await self._store.claims.list_all()
        lost = [row for row in running.values() if _claim_id(claims.get(row.task_id)) != row.claim_id]
        others = [
            claim
            for claim in claims.values()
            if _running_under(running.get(claim.task_id)) != _claim_id(claim) or self._is_dropped(claim)
        ]
        self._clear_suspects(running)
        await self._end_absent_sessions()
        await self._operating.remind()
        await self._delete_unworked(others)
        await self._requeue(lost)

    def _clear_suspects(self, running: dict[str, pb.ListRunningResponse.Running]) -> None:
        """Tasks that made a step since they were granted may be held beside any other."""
        for session in self._sessions:
            for claim in session.claims.values():
                row = running.get(claim.held.task_id) if claim.suspect else None
                if row is not None and row.claim_id == claim.held.record.claim_id:
                    claim.suspect = row.suspect

    async def _end_absent_sessions(self) -> None:
        """Streams of sessions that etcd has no more: the watch may have missed their end."""
        attached = list(self._sessions)
        known = {session.session_id for session in await self._store.sessions.list_all()}
        for session in attached:
            if session.session_id not in known:
                session.lose("the session has ended")

    async def _requeue(self, lost: list[pb.ListRunningResponse.Running]) -> None:
        if not lost:
            return
        await asyncio.sleep(_LASTING_SECONDS)
        await self._losses.requeue(
            LostClaim(row.task_id, row.claim_id, Reason.CLAIM_LOST, f"the claim of {row.owner or 'its worker'} is gone")
            for row in lost
        )

    async def _delete_unworked(self, claims: list[HeldClaim]) -> None:
        """Claims that are not the running one of their task, or that their worker does not hold.

        They are about to be opened or released, or they were left behind.
        """
        now = asyncio.get_running_loop().time()
        since = {each.record.claim_id: self._suspects.get(each.record.claim_id, now) for each in claims}
        self._suspects = since
        old = [each for each in claims if now - since[each.record.claim_id] >= self._interval_seconds / 2]
        for start in range(0, len(old), MAX_CLAIMS):
            batch = old[start : start + MAX_CLAIMS]
            for claim, verdict in zip(batch, await self._ledger.inspect(batch), strict=True):
                why = self._why_delete(claim, verdict, now - since[claim.record.claim_id])
                note_progress()
                if why is not None:
                    await self._delete(claim, why)

    def _why_delete(
        self, claim: HeldClaim, verdict: pb.InspectClaimsResponse.Verdict, suspect_seconds: float
    ) -> str | None:
        if verdict.registered and verdict.state not in _WORKED_ON:
            return "its task is neither queued nor running"
        if suspect_seconds < self._start_timeout_seconds:
            return None
        if not verdict.registered:
            return "the ledger does not know it"
        return "its worker does not hold it" if self._is_dropped(claim) else None

    def _is_dropped(self, claim: HeldClaim) -> bool:
        """Whether it is a claim of a session attached here whose worker came without it, or was told that it is lost.

        A release that died with the replica it was said to leaves one behind, and so does a deletion that failed.
        """
        session = self._sessions.get(claim.record.session_id)
        if session is None or claim.record.claim_id in session.claims:
            return False
        return session.is_current(asyncio.get_running_loop().time())

    async def _delete(self, claim: HeldClaim, why: str) -> None:
        _log.warning("a claim that nobody works under is deleted", extra={"task": claim.task_id, "why": why})
        message = f"a claim of {claim.record.worker_id} was left behind: {why}"
        await self._losses.take_away(claim, LostClaim.of(claim, Reason.CLAIM_LOST, message))


def _claim_id(claim: HeldClaim | None) -> str:
    return "" if claim is None else claim.record.claim_id


def _running_under(row: pb.ListRunningResponse.Running | None) -> str:
    return "" if row is None else row.claim_id
