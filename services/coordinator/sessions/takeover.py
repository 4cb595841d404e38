"""Ends what a worker leaves whose stream broke: it has a short grace to attach to any replica.

Then its session ends, and its tasks are requeued. A task may have a grace of its own: a shorter one ends its claim
before the session, and a longer one keeps the session for it, at most until the lease expires.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Self

from services.coordinator.claims.lost_claims import LostClaim
from services.coordinator.sessions.lease_end import lease_end
from tenure.domain.errors import Unavailable
from tenure.domain.states import Reason
from tenure.runtime.observability import metrics

if TYPE_CHECKING:
    from services.coordinator.claims.lost_claims import LostClaims
    from services.coordinator.generation import Generation
    from services.coordinator.lease_store import LeaseStore
    from services.coordinator.sessions.session import AttachedSession

_log: Final = logging.getLogger(__name__)


class Takeover:
    """Ends sessions whose streams broke. Closing drops the pending ones: a draining replica ends no session.

    It ends none whose grace etcd was out of space in: another replica could not record that the worker attached there.
    """

    def __init__(self, store: LeaseStore, lost_claims: LostClaims, generation: Generation) -> None:
        self._store = store
        self._lost_claims = lost_claims
        self._generation = generation
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def begin(self, session: AttachedSession, *, announced: bool) -> None:
        """Ends the session after the grace, or at once if the worker drained, unless it is attached again by then."""
        graces = {} if announced else _graces(session)
        session_seconds = 0.0 if announced else max([session.timing.reconnect_grace_seconds, *graces])
        task = asyncio.create_task(self._end(session, graces, session_seconds), name=f"takeover {session.session_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _end(self, session: AttachedSession, graces: dict[float, list[str]], session_seconds: float) -> None:
        waited_seconds = 0.0
        for grace_seconds in sorted({*graces, session_seconds}):
            await asyncio.sleep(grace_seconds - waited_seconds)
            waited_seconds = grace_seconds
            if self._generation.was_out_of_space(grace_seconds):
                _log.info(
                    "a broken session is left to its lease, because etcd is or was out of space", extra=_fields(session)
                )
                return
            try:
                if grace_seconds == session_seconds:
                    await self._end_session(session)
                elif not await self._end_claims(session, graces[grace_seconds]):
                    return
            except Unavailable as error:
                # No retry: while etcd did not answer, the worker could not attach elsewhere either.
                fields = {**_fields(session), "error": error}
                _log.warning("a session could not be ended; its lease will expire", extra=fields)
                return

    async def _end_session(self, session: AttachedSession) -> None:
        ended = await self._store.sessions.end(session.held)
        metrics.count("tenure_broken_sessions_total", end="ENDED" if ended else "ATTACHED_ELSEWHERE")
        message = "ended a session" if ended else "a worker attached to another coordinator"
        _log.info(message, extra=_fields(session))

    async def _end_claims(self, session: AttachedSession, claim_ids: list[str]) -> bool:
        """Ends claims whose grace is shorter than the session's. Returns whether the session is still broken."""
        stored = await self._store.sessions.find(session.session_id)
        if stored is None or stored.mod_revision != session.held.mod_revision:
            return False
        message = (
            f"the stream of worker {session.worker_id} broke, and the worker did not attach again in the task's grace"
        )
        for claim_id in claim_ids:
            end = lease_end(session, claim_id)
            claim = session.claims.pop(claim_id, None)
            if claim is not None:
                lost = LostClaim.of(claim.held, Reason.WORKER_LOST, message, claim.progress.reported.call, end)
                await self._lost_claims.delete_and_requeue(claim.held, lost)
        return True


def _graces(session: AttachedSession) -> dict[float, list[str]]:
    """Returns the claims by the grace of their tasks."""
    graces: dict[float, list[str]] = {}
    for claim_id, claim in session.claims.items():
        graces.setdefault(session.timing.grace_seconds(claim.held.record), []).append(claim_id)
    return graces


def _fields(session: AttachedSession) -> dict[str, Any]:
    return {"worker": session.worker_id, "session": session.session_id, "claims": len(session.claims)}
