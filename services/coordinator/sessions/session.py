"""One session attached to this replica: what it can take, what it holds, what is to be told to its worker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import InvalidRequest, TenureError, Unavailable
from tenure.domain.lost_model_calls import ReportedCall
from tenure.domain.slots import NO_SLOTS, Slots
from tenure.domain.task import DEFAULT_LOOP, DEFAULT_QUEUE, Priority
from tenure.runtime import metrics
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.common import PRIORITIES, seconds
from tenure.wire.coordinator_service import slots_to_domain
from tenure.wire.task import reported_call_to_domain

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldClaim, HeldSession
    from tenure.v1 import task_pb2


# Alive and making progress are two facts. This is the rule for the second; it is told the moment.

LONGEST_BACKOFF_SECONDS: Final = 600.0
"""A worker that means to wait longer than this has to let go of the task."""


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """What a worker says was done under a claim. `backoff_seconds`: it waits on purpose for so long."""

    sequence: int = 0
    output_tokens: int = 0
    tool_signs: int = 0
    backoff_seconds: float = 0.0
    call: ReportedCall | None = None


@dataclass(slots=True)
class ProgressWatch:
    """One claim's progress as heard. Moments are monotonic seconds of this process."""

    patient_until: float
    timeout_seconds: float
    reported: ReportedProgress = ReportedProgress()

    @classmethod
    def begin(cls, now: float, timeout_seconds: float) -> ProgressWatch:
        """A claim that was granted, or heard of for the first time, now."""
        return cls(now + timeout_seconds, timeout_seconds)

    def observe(self, message: ReportedProgress, now: float) -> None:
        """Growth anywhere renews the patience, and so does an announced wait: for the wait and the timeout.

        What grows ends a wait that was announced before: then the timeout alone counts again.
        Output tokens begin at zero in every model call; a call comes after a commit, which is growth itself.
        """
        before = self.reported
        new_call = message.sequence > before.sequence
        grew = new_call or message.output_tokens > before.output_tokens or message.tool_signs > before.tool_signs
        pause_seconds = min(message.backoff_seconds, LONGEST_BACKOFF_SECONDS)
        if grew or (message.backoff_seconds > 0 and before.backoff_seconds <= 0):
            self.patient_until = now + pause_seconds + self.timeout_seconds
        self.reported = message

    def is_stuck(self, now: float) -> bool:
        """Whether nothing grew for the timeout, announced waits not counted."""
        return now > self.patient_until


_log: Final = logging.getLogger(__name__)
SESSION_EXPIRED: Final = "SESSION_EXPIRED"
OUTBOX_MESSAGES: Final = 1024
"""What may wait for a worker that does not read. One that can take 10,000 tasks gets them as it reads."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations a session lives by, in seconds."""

    ttl_seconds: int = 5
    renew_interval_seconds: float = 1.5
    reconnect_grace_seconds: float = 0.5
    start_timeout_seconds: float = 5.0
    progress_timeout_seconds: float = 120.0
    call_interval_seconds: float = 0.2

    @property
    def unheard_seconds(self) -> float:
        """A lease is in doubt when so long after its last renewal the next one has not come: one was missed."""
        return 2 * self.renew_interval_seconds

    @property
    def unanswered_seconds(self) -> float:
        """A worker leaves when a renewal stays unanswered for an interval; the one before is then two intervals old."""
        return 1.75 * self.renew_interval_seconds


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """What a worker takes. Sessions of one profile are served from one list of offers."""

    queues: tuple[str, ...]
    priorities: tuple[task_pb2.Priority.ValueType, ...]
    loops: tuple[str, ...]

    @classmethod
    def of(cls, hello: pb.Hello) -> WorkerProfile:
        """What Hello says, its defaults filled in."""
        return cls(
            tuple(sorted(set(hello.queues))) or (DEFAULT_QUEUE,),
            tuple(sorted(set(hello.priorities))),
            tuple(sorted(set(hello.loops))) or (DEFAULT_LOOP,),
        )


@dataclass(slots=True)
class WorkedClaim:
    """A claim of a session, and what its worker's renewals say of it. `unnamed_since` None: the last one named it.

    `key_id`: what its newest token was signed with. `suspect`: it may be what kills its owners. `unopened_since` None:
    the worker has told of something in the task's ledger.
    """

    held: HeldClaim
    progress: ProgressWatch
    unnamed_since: float | None
    key_id: str
    suspect: bool
    unopened_since: float | None

    def observe(self, reported: ReportedProgress, now: float) -> None:
        """What a renewal says of it, naming it."""
        self.unnamed_since = None
        if reported.sequence:
            self.unopened_since = None
        self.progress.observe(reported, now)


class AttachedSession:
    """One attachment of a worker's session to this replica. Re-attaching makes a new one."""

    def __init__(
        self, held: HeldSession, hello: pb.Hello, timing: Timing, *, attached_at: float, renewed_at: float | None
    ) -> None:
        self.held = held
        self.profile = WorkerProfile.of(hello)
        self.timing = timing
        self.claims: dict[str, WorkedClaim] = {}
        self.draining = False
        self._told_to_drain = False
        self.sent_away = False
        self.lost = False
        self.ended = asyncio.Event()
        self.error: TenureError | None = None
        self._attached_at = attached_at
        self._renewed_at = renewed_at
        self._unanswered = False
        self._reported = reported_slots(hello)
        self._grants_sent = 0
        # Of grants that the worker had not read when it counted, and of claims in the making.
        self._on_their_way: deque[Priority] = deque()
        self._taken: Counter[Priority] = Counter()
        self._taken_by_suspects = 0
        self._outbox: asyncio.Queue[pb.SessionResponse] = asyncio.Queue(OUTBOX_MESSAGES)

    @property
    def session_id(self) -> str:
        return self.held.session_id

    @property
    def worker_id(self) -> str:
        return self.held.record.worker_id

    def slots(self, now: float) -> Slots:
        """How many more tasks may be claimed for it."""
        if not self.may_be_granted(now):
            return NO_SLOTS
        gone = self._taken + Counter(self._on_their_way)
        left = self._reported.without(gone[Priority.HIGH], gone[Priority.NORMAL], gone[Priority.LOW])
        return left.at_most(self.room)

    @property
    def room(self) -> int:
        """How many messages may be sent of those that can wait: the other half is for those that cannot."""
        return max(0, OUTBOX_MESSAGES // 2 - self._outbox.qsize())

    def may_be_granted(self, now: float) -> bool:
        """Whether it takes tasks at all. Nothing is handed over while its lease is in doubt."""
        return self.is_current(now) and not self.draining and not self.sent_away

    @property
    def renewed_at(self) -> float | None:
        """When the newest renewal came that etcd has answered; None: none yet."""
        return self._renewed_at

    @property
    def is_unanswered(self) -> bool:
        """Whether its newest renewal is one that etcd did not answer (yet): that its lease ends is not its fault."""
        return self._unanswered

    def is_current(self, now: float) -> bool:
        """Whether what is known of it here is fresh. A replica that slept knows nothing until the next renewal."""
        renewed = self._renewed_at is not None and now - self._renewed_at <= self.timing.unheard_seconds
        return renewed and not self.ended.is_set()

    def silent_seconds(self, now: float) -> float:
        """How long ago etcd last confirmed that it is attached here."""
        return now - (self._attached_at if self._renewed_at is None else self._renewed_at)

    def take_slot(self, tier: Priority = Priority.NORMAL, *, suspect: bool = False) -> None:
        """Set a slot aside for a claim in the making."""
        self._taken[tier] += 1
        self._taken_by_suspects += suspect

    def put_slot_back(self, tier: Priority = Priority.NORMAL, *, suspect: bool = False) -> None:
        """The claim came to nothing, or was sent."""
        self._taken[tier] -= 1
        self._taken_by_suspects -= suspect

    @property
    def has_suspect(self) -> bool:
        """Whether it has, or is about to have, a task that may be a poison: a second one must not die with it."""
        return self._taken_by_suspects > 0 or any(claim.suspect for claim in self.claims.values())

    def report_slots(self, slots: Slots, grants_read: int | None) -> None:
        """What the worker says it can take, counted when it had read so many of our grants; None: as it says.

        Raises InvalidRequest for more grants than were sent.
        """
        if grants_read is not None and grants_read > self._grants_sent:
            problem = (
                f"only {self._grants_sent} grants were sent on this stream, and {grants_read} cannot have been read"
            )
            raise InvalidRequest(violations=[("grants_read", problem)])
        self._reported = slots
        unread = 0 if grants_read is None else self._grants_sent - grants_read
        while len(self._on_their_way) > unread:
            self._on_their_way.popleft()

    def send_grant(self, claim: HeldClaim, grant: pb.Grant, now: float) -> bool:
        """Hand a registered claim over. False when the stream has ended: then nobody will work on it."""
        if not self.send(pb.SessionResponse(grant=grant)):
            return False
        self._grants_sent += 1
        self._on_their_way.append(PRIORITIES.to_domain(grant.priority))
        self.hold(claim, now, named=False)
        return True

    def hold(self, claim: HeldClaim, now: float, *, named: bool) -> None:
        """From now on this claim is one of the session's."""
        record = claim.record
        watch = ProgressWatch.begin(now, record.progress_timeout_seconds or self.timing.progress_timeout_seconds)
        unnamed_since = None if named else now
        self.claims[record.claim_id] = WorkedClaim(claim, watch, unnamed_since, record.key_id, record.suspect, now)

    def observe(self, holdings: Iterable[pb.Holding], now: float) -> list[pb.Holding]:
        """Take in what a renewal names. Returns what it names and does not hold: to be revoked."""
        named = {each.claim_id: each for each in holdings}
        for claim_id, claim in self.claims.items():
            if claim_id in named:
                claim.observe(_reported_progress(named[claim_id].progress), now)
            elif claim.unnamed_since is None:
                claim.unnamed_since = now
        return [each for claim_id, each in named.items() if claim_id not in self.claims]

    def on_model_calls(self, holdings: Iterable[pb.Holding], now: float) -> None:
        """Model calls of claims held have gone on. What is not named goes on as before."""
        for each in holdings:
            claim = self.claims.get(each.claim_id)
            if claim is not None:
                claim.observe(_reported_progress(each.progress), now)

    def renewed(self, sent_at: float) -> None:
        """Etcd has answered a renewal that came at that moment."""
        self._renewed_at = sent_at
        self._unanswered = False

    def renewal_came(self) -> None:
        """It is to be answered once etcd has answered."""
        self._unanswered = True

    def request_drain(self, message: str) -> None:
        """An operator wants the worker to drain: it is told once a stream, and nothing more is granted."""
        if not self._told_to_drain:
            self._told_to_drain = self.draining = True
            self.send(pb.SessionResponse(drain=pb.DrainNotice(message=message)))

    def revoke(self, claim_id: str, reason: str) -> WorkedClaim | None:
        """Tell the worker that a claim is lost; the claim, if it was the session's."""
        claim = self.claims.pop(claim_id, None)
        if claim is not None:
            revoke = pb.Revoke(task_id=claim.held.task_id, claim_id=claim_id, reason=reason)
            self.send(pb.SessionResponse(revoke=revoke))
        return claim

    def send(self, response: pb.SessionResponse) -> bool:
        """Put a message into the outbox. A worker that does not read loses its stream, not our memory."""
        if self.ended.is_set():
            return False
        try:
            self._outbox.put_nowait(response)
        except asyncio.QueueFull:
            metrics.count("tenure_sessions_slow_total")
            _log.warning("a worker does not read its stream", extra={"worker": self.worker_id})
            self.end(None)
            return False
        return True

    async def next_response(self) -> pb.SessionResponse:
        """The next message for the worker."""
        return await self._outbox.get()

    def end(self, error: TenureError | None) -> None:
        """End the stream, with an error for the worker if there is one to be told. The first call counts."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def lose(self, message: str) -> None:
        """The session itself is gone: the worker is told to attach anew."""
        self.lost = True
        self.end(Unavailable(message, reason=SESSION_EXPIRED))


def reported_slots(message: pb.Hello | pb.Renew | pb.Slots) -> Slots:
    """What a worker can take, as far as it says so."""
    return slots_to_domain(message.free_slots, message.lower_tiers if message.HasField("lower_tiers") else None)


def _reported_progress(progress: pb.Progress) -> ReportedProgress:
    call = reported_call_to_domain(progress.call) if progress.HasField("call") else None
    return ReportedProgress(
        progress.sequence, progress.output_tokens, progress.tool_signs, seconds(progress.backoff), call
    )
