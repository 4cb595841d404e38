"""What a tenant may use at a time and over time, and what follows at the soft and at the hard cap.

    RUNNING_TASKS        tasks that workers hold now              offers: a task beyond it stays queued
    SUBMITS_PER_MINUTE   tasks that may start, by their start     submits
    TOKENS_PER_HOUR      tokens billed                            submits, and reservations of running tasks
    MONEY_PER_DAY        10^-9 US dollars billed                  submits, and reservations of running tasks

Windows slide, in buckets: a bucket counts until all of it is older than the window, so a window is never too short.
Nothing here ends a task: at a cap it starts later, or its next model call does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tenure.domain.budget import usd
from tenure.domain.errors import LimitReached
from tenure.domain.states import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

SOFT_PERCENT: Final = 80
RUNNING_RETRY_SECONDS: Final = 5.0
"""Nobody knows when a task will end: come again soon."""

Amounts = dict[int, int]
"""What was used, by the number of the bucket: seconds since the epoch divided by the bucket's length."""


class QuotaKind(StrEnum):
    """What is limited."""

    RUNNING_TASKS = "RUNNING_TASKS"
    SUBMITS_PER_MINUTE = "SUBMITS_PER_MINUTE"
    TOKENS_PER_HOUR = "TOKENS_PER_HOUR"
    MONEY_PER_DAY = "MONEY_PER_DAY"


@dataclass(frozen=True, slots=True)
class QuotaWarning:
    """The tenant is near one of its caps; this task met it first. `kind` None: one of a newer version."""

    kind: QuotaKind | None
    used: int
    most: int


class QuotaPolicy(StrEnum):
    """What a submit meets at the hard cap: a refusal with a time to come again, or a later start."""

    REFUSE = "REFUSE"
    DELAY = "DELAY"


class Span(NamedTuple):
    """A sliding window in buckets. `slots`: what a ring needs that holds what counts and what is to come."""

    bucket_seconds: int
    window_seconds: int
    slots: int

    @property
    def buckets(self) -> int:
        return self.window_seconds // self.bucket_seconds


SPANS: Final[dict[QuotaKind, Span]] = {
    QuotaKind.SUBMITS_PER_MINUTE: Span(1, 60, 4096),
    QuotaKind.TOKENS_PER_HOUR: Span(60, 3600, 64),
    QuotaKind.MONEY_PER_DAY: Span(900, 86_400, 100),
}
OF_CALLS: Final = (QuotaKind.TOKENS_PER_HOUR, QuotaKind.MONEY_PER_DAY)
"""What model calls use up."""
DEFAULT_POLICY: Final[dict[QuotaKind, QuotaPolicy]] = {
    QuotaKind.RUNNING_TASKS: QuotaPolicy.DELAY,
    QuotaKind.SUBMITS_PER_MINUTE: QuotaPolicy.REFUSE,
    QuotaKind.TOKENS_PER_HOUR: QuotaPolicy.DELAY,
    QuotaKind.MONEY_PER_DAY: QuotaPolicy.REFUSE,
}
LONGEST_DELAY_SECONDS: Final = 3600.0
"""A submit is not put off by its own rate for longer: then it is refused, whatever the policy."""
LONGEST_HOLD_SECONDS: Final = 300.0
"""What waits for tokens or money looks again after so long: somebody may have raised the cap."""

_WORDS: Final[dict[QuotaKind, str]] = {
    QuotaKind.RUNNING_TASKS: "{used} of {most} running tasks",
    QuotaKind.SUBMITS_PER_MINUTE: "{used} of {most} submits a minute",
    QuotaKind.TOKENS_PER_HOUR: "{used} of {most} tokens an hour",
    QuotaKind.MONEY_PER_DAY: "{used} of {most} a day",
}


@dataclass(frozen=True, slots=True)
class Quota:
    """The hard cap of one thing; the soft one is SOFT_PERCENT of it."""

    kind: QuotaKind
    most: int
    policy: QuotaPolicy


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """How much of a quota is used, and after how many seconds there is room again (0: there is)."""

    quota: Quota
    used: int
    room_after_seconds: float = 0.0

    @property
    def is_reached(self) -> bool:
        return self.used >= self.quota.most

    @property
    def is_soft(self) -> bool:
        """Whether the soft cap is reached."""
        return self.used * 100 >= self.quota.most * SOFT_PERCENT

    def describe(self) -> str:
        """For people."""
        return _WORDS[self.quota.kind].format(used=self._amount(self.used), most=self._amount(self.quota.most))

    def _amount(self, number: int) -> str:
        return usd(number) if self.quota.kind is QuotaKind.MONEY_PER_DAY else f"{number:,}"


@dataclass(frozen=True, slots=True)
class StartDecision:
    """When a submitted task may start, in seconds from now, and what it waits for; 0 and "": at once."""

    after_seconds: float = 0.0
    message: str = ""


def bucket_of(kind: QuotaKind, now: float) -> int:
    """The number of the bucket that a moment belongs to. `now`: seconds since the epoch."""
    return int(now // SPANS[kind].bucket_seconds)


def window_use(quota: Quota, amounts: Mapping[int, int], now: float) -> QuotaUse:
    """Of a window. What is to come counts as used: a start that was put off has its place."""
    span = SPANS[quota.kind]
    counted = sorted((bucket, amount) for bucket, amount in amounts.items() if bucket >= _first(quota.kind, now))
    used = left = sum(amount for _, amount in counted)
    room_at = now
    for bucket, amount in counted:
        if left < quota.most:
            break
        left -= amount
        room_at = float((bucket + span.buckets + 1) * span.bucket_seconds)
    return QuotaUse(quota, used, max(0.0, room_at - now))


def use_of_running(quota: Quota, running: int) -> QuotaUse:
    """Of the tasks that are held now."""
    return QuotaUse(quota, running, RUNNING_RETRY_SECONDS if running >= quota.most else 0.0)


def decide_start(tenant: str, uses: Mapping[QuotaKind, QuotaUse], *, may_refuse: bool = True) -> StartDecision:
    """When a task that is submitted now may start. Raises LimitReached (TENANT_QUOTA) where the policy says so.

    What nobody is there to be told of (a schedule's run) is not refused but put off.
    """
    reached = [use for use in uses.values() if use.is_reached]
    refusing = [use for use in reached if may_refuse and _refuses(use)]
    if refusing:
        raise refusal(tenant, max(refusing, key=lambda use: use.room_after_seconds))
    # The offers hold back what is beyond the running tasks: a task may start the moment that another one ends.
    delaying = [use for use in reached if use.quota.kind is not QuotaKind.RUNNING_TASKS]
    if not delaying:
        return StartDecision()
    longest = max(delaying, key=recheck_seconds)
    return StartDecision(
        recheck_seconds(longest), f"tenant {tenant} has used {longest.describe()}: it starts once there is room"
    )


def recheck_seconds(use: QuotaUse) -> float:
    """How long to wait at a cap before looking again."""
    if use.quota.kind is QuotaKind.SUBMITS_PER_MINUTE:
        return min(use.room_after_seconds, LONGEST_DELAY_SECONDS)
    return min(use.room_after_seconds, LONGEST_HOLD_SECONDS)


def wait_of_call(uses: Mapping[QuotaKind, QuotaUse]) -> QuotaUse | None:
    """What a model call has to wait for: the quota that takes longest. None: nothing."""
    reached = [uses[kind] for kind in OF_CALLS if kind in uses and uses[kind].is_reached]
    return max(reached, key=lambda use: use.room_after_seconds) if reached else None


def refusal(tenant: str, use: QuotaUse) -> LimitReached:
    """What whoever asks for more is told."""
    return LimitReached(
        f"tenant {tenant} has used {use.describe()}",
        retry_after_seconds=use.room_after_seconds,
        reason=Reason.TENANT_QUOTA,
        metadata={
            "subject": f"tenants/{tenant}",
            "quota": use.quota.kind.value,
            "used": str(use.used),
            "most": str(use.quota.most),
        },
    )


def _refuses(use: QuotaUse) -> bool:
    too_late = use.quota.kind is QuotaKind.SUBMITS_PER_MINUTE and use.room_after_seconds > LONGEST_DELAY_SECONDS
    return too_late or use.quota.policy is QuotaPolicy.REFUSE


def _first(kind: QuotaKind, now: float) -> int:
    """The oldest bucket that counts: part of it may be older than the window."""
    return bucket_of(kind, now) - SPANS[kind].buckets
