"""Decides about a tenant's quotas: the kinds, their windows, and the consequences at the soft and the hard cap.

    RUNNING_TASKS        tasks that workers hold now              offers: a task beyond it stays queued
    SUBMITS_PER_MINUTE   tasks that may start, by their start     submits
    TOKENS_PER_HOUR      tokens billed                            submits, and reservations of running tasks
    MONEY_PER_DAY        10^-9 US dollars billed                  submits, and reservations of running tasks
    EMAILS_PER_HOUR      recipients that e-mail was sent to       deliveries of webhooks: a delivery beyond it waits

Windows slide in buckets: a bucket counts until all of it is older than the window, so a window is never too short.
A quota never ends a task: at a cap the task, or its next model call, starts later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tenure.domain.budget import usd
from tenure.domain.errors import LimitReached
from tenure.domain.states import Reason

SOFT_PERCENT: Final = 80
RUNNING_RETRY_SECONDS: Final = 5.0
"""The retry time at the cap of running tasks: the end of a task cannot be predicted."""

Amounts = dict[int, int]
"""The used amount by bucket number: seconds since the epoch divided by the bucket's length."""


class QuotaKind(StrEnum):
    """The kind of a quota."""

    RUNNING_TASKS = "RUNNING_TASKS"
    SUBMITS_PER_MINUTE = "SUBMITS_PER_MINUTE"
    TOKENS_PER_HOUR = "TOKENS_PER_HOUR"
    MONEY_PER_DAY = "MONEY_PER_DAY"
    EMAILS_PER_HOUR = "EMAILS_PER_HOUR"


@dataclass(frozen=True, slots=True)
class QuotaWarning:
    """The tenant reached the soft cap of a quota with this task. `kind` None: a kind of a newer version."""

    kind: QuotaKind | None
    used: int
    most: int


class QuotaPolicy(StrEnum):
    """The consequence for a submit at the hard cap: a refusal with a retry time, or a later start."""

    REFUSE = "REFUSE"
    DELAY = "DELAY"


class Span(NamedTuple):
    """A sliding window in buckets. `slots`: the size of a ring with all buckets that count, future ones included."""

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
    QuotaKind.EMAILS_PER_HOUR: Span(60, 3600, 64),
}
OF_SUBMITS: Final = (QuotaKind.SUBMITS_PER_MINUTE, QuotaKind.TOKENS_PER_HOUR, QuotaKind.MONEY_PER_DAY)
"""The windows that a submit checks."""
OF_CALLS: Final = (QuotaKind.TOKENS_PER_HOUR, QuotaKind.MONEY_PER_DAY)
"""What model calls use up."""
DEFAULT_POLICY: Final[dict[QuotaKind, QuotaPolicy]] = {
    QuotaKind.RUNNING_TASKS: QuotaPolicy.DELAY,
    QuotaKind.SUBMITS_PER_MINUTE: QuotaPolicy.REFUSE,
    QuotaKind.TOKENS_PER_HOUR: QuotaPolicy.DELAY,
    QuotaKind.MONEY_PER_DAY: QuotaPolicy.REFUSE,
    QuotaKind.EMAILS_PER_HOUR: QuotaPolicy.DELAY,
}
LONGEST_DELAY_SECONDS: Final = 3600.0
"""A submit is not put off by its own rate for longer: then it is refused, whatever the policy."""
ROOM_OF_NOTHING_SECONDS: Final = 86_400.0
"""When a quota that is too small for anything may have room: only an operator raises it."""
LONGEST_HOLD_SECONDS: Final = 300.0
"""The longest time until the cap is checked again: an operator may raise it meanwhile."""

_TEXTS: Final[dict[QuotaKind, str]] = {
    QuotaKind.RUNNING_TASKS: "{used} of {most} running tasks",
    QuotaKind.SUBMITS_PER_MINUTE: "{used} of {most} submits a minute",
    QuotaKind.TOKENS_PER_HOUR: "{used} of {most} tokens an hour",
    QuotaKind.MONEY_PER_DAY: "{used} of {most} a day",
    QuotaKind.EMAILS_PER_HOUR: "{used} of {most} e-mails an hour",
}


@dataclass(frozen=True, slots=True)
class Quota:
    """The hard cap of one kind. The soft cap is SOFT_PERCENT of it."""

    kind: QuotaKind
    most: int
    policy: QuotaPolicy


INSTALLATION_DEFAULTS: Final = {
    QuotaKind.EMAILS_PER_HOUR: Quota(QuotaKind.EMAILS_PER_HOUR, 200, DEFAULT_POLICY[QuotaKind.EMAILS_PER_HOUR])
}
"""The quotas of an installation whose file of defaults does not name the kind. Other kinds have none."""


def installation_defaults(file: Mapping[QuotaKind, Quota | None]) -> dict[QuotaKind, Quota]:
    """Returns the default quotas of an installation with this file, in which None removes a default."""
    return {kind: quota for kind, quota in {**INSTALLATION_DEFAULTS, **file}.items() if quota is not None}


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The used amount of a quota, and the seconds until there is room again; 0: there is room."""

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
        """Returns the use as a text for people."""
        return _TEXTS[self.quota.kind].format(used=self._amount(self.used), most=self._amount(self.quota.most))

    def _amount(self, number: int) -> str:
        return usd(number) if self.quota.kind is QuotaKind.MONEY_PER_DAY else f"{number:,}"


@dataclass(frozen=True, slots=True)
class StartDecision:
    """The start of a submitted task in seconds from now, and the reason of a delay. 0 and "": at once."""

    after_seconds: float = 0.0
    message: str = ""


def bucket_of(kind: QuotaKind, now: float) -> int:
    """Returns the bucket number of a moment. `now`: seconds since the epoch."""
    return int(now // SPANS[kind].bucket_seconds)


def window_use(quota: Quota, amounts: Mapping[int, int], now: float, wanted: int = 1) -> QuotaUse:
    """Returns the use of a window, and when there is room for the wanted amount.

    Future buckets count as used: they contain delayed starts.
    """
    span = SPANS[quota.kind]
    counted = sorted((bucket, amount) for bucket, amount in amounts.items() if bucket >= _first(quota.kind, now))
    used = left = sum(amount for _, amount in counted)
    if wanted > quota.most:  # a submit is refused then, whatever the policy
        return QuotaUse(quota, used, ROOM_OF_NOTHING_SECONDS)
    room_at = now
    for bucket, amount in counted:
        if left + wanted <= quota.most:
            break
        left -= amount
        room_at = float((bucket + span.buckets + 1) * span.bucket_seconds)
    return QuotaUse(quota, used, max(0.0, room_at - now))


def use_of_running(quota: Quota, running: int) -> QuotaUse:
    """Returns the use of the quota of running tasks."""
    return QuotaUse(quota, running, RUNNING_RETRY_SECONDS if running >= quota.most else 0.0)


def decide_start(tenant: str, uses: Mapping[QuotaKind, QuotaUse], *, may_refuse: bool = True) -> StartDecision:
    """Decides when a task that is submitted now may start. Raises LimitReached (TENANT_QUOTA) if the policy refuses.

    `may_refuse` False, for a schedule's run: no caller could handle the refusal, so the start is delayed instead. A
    quota of no submits refuses it, too: it would start although the tenant may start nothing.
    """
    reached = [use for use in uses.values() if use.is_reached]
    refusing = [use for use in reached if _refuses(use) and (may_refuse or _allows_no_submits(use))]
    if refusing:
        raise refusal(tenant, max(refusing, key=lambda use: use.room_after_seconds))
    # Offers hold back tasks beyond the running ones: a task may start at the moment at which another one ends.
    delaying = [use for use in reached if use.quota.kind is not QuotaKind.RUNNING_TASKS]
    if not delaying:
        return StartDecision()
    longest = max(delaying, key=recheck_seconds)
    return StartDecision(
        recheck_seconds(longest), f"tenant {tenant} has used {longest.describe()}: it starts once there is room"
    )


def recheck_seconds(use: QuotaUse) -> float:
    """Returns the seconds until the cap is checked again."""
    if use.quota.kind is QuotaKind.SUBMITS_PER_MINUTE:
        return min(use.room_after_seconds, LONGEST_DELAY_SECONDS)
    return min(use.room_after_seconds, LONGEST_HOLD_SECONDS)


def wait_of_call(uses: Mapping[QuotaKind, QuotaUse]) -> QuotaUse | None:
    """Returns the reached quota with the longest wait for a model call, or None."""
    reached = [uses[kind] for kind in OF_CALLS if kind in uses and uses[kind].is_reached]
    return max(reached, key=lambda use: use.room_after_seconds) if reached else None


def deliveries_allowed(use: QuotaUse, recipients: int) -> int:
    """Returns how many e-mails to this many recipients each the quota allows now."""
    return max(0, use.quota.most - use.used) // recipients


def refusal(tenant: str, use: QuotaUse) -> LimitReached:
    """Returns the error for a caller beyond the cap."""
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


def _allows_no_submits(use: QuotaUse) -> bool:
    return use.quota.kind is QuotaKind.SUBMITS_PER_MINUTE and use.quota.most == 0


def _refuses(use: QuotaUse) -> bool:
    too_late = use.quota.kind is QuotaKind.SUBMITS_PER_MINUTE and use.room_after_seconds > LONGEST_DELAY_SECONDS
    return too_late or use.quota.policy is QuotaPolicy.REFUSE


def _first(kind: QuotaKind, now: float) -> int:
    """Returns the oldest bucket that counts. Part of it may be older than the window."""
    return bucket_of(kind, now) - SPANS[kind].buckets
