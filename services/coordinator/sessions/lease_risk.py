"""Measures how near the leases of the attached workers are to their end, and how long held tasks made no progress.

A lease is at risk when one renewal was missed: two intervals have passed since the last one that etcd answered, those
of the coordinators or shorter ones of a held task. The worker did not send it (WORKER), or etcd did not answer (ETCD).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from services.coordinator.lease_store import ClaimRecord
from services.coordinator.sessions.session import AttachedSession
from tenure.runtime.observability import metrics

CAUSES: Final = ("WORKER", "ETCD")
_LATE_SECONDS: Final = 2.5
"""After a longer pause between two samples this replica slept, and has renewals that it did not read yet."""

_log: Final = logging.getLogger(__name__)


class LeaseRisk:
    """Samples the attached sessions about once a second."""

    def __init__(self) -> None:
        self._sampled_at = self._awake_since = float("-inf")
        self._late: set[str] = set()
        for cause in CAUSES:
            metrics.cell("tenure_renewals_missed_total", cause=cause)  # from 0 on

    def sample(self, sessions: Iterable[AttachedSession], now: float) -> None:
        """Reports the sessions that hold claims."""
        holding = [session for session in sessions if session.claims]
        idle_seconds = [claim.progress.idle_seconds(now) for session in holding for claim in session.claims.values()]
        metrics.gauge("tenure_claims_idle_seconds", max(idle_seconds, default=0.0))
        metrics.gauge("tenure_lease_left_ratio", min((_left(session, now) for session in holding), default=1.0))
        if now - self._sampled_at > _LATE_SECONDS:
            self._awake_since = now
        self._sampled_at = now
        late = {session.session_id: session for session in holding if self._is_late(session, now)}
        at_risk = Counter[str]()
        for session in late.values():
            at_risk[_cause(session)] += len(session.claims)
        for cause in CAUSES:
            metrics.gauge("tenure_claims_at_risk", at_risk[cause], cause=cause)
        for session_id in late.keys() - self._late:
            _count(late[session_id], now)
        self._late = set(late)

    def _is_late(self, session: AttachedSession, now: float) -> bool:
        silent_seconds = min(session.silent_seconds(now), now - self._awake_since)
        timing = session.timing
        intervals = (timing.interval_seconds(record) for record in _with_own_times(session))
        missed_seconds = min([timing.unheard_seconds, *(2 * interval_seconds for interval_seconds in intervals)])
        return silent_seconds > missed_seconds and not session.ended.is_set()


def _count(session: AttachedSession, now: float) -> None:
    cause = _cause(session)
    metrics.count("tenure_renewals_missed_total", cause=cause)
    fields = {"worker": session.worker_id, "session": session.session_id, "claims": len(session.claims)}
    fields |= {"cause": cause, "lease_left": f"{_left(session, now):.0%}"}
    _log.warning("a worker missed a renewal", extra=fields)


def _left(session: AttachedSession, now: float) -> float:
    """Returns the rest of the session's shortest lease, as a part of it."""
    timing = session.timing
    leases = (timing.lease_seconds(record) for record in _with_own_times(session))
    return max(0.0, 1.0 - max(0.0, session.silent_seconds(now)) / min([timing.ttl_seconds, *leases]))


def _with_own_times(session: AttachedSession) -> Iterator[ClaimRecord]:
    """Yields the claims whose tasks have a lease or an interval of their own."""
    for claim in session.claims.values():
        record = claim.held.record
        if record.lease_ttl_seconds or record.renew_interval_seconds:
            yield record


def _cause(session: AttachedSession) -> str:
    return "ETCD" if session.is_unanswered else "WORKER"
