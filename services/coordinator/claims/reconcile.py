"""Compares the ledger with etcd every few seconds, and repairs the differences.

It reads the running tasks first and the claims second: a task row that was read later could belong to a claim that was
made after the list of claims. Another process may be about to repair a difference already, so each difference must last
for a time first.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.lease_store import HeldClaim, LeaseStore
from services.coordinator.ledger_client import MAX_CLAIMS, LedgerClient
from services.coordinator.operator_requests import OperatorRequests
from services.coordinator.sessions.session import AttachedSession, Timing
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import TenureError
from tenure.domain.states import Reason
from tenure.runtime.process import note_progress, rest
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2

_log: Final = logging.getLogger(__name__)
_LASTING_SECONDS: Final = 1.0
"""The time for which a running task must be without its claim.

The key watch needs milliseconds, and knows the reason.
"""
_WORKED_ON: Final = frozenset({task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING})


class Reconciliation:
    """Compares in every replica; all its writes are conditional. The duty is `run`."""

    def __init__(
        self,
        store: LeaseStore,
        ledger: LedgerClient,
        sessions: Sessions,
        lost_claims: LostClaims,
        interval_seconds: float,
        timing: Timing,
        operator_requests: OperatorRequests,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sessions = sessions
        self._lost_claims = lost_claims
        self._interval_seconds = interval_seconds
        self._start_timeout_seconds = timing.start_timeout_seconds
        self._operator_requests = operator_requests
        self._suspects: dict[str, float] = {}

    async def run(self) -> None:
        """Compares periodically. A duty."""
        while True:
            await rest(self._interval_seconds * random.uniform(0.8, 1.2))
            try:
                await self._compare()
            except TenureError as error:
                _log.warning("the reconciliation of the ledger with etcd failed and is retried", extra={"error": error})

    async def _compare(self) -> None:
        running = {row.task_id: row for row in await self._ledger.list_running()}
        worked = [(session, claim_id) for session in self._sessions for claim_id in session.claims]
        claims = await self._store.claims.list_all()
        lost = [row for row in running.values() if _claim_id(claims.get(row.task_id)) != row.claim_id]
        unmatched = [
            claim
            for claim in claims.values()
            if _running_under(running.get(claim.task_id)) != _claim_id(claim) or self._is_dropped(claim)
        ]
        self._clear_suspects(running)
        _revoke_absent_claims(worked, {claim.record.claim_id for claim in claims.values()})
        await self._end_absent_sessions()
        await self._operator_requests.remind()
        await self._delete_unworked(unmatched)
        await self._requeue(lost)

    def _clear_suspects(self, running: dict[str, pb.ListRunningResponse.Running]) -> None:
        """Clears the mark of suspect tasks that made a step since their grant: they may share a session again."""
        for session in self._sessions:
            for claim in session.claims.values():
                row = running.get(claim.held.task_id) if claim.suspect else None
                if row is not None and row.claim_id == claim.held.record.claim_id:
                    claim.suspect = row.suspect

    async def _end_absent_sessions(self) -> None:
        """Ends the streams of sessions that etcd no longer has: the key watch may have missed their end."""
        attached = list(self._sessions)
        known = {session.session_id for session in await self._store.sessions.list_all()}
        for session in attached:
            if session.session_id not in known:
                session.lose("the session has ended")

    async def _requeue(self, lost: list[pb.ListRunningResponse.Running]) -> None:
        if not lost:
            return
        await asyncio.sleep(_LASTING_SECONDS)
        await self._lost_claims.requeue(
            LostClaim(row.task_id, row.claim_id, Reason.CLAIM_LOST, f"the claim of {row.owner or 'its worker'} is gone")
            for row in lost
        )

    async def _delete_unworked(self, claims: list[HeldClaim]) -> None:
        """Deletes claims that their tasks do not run under, or that their workers do not hold.

        Such a claim is about to be opened or released, or it was left over, so it must last first.
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
            return "the ledger has not registered it"
        return "its worker does not hold it" if self._is_dropped(claim) else None

    def _is_dropped(self, claim: HeldClaim) -> bool:
        """Whether a session attached here does not hold the claim.

        Its worker attached without the claim, or the claim was revoked. A release that was lost with its replica leaves
        such a claim, and so does a failed deletion.
        """
        session = self._sessions.get(claim.record.session_id)
        if session is None or claim.record.claim_id in session.claims:
            return False
        return session.is_current(asyncio.get_running_loop().time())

    async def _delete(self, claim: HeldClaim, why: str) -> None:
        _log.warning("a claim without a working owner is deleted", extra={"task": claim.task_id, "why": why})
        message = f"a claim of {claim.record.worker_id} was left over: {why}"
        await self._lost_claims.delete_and_requeue(claim, LostClaim.of(claim, Reason.CLAIM_LOST, message))


def _revoke_absent_claims(worked: list[tuple[AttachedSession, str]], known: set[str]) -> None:
    """Revokes claims that etcd no longer has: the key watch may have missed their deletion.

    `worked` was read before the list of claims, because a session holds a claim only after etcd has it.
    """
    for session, claim_id in worked:
        if claim_id not in known:
            session.revoke(claim_id, Reason.CLAIM_LOST)


def _claim_id(claim: HeldClaim | None) -> str:
    return "" if claim is None else claim.record.claim_id


def _running_under(row: pb.ListRunningResponse.Running | None) -> str:
    return "" if row is None else row.claim_id
