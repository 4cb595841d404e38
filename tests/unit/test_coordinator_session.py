"""What a session may be granted, and what it remembers of its claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.coordinator.lease_store import ClaimRecord, HeldClaim, HeldSession, SessionRecord
from services.coordinator.sessions.lease_risk import CAUSES, LeaseRisk
from services.coordinator.sessions.session import (
    OUTBOX_MESSAGES,
    AttachedSession,
    Timing,
    WorkerProfile,
)
from tenure.domain.errors import InvalidRequest
from tenure.domain.fairness import Slots
from tenure.domain.task import Priority
from tenure.runtime.observability import metrics
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import duration

TIMING = Timing(ttl_seconds=5, renew_interval_seconds=1.5)
NOW = 1000.0


def session(free_slots: int = 4, *, renewed_at: float | None = NOW) -> AttachedSession:
    record = SessionRecord(worker_id="w", coordinator_id="c", generation=1, started_at=0.0)
    held = HeldSession("s", record, 7, 100)
    hello = pb.Hello(worker_id="w", free_slots=free_slots)
    return AttachedSession(held, hello, TIMING, attached_at=NOW, renewed_at=renewed_at)


def claim(number: int) -> HeldClaim:
    record = ClaimRecord(
        claim_id=f"c{number}",
        worker_id="w",
        session_id="s",
        generation=1,
        tenant="default",
        reason="SUBMITTED",
        previous_epoch=0,
    )
    return HeldClaim(f"t{number}", record, 200 + number, 7)


def grant(
    to: AttachedSession, number: int, priority: task_pb2.Priority.ValueType = task_pb2.PRIORITY_UNSPECIFIED
) -> bool:
    return to.send_grant(claim(number), pb.Grant(task_id=f"t{number}", claim_id=f"c{number}", priority=priority), NOW)


def test_unanswered_grants_reduce_the_free_slots() -> None:
    worker = session(4)
    assert grant(worker, 1)
    assert grant(worker, 2)
    assert worker.slots(NOW).any == 2
    worker.report_slots(Slots.open_to_all(3), grants_read=1)  # it had read one of the two when it counted
    assert worker.slots(NOW).any == 2
    worker.report_slots(Slots.open_to_all(2), grants_read=2)
    assert worker.slots(NOW).any == 2


def test_a_worker_that_read_unsent_grants_is_refused() -> None:
    """Such a count made the stream end with an internal error."""
    worker = session(4)
    grant(worker, 1)
    with pytest.raises(InvalidRequest, match="at most 1"):
        worker.report_slots(Slots.open_to_all(3), grants_read=2)
    assert worker.slots(NOW).any == 3


def test_a_worker_that_counts_no_grants_is_trusted() -> None:
    worker = session(2)
    grant(worker, 1)
    assert worker.slots(NOW).any == 1
    worker.report_slots(Slots.open_to_all(5), grants_read=None)
    assert worker.slots(NOW).any == 5


def test_unfinished_claim_uses_a_slot() -> None:
    worker = session(1)
    worker.take_slot()
    assert worker.slots(NOW).any == 0
    worker.put_slot_back()
    assert worker.slots(NOW).any == 1


def test_nothing_is_granted_while_the_lease_is_in_doubt() -> None:
    assert session().slots(NOW + TIMING.unheard_seconds).any == 4
    assert session().slots(NOW + TIMING.unheard_seconds + 0.1).any == 0
    assert session(renewed_at=None).slots(NOW).any == 0  # re-attached: unknown how long the lease still lives


def test_nothing_is_granted_to_a_worker_that_drains_or_is_gone() -> None:
    draining, gone = session(), session()
    draining.draining = True
    gone.end(None)
    assert draining.slots(NOW).any == gone.slots(NOW).any == 0
    assert not grant(gone, 1)
    assert not gone.claims


def test_a_worker_that_does_not_read_loses_its_stream() -> None:
    worker = session()
    sent = sum(worker.send(pb.SessionResponse()) for _ in range(OUTBOX_MESSAGES + 10))
    assert sent == OUTBOX_MESSAGES
    assert worker.ended.is_set()


def test_a_claim_is_unnamed_until_a_renewal_names_it() -> None:
    worker = session()
    grant(worker, 1)
    assert worker.claims["c1"].unnamed_since == NOW
    worker.observe([], NOW + 1)
    assert worker.claims["c1"].unnamed_since == NOW
    worker.observe([pb.Holding(task_id="t1", claim_id="c1")], NOW + 2)
    seen: list[float | None] = [worker.claims["c1"].unnamed_since]
    worker.observe([], NOW + 3)
    seen.append(worker.claims["c1"].unnamed_since)
    assert seen == [None, NOW + 3]


def test_unknown_held_task_is_reported_back() -> None:
    worker = session()
    grant(worker, 1)
    unknown = worker.observe([pb.Holding(task_id="t1", claim_id="c1"), pb.Holding(task_id="t2", claim_id="old")], NOW)
    assert [each.claim_id for each in unknown] == ["old"]


def test_deferrable_messages_need_half_of_the_outbox() -> None:
    worker = session()
    while worker.room:
        assert worker.send(pb.SessionResponse())
    assert worker.slots(NOW).any == 0
    assert worker.send(pb.SessionResponse(goaway=pb.Goaway()))


def test_a_sessions_state_is_current_until_a_missed_renewal() -> None:
    worker = session()
    assert worker.is_current(NOW + TIMING.unheard_seconds)
    assert not worker.is_current(NOW + TIMING.unheard_seconds + 0.1)
    assert worker.silent_seconds(NOW + 7.0) == 7.0
    worker.renewal_came(NOW)
    assert worker.silent_seconds(NOW + 7.0) == 7.0  # heard, and not confirmed by etcd
    assert worker.is_unanswered
    worker.renewed(NOW + 7.0)
    assert worker.silent_seconds(NOW + 7.0) == 0.0
    assert not worker.is_unanswered


def test_nothing_is_granted_over_a_stream_that_was_sent_away() -> None:
    worker = session()
    worker.sent_away = True
    assert worker.slots(NOW).any == 0


def test_a_profile_has_the_defaults_filled_in_and_no_order() -> None:
    assert WorkerProfile.of(pb.Hello()) == WorkerProfile(("default",), (), ("messages",))
    one = pb.Hello(queues=["b", "a"], priorities=[task_pb2.PRIORITY_LOW, task_pb2.PRIORITY_HIGH], loops=["x", "x"])
    other = pb.Hello(queues=["a", "b"], priorities=[task_pb2.PRIORITY_HIGH, task_pb2.PRIORITY_LOW], loops=["x"])
    assert WorkerProfile.of(one) == WorkerProfile.of(other)


def test_a_claim_is_opened_once_its_worker_reports_its_sequence() -> None:
    worker = session()
    grant(worker, 1)
    named = pb.Holding(task_id="t1", claim_id="c1")
    worker.observe([named], NOW + 1)
    assert (worker.claims["c1"].unnamed_since, worker.claims["c1"].unopened_since) == (None, NOW)
    named.progress.sequence = 3
    worker.observe([named], NOW + 2)
    assert worker.claims["c1"].unopened_since is None
    worker.observe([], NOW + 3)
    assert (worker.claims["c1"].unnamed_since, worker.claims["c1"].unopened_since) == (NOW + 3, None)


def test_progress_timeout_of_a_task_outranks_the_default() -> None:
    worker = session()
    patient, own = claim(1), claim(2)
    worker.hold(patient, NOW, named=True)
    worker.hold(replace(own, record=replace(own.record, progress_timeout_seconds=2.0)), NOW, named=True)
    stuck = [claim_id for claim_id, held in worker.claims.items() if held.progress.is_stuck(NOW + 3)]
    assert stuck == ["c2"]


def test_the_timeouts_of_a_claim_outlive_a_stream() -> None:
    before = session()
    before.hold(claim(1), NOW, named=True)
    before.hold(claim(2), NOW, named=True)
    named = pb.Holding(task_id="t1", claim_id="c1", progress=pb.Progress(sequence=3))
    before.observe([named], NOW)
    patience_seconds = TIMING.progress_timeout_seconds
    before.renewed(NOW + patience_seconds)
    soon, late = session(renewed_at=None), session(renewed_at=None)
    for again in (soon, late):
        again.hold(claim(1), NOW + patience_seconds, named=True)
        again.hold(claim(3), NOW + patience_seconds, named=True)
    soon.carry_on(before, NOW + patience_seconds + 1)
    soon.observe([named], NOW + patience_seconds + 1)
    assert [claim_id for claim_id, held in soon.claims.items() if held.progress.is_stuck(NOW + 121)] == ["c1"]
    assert (soon.claims["c1"].unopened_since, soon.claims["c3"].unopened_since) == (None, NOW + patience_seconds)
    late.carry_on(before, NOW + patience_seconds + TIMING.unheard_seconds + 0.1)
    assert not late.claims["c1"].progress.is_stuck(NOW + 2 * patience_seconds)


def test_a_tasks_own_lease_expires_before_the_session() -> None:
    timing = replace(TIMING, ttl_seconds=30, renew_interval_seconds=1.0)
    worker = AttachedSession(session().held, pb.Hello(), timing, attached_at=NOW, renewed_at=NOW)
    for number, ttl_seconds in enumerate((0.0, 5.0, 1.0, 300.0)):
        own = claim(number)
        worker.hold(replace(own, record=replace(own.record, lease_ttl_seconds=ttl_seconds)), NOW, named=True)

    def expired(at: float, watched_since: float = NOW) -> list[str]:
        return [each.held.record.claim_id for each in worker.expired_claims(at, watched_since)]

    assert expired(NOW + 3.0) == []
    assert expired(NOW + 3.1) == ["c2"], "at least three renewal intervals"
    assert expired(NOW + 5.1) == ["c1", "c2"]
    assert expired(NOW + 30.1) == ["c1", "c2", "c3"], "etcd ends the claim without a TTL of its own"
    assert expired(NOW + 30.1, watched_since=NOW + 29.0) == [], "this replica slept"
    worker.renewal_came(NOW + 4.0)
    assert expired(NOW + 8.0) == ["c2"]
    worker.end(None)
    assert expired(NOW + 60.0) == []


def test_a_short_interval_allows_a_short_lease() -> None:
    timing = replace(TIMING, ttl_seconds=30, renew_interval_seconds=10.0)
    worker = AttachedSession(session().held, pb.Hello(), timing, attached_at=NOW, renewed_at=NOW)
    own = claim(1)
    quick = replace(own.record, lease_ttl_seconds=2.0, renew_interval_seconds=0.5)
    worker.hold(replace(own, record=quick), NOW + 8.0, named=True)
    slow = replace(claim(2).record, lease_ttl_seconds=2.0, renew_interval_seconds=60.0)
    worker.hold(replace(claim(2), record=slow), NOW + 8.0, named=True)

    def expired(at: float) -> list[str]:
        return [each.held.record.claim_id for each in worker.expired_claims(at, NOW)]

    assert expired(NOW + 10.0) == [], "the last renewal was before the grant"
    assert expired(NOW + 10.1) == ["c1"]
    assert expired(NOW + 38.1) == ["c1", "c2"], "no task makes the interval longer"


def test_renewals_of_a_claim_are_counted_while_named() -> None:
    worker = session()
    worker.hold(claim(1), NOW, named=False)
    worker.renewed(NOW + 1)
    unnamed = worker.claims["c1"].renewals
    assert unnamed is None
    for second in (2, 3, 4):
        worker.observe([pb.Holding(task_id="t1", claim_id="c1")], NOW + second)
        worker.renewed(NOW + second)
    renewals = worker.claims["c1"].renewals
    assert renewals is not None
    assert renewals.count == 3
    assert renewals.first_at <= renewals.last_at


def test_reserved_slots_are_not_offered_to_lower_tiers() -> None:
    worker = session(4)
    worker.report_slots(Slots(4, 3, 1), grants_read=0)
    assert worker.slots(NOW) == Slots(4, 3, 1)
    grant(worker, 1, task_pb2.PRIORITY_LOW)
    assert worker.slots(NOW) == Slots(3, 2, 0)
    worker.take_slot(Priority.HIGH)
    assert worker.slots(NOW) == Slots(2, 2, 0)
    worker.put_slot_back(Priority.HIGH)
    grant(worker, 2, task_pb2.PRIORITY_HIGH)
    worker.report_slots(Slots(3, 2, 0), grants_read=1)  # it had read the first
    assert worker.slots(NOW) == Slots(2, 2, 0)


def test_worker_without_tiers_reserves_no_slots() -> None:
    assert session(3).slots(NOW) == Slots(3, 3, 3)


def sampled(risk: LeaseRisk, *sessions: AttachedSession, now: float) -> tuple[float, ...]:
    """Claims at risk because of the worker and of etcd, missed renewals, and the rest of the shortest lease."""
    risk.sample(sessions, now)
    at_risk = [metrics.read("tenure_claims_at_risk", cause=cause) for cause in CAUSES]
    return (*at_risk, metrics.read("tenure_renewals_missed_total"), round(metrics.read("tenure_lease_left_ratio"), 2))


def awake(now: float) -> LeaseRisk:
    risk = LeaseRisk()
    risk.sample((), now - 10)
    for second in range(9):
        risk.sample((), now - 9 + second)
    return risk


def test_a_lease_is_at_risk_after_a_missed_renewal() -> None:
    worker, idle = session(), session()
    grant(worker, 1)
    grant(worker, 2)
    risk, missed = awake(NOW + 2), metrics.read("tenure_renewals_missed_total")
    assert sampled(risk, worker, idle, now=NOW + 2) == (0, 0, missed, 0.6)
    assert sampled(risk, worker, idle, now=NOW + 4) == (2, 0, missed + 1, 0.2)
    assert sampled(risk, worker, idle, now=NOW + 4.5) == (2, 0, missed + 1, 0.1)  # the same silence
    worker.renewal_came(NOW + 4.6)
    assert sampled(risk, worker, idle, now=NOW + 4.7) == (0, 2, missed + 1, 0.06)
    worker.renewed(NOW + 5)
    assert sampled(risk, worker, idle, now=NOW + 5) == (0, 0, missed + 1, 1.0)
    assert sampled(risk, worker, idle, now=NOW + 7) == (0, 0, missed + 1, 0.6)
    assert sampled(risk, worker, idle, now=NOW + 9) == (2, 0, missed + 2, 0.2)


def test_a_short_lease_is_at_risk_earlier() -> None:
    worker = session()
    own = claim(1)
    record = replace(own.record, lease_ttl_seconds=2.0, renew_interval_seconds=0.5)
    worker.hold(replace(own, record=record), NOW, named=True)
    risk, missed = awake(NOW), metrics.read("tenure_renewals_missed_total")
    assert sampled(risk, worker, now=NOW + 0.8) == (0, 0, missed, 0.6)
    assert sampled(risk, worker, now=NOW + 1.2) == (1, 0, missed + 1, 0.4)


def test_a_replica_that_slept_finds_no_lease_at_risk() -> None:
    worker = session()
    grant(worker, 1)
    risk, missed = awake(NOW), metrics.read("tenure_renewals_missed_total")
    assert sampled(risk, worker, now=NOW + 60)[:3] == (0, 0, missed)
    worker.renewed(NOW + 60.5)
    assert sampled(risk, worker, now=NOW + 61)[:3] == (0, 0, missed)


def test_the_oldest_progress_of_a_claim_is_measured() -> None:
    worker, risk = session(), LeaseRisk()
    grant(worker, 1)
    grant(worker, 2)
    reported = pb.Progress(sequence=3)
    worker.observe([pb.Holding(task_id="t2", claim_id="c2", progress=reported)], NOW + 50)
    risk.sample([worker], NOW + 60)
    assert metrics.read("tenure_claims_idle_seconds") == 60
    waiting = pb.Progress(backoff=duration(30))
    worker.observe([pb.Holding(task_id="t1", claim_id="c1", progress=waiting)], NOW + 60)
    risk.sample([worker], NOW + 70)
    assert metrics.read("tenure_claims_idle_seconds") == 20
