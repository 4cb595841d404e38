"""When schedules come due, and what becomes of each due time. Nothing here knows what time it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT_CATCH_UP_SECONDS: Final = 3600.0
MOST_CATCH_UP_RUNS: Final = 10
MOST_WAITING_RUNS: Final = 10
DUE_TIMES_AT_ONCE: Final = 1000
"""How many due times one transaction deals with: after a long outage of an every-minute schedule there are many."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_THE_SAME_EVERYWHERE: Final = frozenset({"localtime", "Factory", "posixrules"})


class OverlapPolicy(StrEnum):
    """What a due time does while a task of the schedule has not ended."""

    SKIP = "SKIP"
    QUEUE = "QUEUE"
    CANCEL_PREVIOUS = "CANCEL_PREVIOUS"


class RunOutcome(StrEnum):
    """What became of a due time."""

    STARTED = "STARTED"
    WAITING = "WAITING"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"


class RunReason(StrEnum):
    """Why there is no task for a due time, or not yet."""

    OVERLAP = "OVERLAP"
    QUEUE_FULL = "QUEUE_FULL"
    REPLACED = "REPLACED"
    MISSED = "MISSED"
    CATCH_UP_LIMIT = "CATCH_UP_LIMIT"
    NOT_CREATED = "NOT_CREATED"


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule may come due: the expression, where it is read, and its bounds (both included)."""

    cron: str
    zone: tzinfo
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first due time later than `moment`, in UTC and whole seconds; None when there is none left."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - timedelta(microseconds=1))
        due = _next_match(self.cron, self.zone, moment)
        return None if due is None or (self.ends_at is not None and due > self.ends_at) else due

    def until(self, first: datetime, now: datetime) -> Iterator[datetime]:
        """The due times from `first`, which is one, up to `now`."""
        due: datetime | None = first
        while due is not None and due <= now:
            yield due
            due = self.next_after(due)


@dataclass(frozen=True, slots=True)
class Missed:
    """Due times in a row that are not made up for: how many, and the last of them."""

    reason: RunReason
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """What has come due: `missed` is to be told of, `runs` to be started. `next_due` is the first nobody dealt with.

    `more`: `next_due` is already past; deal with it in the next transaction.
    """

    missed: tuple[Missed, ...]
    runs: tuple[datetime, ...]
    next_due: datetime | None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the runs that are due: skip some, let some wait, start at most one, cancel what runs."""

    skip: tuple[tuple[datetime, RunReason], ...] = ()
    wait: tuple[datetime, ...] = ()
    start: datetime | None = None
    cancel_active: bool = False


def check_cron(cron: str) -> None:
    """ValueError with the reason for what is no expression of five fields."""
    if len(cron.split()) != 5:
        raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
    try:
        CronSim(cron, _EPOCH)
    except CronSimError as error:
        raise ValueError(str(error)[:1].lower() + str(error)[1:]) from None


def read_zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name. ValueError for another, also for one that each machine has its own of."""
    refused = ValueError("is no IANA time zone, such as Europe/Berlin")
    if name in _NOT_THE_SAME_EVERYWHERE:
        raise refused
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise refused from None


def run_id_of(due: datetime) -> str:
    """The identity of a due time within its schedule."""
    return due.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def what_is_due(times: Times, next_due: datetime, now: datetime, catch_up_seconds: float) -> Due:
    """Sorts the due times from `next_due` up to `now`: older than the window, more than may be made up for, the rest.

    Of more than DUE_TIMES_AT_ONCE only those are dealt with that are surely followed by enough newer ones.
    """
    due: list[datetime] = []
    for one in times.until(next_due, now):
        due.append(one)
        if len(due) == DUE_TIMES_AT_ONCE:
            break
    if not due:
        return Due((), (), next_due)
    following = times.next_after(due[-1])
    if following is not None and following <= now:
        dealt_with, following = due[:-MOST_CATCH_UP_RUNS], due[-MOST_CATCH_UP_RUNS]
        return Due(_missed(dealt_with, now, catch_up_seconds), (), following, more=True)
    dropped, runs = due[:-MOST_CATCH_UP_RUNS], due[-MOST_CATCH_UP_RUNS:]
    late = [one for one in runs if _is_late(one, now, catch_up_seconds)]
    missed = _missed([*dropped, *late], now, catch_up_seconds)
    return Due(missed, tuple(runs[len(late) :]), following)


def next_due_after_change(times: Times, now: datetime, decided_until: datetime | None) -> datetime | None:
    """The first due time of a schedule whose times were changed now; None: it never comes due.

    Until now the old times counted. `decided_until`: the last due time that was decided; later than now only when the
    clock was put back, and what was decided stays decided.
    """
    return times.next_after(now if decided_until is None else max(now, decided_until))


def plan_runs(policy: OverlapPolicy, *, is_active: bool, waiting: Sequence[datetime], due: Sequence[datetime]) -> Plan:
    """What becomes of the runs that wait and those that are newly due, both oldest first.

    At most one is started: what is started is active for the rest. Nothing else of `waiting` is told of unless skipped.
    """
    if policy is OverlapPolicy.SKIP:
        return _plan_skipping([*waiting, *due], is_active=is_active)
    if policy is OverlapPolicy.CANCEL_PREVIOUS:
        return _plan_cancelling([*waiting, *due], is_active=is_active, has_waiting=bool(waiting), due=due)
    return _plan_queueing(waiting, due, is_active=is_active)


def _plan_skipping(runs: Sequence[datetime], *, is_active: bool) -> Plan:
    start = None if is_active or not runs else runs[0]
    skipped = runs if start is None else runs[1:]
    return Plan(skip=tuple((one, RunReason.OVERLAP) for one in skipped), start=start)


def _plan_cancelling(runs: Sequence[datetime], *, is_active: bool, has_waiting: bool, due: Sequence[datetime]) -> Plan:
    replaced = tuple((one, RunReason.REPLACED) for one in runs[:-1])
    if not runs or not is_active:
        return Plan(skip=replaced, start=runs[-1] if runs else None)
    newly = tuple(due[-1:])
    return Plan(skip=replaced, wait=newly, cancel_active=bool(newly) or has_waiting)


def _plan_queueing(waiting: Sequence[datetime], due: Sequence[datetime], *, is_active: bool) -> Plan:
    start = None if is_active else next(iter([*waiting, *due]), None)
    still_waiting = [one for one in waiting if one != start]
    newly = [one for one in due if one != start]
    room = MOST_WAITING_RUNS - len(still_waiting)
    full = tuple((one, RunReason.QUEUE_FULL) for one in newly[max(room, 0) :])
    return Plan(skip=full, wait=tuple(newly[: max(room, 0)]), start=start)


def _missed(due: Sequence[datetime], now: datetime, catch_up_seconds: float) -> tuple[Missed, ...]:
    late = [one for one in due if _is_late(one, now, catch_up_seconds)]
    too_many = due[len(late) :]
    groups = ((RunReason.MISSED, late), (RunReason.CATCH_UP_LIMIT, too_many))
    return tuple(Missed(reason, len(some), some[-1]) for reason, some in groups if some)


def _is_late(due: datetime, now: datetime, catch_up_seconds: float) -> bool:
    return now - due > timedelta(seconds=catch_up_seconds)


def _next_match(cron: str, zone: tzinfo, moment: datetime) -> datetime | None:
    """The library steps through the days of the calendar, so what it finds within a change of clocks may be past."""
    for match in CronSim(cron, moment.astimezone(zone)):
        due = match.astimezone(UTC)
        if due > moment:
            return due
    return None
