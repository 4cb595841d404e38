"""The tasks that this worker holds: for each its claim, its progress and the coroutine that works on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

from services.worker.interrupts import Interrupts
from services.worker.live_text import LiveText
from tenure.domain.budget import TokenUsage
from tenure.domain.fencing import Claims
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.task import Priority
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.runtime.failpoints import failpoint_enabled
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.common import PRIORITIES, duration, seconds
from tenure.wire.task import reported_call_to_wire
from tenure.wire.token import read_claims

# Every renewal reports the progress of each claim, because a live worker may make no progress.


@dataclass(frozen=True, slots=True)
class _Call:
    """The newest model call. `usage` returns what it is billed so far."""

    step: int
    attempt_number: int
    usage: Callable[[], TokenUsage]

    def reported(self) -> ReportedCall:
        return ReportedCall(self.step, self.attempt_number, self.usage())


def _ignore() -> None:
    """Does nothing: the default of `ClaimProgress.on_call`."""


@dataclass(slots=True)
class ClaimProgress:
    """The progress of one claim. `backoff_until` is a monotonic time; 0 means that the task does not wait on purpose.

    `call_went_on` is set when the model call has output that was not reported yet; `on_call` is called at that moment.
    `idle_seconds` is the time without progress until the last report: the coordinator to which the worker attaches next
    does not know what the claim reported before. `model_call_waits`: at a model runner, and nothing was sent.
    """

    sequence: int = 0
    tool_signs: int = 0
    backoff_until: float = 0.0
    call_went_on: bool = False
    on_call: Callable[[], None] = _ignore
    idle_seconds: float = 0.0
    model_call_waits: bool = False
    _call: _Call | None = None
    _reported: tuple[int, int, int] = (0, 0, 0)
    _counted_at: float = field(default_factory=monotonic)

    def begin_call(self, step: int, attempt_number: int, usage: Callable[[], TokenUsage]) -> None:
        """Records a model call that is about to be sent.

        Renewals report it until the next call begins, because its answer may never be committed.
        """
        self._call = _Call(step, attempt_number, usage)

    def on_model_call_progress(self) -> None:
        """Records output of the model call in flight, or its end."""
        self.call_went_on = True
        self.on_call()

    def on_tool_progress(self) -> None:
        """Records an event of a running tool."""
        self.tool_signs += 1

    def note_model_call(self, *, waits: bool) -> None:
        """Records whether the model call waits at a model runner, and nothing was sent."""
        self.model_call_waits = waits

    def announce_backoff(self, seconds: float) -> None:
        """Announces that the task will wait on purpose for this long. The idle time begins anew after the wait.

        A step may have any timeout, also an infinite one, which no message can carry: every renewal would fail.
        """
        self.backoff_until = monotonic() + min(seconds, MAX_PHASE_SECONDS)
        self.idle_seconds = 0.0

    def count_idle_time(self, *, trusted: bool) -> None:
        """Counts the time since the last count as idle, unless the claim made progress in it.

        `trusted`: the trust window is open. Without it the task may not go on, which is not the task's fault.
        """
        now = monotonic()
        grown = (self.sequence, self._output_tokens(), self.tool_signs)
        if grown != self._reported:
            self.idle_seconds, self._reported = 0.0, grown
        elif trusted:
            self.idle_seconds += max(0.0, now - max(self._counted_at, self.backoff_until))
        self._counted_at = now

    def to_wire(self) -> pb.Progress:
        """Returns the message for a renewal. The backoff counts from the sending of the message."""
        remaining_seconds = self.backoff_until - monotonic()
        call = None if self._call is None else self._call.reported()
        return pb.Progress(
            sequence=self.sequence,
            output_tokens=0 if call is None else call.usage.output_tokens,
            tool_signs=self.tool_signs,
            backoff=duration(remaining_seconds) if remaining_seconds > 0 else None,
            call=None if call is None else reported_call_to_wire(call),
            idle=duration(self.idle_seconds),
            model_call_waits=self.model_call_waits,
        )

    def _output_tokens(self) -> int:
        return 0 if self._call is None else self._call.usage().output_tokens


@dataclass(slots=True, eq=False)
class HeldTask:
    """A claim that this worker holds. The coordinator may sign its `token` again; the token's claims stay the same.

    `renew_interval_seconds`: how often the task wants renewals; 0: as the coordinator says.
    """

    claims: Claims
    token: token_pb2.FencingToken
    loop: str
    tier: Priority = Priority.NORMAL
    progress: ClaimProgress = field(default_factory=ClaimProgress)
    interrupts: Interrupts = field(default_factory=Interrupts)
    live: LiveText = field(default_factory=LiveText)
    work: asyncio.Task[None] | None = None
    lost: bool = False
    renew_interval_seconds: float = 0.0

    @classmethod
    def of_grant(cls, grant: pb.Grant) -> HeldTask:
        """Builds a held task from its grant. Raises Unauthenticated when the token cannot be read."""
        tier, interval_seconds = PRIORITIES.to_domain(grant.priority), seconds(grant.renew_interval)
        claims = read_claims(grant.token)
        return cls(claims, grant.token, grant.loop, tier, renew_interval_seconds=interval_seconds)

    @property
    def task_id(self) -> str:
        return self.claims.task_id

    def drop(self) -> None:
        """Stops the work of a lost claim at once, without a further write."""
        self.lost = True
        if self.work is not None and not failpoint_enabled("worker.ignore_trust_window"):
            self.work.cancel()

    def to_wire(self) -> pb.Holding:
        """Returns the claim as renewals report it."""
        return pb.Holding(task_id=self.task_id, claim_id=self.claims.claim_id, progress=self.progress.to_wire())


class HeldTasks:
    """All held tasks, by task id."""

    def __init__(self) -> None:
        self._by_task: dict[str, HeldTask] = {}
        self._changed = asyncio.Event()
        self.calls_went_on = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_task)

    def __iter__(self) -> Iterator[HeldTask]:
        return iter(list(self._by_task.values()))

    def by_tier(self) -> Counter[Priority]:
        """Counts the held tasks of each tier."""
        return Counter(held_task.tier for held_task in self._by_task.values())

    def get(self, task_id: str) -> HeldTask | None:
        return self._by_task.get(task_id)

    def add(self, held_task: HeldTask) -> None:
        """Adds a held task. Drops an older claim of the same task: a task has one claim at a time."""
        former = self._by_task.get(held_task.task_id)
        if former is not None:
            former.drop()
        self._by_task[held_task.task_id] = held_task
        held_task.progress.on_call = self.calls_went_on.set

    def remove(self, held_task: HeldTask) -> None:
        """Removes a held task, unless a newer claim of the task has replaced it."""
        if self._by_task.get(held_task.task_id) is held_task:
            del self._by_task[held_task.task_id]
        self._changed.set()

    def drop_claims(self, claim_ids: set[str]) -> None:
        """Drops these claims, which are lost."""
        for held_task in self:
            if held_task.claims.claim_id in claim_ids:
                held_task.drop()

    def replace_token(self, token: token_pb2.FencingToken) -> None:
        """Replaces the token of a claim that the coordinator signed again."""
        claims = read_claims(token)
        held_task = self.get(claims.task_id)
        if held_task is not None and held_task.claims.fence == claims.fence:
            held_task.token = token

    def to_wire(self, *, trusted: bool) -> list[pb.Holding]:
        """Returns the claims as Hello and renewals report them, without lost ones. `trusted`: see count_idle_time."""
        for held_task in self:
            held_task.progress.count_idle_time(trusted=trusted)
        return [held_task.to_wire() for held_task in self if not held_task.lost]

    def renew_interval_seconds(self, of_session: float) -> float:
        """Returns how often to renew: at the interval of the session, or of the task that wants the shortest one."""
        own = (each.renew_interval_seconds for each in self if each.renew_interval_seconds and not each.lost)
        return min(of_session, min(own, default=of_session))

    def take_calls(self) -> list[pb.Holding]:
        """Returns the claims whose model call went on since the last call of this method."""
        self.calls_went_on.clear()
        claims = [held_task for held_task in self if held_task.progress.call_went_on and not held_task.lost]
        for held_task in claims:
            held_task.progress.call_went_on = False
        return [held_task.to_wire() for held_task in claims]

    async def wait_empty(self) -> None:
        """Waits until this worker holds no task."""
        while self._by_task:
            self._changed.clear()
            await self._changed.wait()
