"""Keeps one session that is attached to this replica: its slots, its claims and the messages for its worker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import time
from typing import Final

from services.coordinator.lease_store import ClaimRecord, HeldClaim, HeldSession
from tenure.domain.access import certificate_name
from tenure.domain.errors import InvalidRequest, TenureError, Unavailable
from tenure.domain.fairness import NO_SLOTS, Slots
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.lease_ends import KEPT_RENEWALS
from tenure.domain.task import DEFAULT_LOOP, DEFAULT_QUEUE, Priority
from tenure.domain.timeouts import MIN_TIMEOUT_SECONDS
from tenure.runtime.observability import metrics
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import PRIORITIES, seconds
from tenure.wire.coordinator_service import slots_to_domain
from tenure.wire.task import reported_call_to_domain

# Progress of a claim: a live worker may make no progress, so it is watched apart from the lease. This rule reads no
# clock.

LONGEST_BACKOFF_SECONDS: Final = 600.0
"""A worker that has to wait longer than this must release the task."""


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The progress that a worker reports for a claim. `backoff_seconds`: the task waits on purpose for this long.

    `idle_seconds`: the time without progress by the worker's clock. `model_call_waits`: at a model runner, unsent.
    """

    sequence: int = 0
    output_tokens: int = 0
    tool_signs: int = 0
    backoff_seconds: float = 0.0
    call: ReportedCall | None = None
    idle_seconds: float = 0.0
    model_call_waits: bool = False


@dataclass(slots=True)
class ProgressWatch:
    """The progress of one claim as reported. Times are monotonic seconds of this process."""

    patient_until: float
    timeout_seconds: float
    reported: ReportedProgress = ReportedProgress()

    @classmethod
    def begin(cls, now: float, timeout_seconds: float) -> ProgressWatch:
        """Starts the watch of a claim that was granted, or first reported, now."""
        return cls(now + timeout_seconds, timeout_seconds)

    def observe(self, message: ReportedProgress, now: float) -> None:
        """Takes a report in.

        Any growth restarts the timeout, and so does an announced wait: for the wait and the timeout. Growth ends a wait
        that was announced before: then the timeout alone counts again. Output tokens begin at zero in every model call,
        but a call follows a commit, and the commit's sequence is growth itself.
        """
        before = self.reported
        new_call = message.sequence > before.sequence
        grew = new_call or message.output_tokens > before.output_tokens or message.tool_signs > before.tool_signs
        pause_seconds = min(message.backoff_seconds, LONGEST_BACKOFF_SECONDS)
        if grew or (message.backoff_seconds > 0 and before.backoff_seconds <= 0):
            self.patient_until = now + pause_seconds + self.timeout_seconds
        self.reported = message

    def resume(self, message: ReportedProgress, now: float) -> None:
        """Takes in the first report of a claim that another replica watched before.

        The timeout goes on. Otherwise a worker that attaches elsewhere every few minutes could keep a stuck task for
        ever.
        """
        pause_seconds = min(message.backoff_seconds, LONGEST_BACKOFF_SECONDS)
        self.patient_until = now + pause_seconds + self.timeout_seconds - message.idle_seconds
        self.reported = message

    def idle_seconds(self, now: float) -> float:
        """Returns the time without progress. An announced wait is none."""
        return max(0.0, now - self.patient_until + self.timeout_seconds)

    def is_stuck(self, now: float) -> bool:
        """Whether the claim made no progress for the timeout, announced waits not counted."""
        return now > self.patient_until


_log: Final = logging.getLogger(__name__)
SESSION_EXPIRED: Final = "SESSION_EXPIRED"
OUTBOX_MESSAGES: Final = 1024
"""The limit of unsent messages for a worker. A worker with 10,000 slots gets its grants as it reads them."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of a session, in seconds."""

    ttl_seconds: int = 5
    renew_interval_seconds: float = 1.5
    reconnect_grace_seconds: float = 0.5
    start_timeout_seconds: float = 5.0
    progress_timeout_seconds: float = 120.0
    call_interval_seconds: float = 0.2

    @property
    def unheard_seconds(self) -> float:
        """The age of the last renewal at which a lease is in doubt: one renewal was missed."""
        return 2 * self.renew_interval_seconds

    @property
    def unanswered_seconds(self) -> float:
        """The age of the last renewal at which a worker may have left a silent replica.

        A worker leaves when a renewal stays unanswered for an interval; the renewal before it is then two intervals
        old.
        """
        return 1.75 * self.renew_interval_seconds

    def interval_seconds(self, claim: ClaimRecord) -> float:
        """Returns how often the worker of a claim renews, at least."""
        return min(claim.renew_interval_seconds or self.renew_interval_seconds, self.renew_interval_seconds)

    def lease_seconds(self, claim: ClaimRecord) -> float:
        """Returns how long a worker without renewals keeps the task of a claim.

        At least three intervals, because one renewal may be lost and another one late.
        """
        least_seconds = min(3 * self.interval_seconds(claim), self.ttl_seconds)
        return max(least_seconds, min(claim.lease_ttl_seconds or self.ttl_seconds, self.ttl_seconds))

    def grace_seconds(self, claim: ClaimRecord) -> float:
        """Returns how long the task of a claim stays with a worker whose stream broke."""
        own_seconds = claim.reconnect_grace_seconds
        return self.reconnect_grace_seconds if own_seconds is None else min(own_seconds, self.ttl_seconds)


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """The tasks that a worker takes. Sessions with one profile share one list of offers.

    `tenants`: those of its pool, None: all.
    """

    queues: tuple[str, ...]
    priorities: tuple[task_pb2.Priority.ValueType, ...]
    loops: tuple[str, ...]
    tenants: frozenset[str] | None = None

    @classmethod
    def of(cls, hello: pb.Hello) -> WorkerProfile:
        """Returns the profile of a Hello, with its defaults filled in."""
        return cls(
            tuple(sorted(set(hello.queues))) or (DEFAULT_QUEUE,),
            tuple(sorted(set(hello.priorities))),
            tuple(sorted(set(hello.loops))) or (DEFAULT_LOOP,),
        )


@dataclass(slots=True)
class Renewals:
    """The renewals of a claim at this replica: how many, and the Unix times of the first and of the newest ones."""

    first_at: float
    newest: deque[float]
    count: int = 1

    @property
    def last_at(self) -> float:
        return self.newest[-1]


@dataclass(slots=True)
class WorkedClaim:
    """A claim of a session with its worker's reports. `held_since`: when this replica granted or first saw it.

    `unnamed_since` None: the last renewal named the claim. `key_id`: the key of its newest token. `suspect`: the task
    may be a crash loop. `unopened_since` None: the worker has reported a sequence of the task's ledger.
    """

    held: HeldClaim
    progress: ProgressWatch
    unnamed_since: float | None
    key_id: str
    suspect: bool
    unopened_since: float | None
    held_since: float
    renewals: Renewals | None = None

    def renewed(self, at: float) -> None:
        """Counts a renewal that named the claim, at a Unix time."""
        if self.renewals is None:
            self.renewals = Renewals(at, deque([at], KEPT_RENEWALS))
        else:
            self.renewals.newest.append(at)
            self.renewals.count += 1

    def resume(self, reported: ReportedProgress, now: float) -> None:
        """Takes the report of a worker that held the claim before it attached here."""
        self.unopened_since = None if reported.sequence else now - reported.idle_seconds
        self.progress.resume(reported, now)

    def observe(self, reported: ReportedProgress, now: float) -> None:
        """Takes the report of a renewal that named the claim."""
        self.unnamed_since = None
        if reported.sequence:
            self.unopened_since = None
        self.progress.observe(reported, now)


class AttachedSession:
    """One attachment of a worker's session to this replica. A worker that attaches again gets a new one."""

    def __init__(
        self, held: HeldSession, hello: pb.Hello, timing: Timing, *, attached_at: float, renewed_at: float | None
    ) -> None:
        self.held = held
        self.profile = WorkerProfile.of(hello)
        self.timing = timing
        self.claims: dict[str, WorkedClaim] = {}
        self.draining = False
        self._drain_sent = False
        self.sent_away = False
        self.unwritten = False  # attached while etcd took no put: its key names another coordinator
        self.lost = False
        self.ended = asyncio.Event()
        self.error: TenureError | None = None
        self._attached_at = attached_at
        self._renewed_at = renewed_at
        self._unanswered = False
        self._last_sign_at = attached_at
        self._reported = reported_slots(hello)
        self._grants_sent = 0
        # Tiers of sent grants that the worker had not read at its last report of slots, and of claims in the making.
        self._unread_grants: deque[Priority] = deque()
        self._taken: Counter[Priority] = Counter()
        self._taken_by_suspects = 0
        self._outbox: asyncio.Queue[pb.SessionResponse] = asyncio.Queue(OUTBOX_MESSAGES)

    @property
    def session_id(self) -> str:
        return self.held.session_id

    @property
    def worker_id(self) -> str:
        return self.held.record.worker_id

    @property
    def identity(self) -> str:
        """The name in the worker's certificate; "" without TLS."""
        return certificate_name(self.held.record.identity)

    def set_tenants(self, tenants: frozenset[str] | None) -> None:
        """Sets the tenants whose tasks the session may get from now on; None: all."""
        self.profile = replace(self.profile, tenants=tenants)

    def takes_tenant(self, tenant: str) -> bool:
        """Whether the session may get tasks of the tenant."""
        return self.profile.tenants is None or tenant in self.profile.tenants

    def slots(self, now: float) -> Slots:
        """Returns the slots that may still be filled."""
        if not self.may_be_granted(now):
            return NO_SLOTS
        unavailable = self._taken + Counter(self._unread_grants)
        remaining = self._reported.without(
            unavailable[Priority.HIGH], unavailable[Priority.NORMAL], unavailable[Priority.LOW]
        )
        return remaining.at_most(self.room)

    @property
    def room(self) -> int:
        """The number of messages that may be sent now, if they can wait.

        Half of the outbox is kept for messages that cannot.
        """
        return max(0, OUTBOX_MESSAGES // 2 - self._outbox.qsize())

    def may_be_granted(self, now: float) -> bool:
        """Whether the session takes tasks at all. Nothing is granted while its lease is in doubt."""
        return self.is_current(now) and not self.draining and not self.sent_away

    @property
    def renewed_at(self) -> float | None:
        """The arrival time of the newest renewal that etcd has answered; None: no renewal was answered yet."""
        return self._renewed_at

    @property
    def is_unanswered(self) -> bool:
        """Whether etcd has not answered the newest renewal. If the lease expires then, the worker is not the cause."""
        return self._unanswered

    def is_current(self, now: float) -> bool:
        """Whether this replica's knowledge of the session is fresh. A replica that slept waits for the next renewal."""
        renewed = self._renewed_at is not None and now - self._renewed_at <= self.timing.unheard_seconds
        return renewed and not self.ended.is_set()

    def silent_seconds(self, now: float) -> float:
        """Returns the seconds since etcd last confirmed that the session is attached here."""
        return now - (self._attached_at if self._renewed_at is None else self._renewed_at)

    def unheard_of_seconds(self, now: float) -> float:
        """Returns the seconds since the worker's last sign of life on its stream here."""
        return max(0.0, now - self._last_sign_at)

    def expired_claims(self, now: float, watched_since: float) -> list[WorkedClaim]:
        """Returns the claims whose worker sent no renewal for longer than the TTL of the task's lease.

        `watched_since`: since when this replica has run without a pause. A replica that slept has unread renewals.
        """
        silent_seconds = now - max(self._last_sign_at, watched_since)
        if silent_seconds <= MIN_TIMEOUT_SECONDS or self.ended.is_set():
            return []
        return [
            claim
            for claim in self.claims.values()
            if claim.held.record.lease_ttl_seconds
            and min(silent_seconds, now - claim.held_since) > self.timing.lease_seconds(claim.held.record)
        ]

    def take_slot(self, tier: Priority = Priority.NORMAL, *, suspect: bool = False) -> None:
        """Reserves a slot for a claim in the making."""
        self._taken[tier] += 1
        self._taken_by_suspects += suspect

    def put_slot_back(self, tier: Priority = Priority.NORMAL, *, suspect: bool = False) -> None:
        """Frees a reserved slot: the claim was sent, or failed."""
        self._taken[tier] -= 1
        self._taken_by_suspects -= suspect

    @property
    def has_suspect(self) -> bool:
        """Whether the session has, or is about to get, a task that may be a crash loop.

        A second one must not die with it.
        """
        return self._taken_by_suspects > 0 or any(claim.suspect for claim in self.claims.values())

    def report_slots(self, slots: Slots, grants_read: int | None) -> None:
        """Takes the worker's report of free slots.

        `grants_read`: the number of grants that the worker had read when it counted; None: the report needs no
        correction. Raises InvalidRequest for more grants than were sent.
        """
        if grants_read is not None and grants_read > self._grants_sent:
            problem = (
                f"must be at most {self._grants_sent}, the number of grants sent on this stream; got {grants_read}"
            )
            raise InvalidRequest(violations=[("grants_read", problem)])
        self._reported = slots
        unread = 0 if grants_read is None else self._grants_sent - grants_read
        while len(self._unread_grants) > unread:
            self._unread_grants.popleft()

    def send_grant(self, claim: HeldClaim, grant: pb.Grant, now: float) -> bool:
        """Sends the grant of a registered claim. Returns False when the stream has ended and no worker can read it."""
        if not self.send(pb.SessionResponse(grant=grant)):
            return False
        self._grants_sent += 1
        self._unread_grants.append(PRIORITIES.to_domain(grant.priority))
        self.hold(claim, now, named=False)
        return True

    def hold(self, claim: HeldClaim, now: float, *, named: bool) -> None:
        """Adds a claim to the session."""
        record = claim.record
        watch = ProgressWatch.begin(now, record.progress_timeout_seconds or self.timing.progress_timeout_seconds)
        unnamed_since = None if named else now
        self.claims[record.claim_id] = WorkedClaim(claim, watch, unnamed_since, record.key_id, record.suspect, now, now)

    def resume(self, holdings: Iterable[pb.Holding], now: float) -> None:
        """Goes on with the timeouts of kept claims from what the worker says of itself in its Hello."""
        for holding in holdings:
            claim = self.claims.get(holding.claim_id)
            if claim is not None:
                claim.resume(_reported_progress(holding.progress), now)

    def carry_on(self, former: AttachedSession, now: float) -> None:
        """Goes on with the timeouts of claims that `former` watched: this session's attachment until a moment ago.

        A stream ends by its age before a long progress timeout has passed. After a longer absence, what the worker says
        of itself counts.
        """
        if former.silent_seconds(now) > self.timing.unheard_seconds:
            return
        for claim_id, claim in self.claims.items():
            watched = former.claims.get(claim_id)
            if watched is not None:
                claim.progress, claim.unopened_since = watched.progress, watched.unopened_since

    def observe(self, holdings: Iterable[pb.Holding], now: float) -> list[pb.Holding]:
        """Takes the report of a renewal.

        Returns the named claims that the session does not hold, which must be revoked.
        """
        named = {each.claim_id: each for each in holdings}
        for claim_id, claim in self.claims.items():
            if claim_id in named:
                claim.observe(_reported_progress(named[claim_id].progress), now)
            elif claim.unnamed_since is None:
                claim.unnamed_since = now
        return [each for claim_id, each in named.items() if claim_id not in self.claims]

    def on_model_calls(self, holdings: Iterable[pb.Holding], now: float) -> None:
        """Takes a report of model calls. Claims that it does not name are unaffected."""
        for each in holdings:
            claim = self.claims.get(each.claim_id)
            if claim is not None:
                claim.observe(_reported_progress(each.progress), now)

    def renewed(self, sent_at: float) -> None:
        """Records that etcd answered the renewal that arrived at `sent_at`."""
        self._renewed_at = sent_at
        self._unanswered = False
        at = time()
        for claim in self.claims.values():
            if claim.unnamed_since is None:
                claim.renewed(at)

    def renewal_came(self, now: float) -> None:
        """Records a renewal that etcd has not answered yet."""
        self._unanswered = True
        self._last_sign_at = now

    def request_drain(self, message: str) -> None:
        """Drains the worker for an operator: sends one notice per stream, and ends all grants."""
        if not self._drain_sent:
            self._drain_sent = self.draining = True
            self.send(pb.SessionResponse(drain=pb.DrainNotice(message=message)))

    def revoke(self, claim_id: str, reason: str) -> WorkedClaim | None:
        """Revokes a claim and tells the worker. Returns the claim, or None if the session does not hold it."""
        claim = self.claims.pop(claim_id, None)
        if claim is not None:
            revoke = pb.Revoke(task_id=claim.held.task_id, claim_id=claim_id, reason=reason)
            self.send(pb.SessionResponse(revoke=revoke))
        return claim

    def send(self, response: pb.SessionResponse) -> bool:
        """Queues a message for the worker.

        A worker that does not read loses its stream, so that the queue stays bounded.
        """
        if self.ended.is_set():
            return False
        try:
            self._outbox.put_nowait(response)
        except asyncio.QueueFull:
            metrics.count("tenure_sessions_slow_total")
            _log.warning("a session stream is ended: the worker does not read it", extra={"worker": self.worker_id})
            self.end(None)
            return False
        return True

    async def next_response(self) -> pb.SessionResponse:
        """Waits for the next message to the worker."""
        return await self._outbox.get()

    def end(self, error: TenureError | None) -> None:
        """Ends the stream, with an error for the worker if there is one. Only the first call has an effect."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def lose(self, message: str) -> None:
        """Ends the stream of a lost session with an error that makes the worker begin a new session."""
        self.lost = True
        self.end(Unavailable(message, reason=SESSION_EXPIRED))


def reported_slots(message: pb.Hello | pb.Renew | pb.Slots) -> Slots:
    """Returns the slots that a message of the worker reports."""
    return slots_to_domain(message.free_slots, message.lower_tiers if message.HasField("lower_tiers") else None)


def _reported_progress(progress: pb.Progress) -> ReportedProgress:
    call = reported_call_to_domain(progress.call) if progress.HasField("call") else None
    return ReportedProgress(
        progress.sequence,
        progress.output_tokens,
        progress.tool_signs,
        seconds(progress.backoff),
        call,
        max(0.0, seconds(progress.idle)),
        progress.model_call_waits,
    )
