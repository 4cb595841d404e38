"""Computes the due times of schedules and decides the outcome of each due time. Pure: callers pass the current time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

DEFAULT_CATCH_UP_SECONDS: Final = 3600.0
MAX_CATCH_UP_RUNS: Final = 10
MAX_WAITING_RUNS: Final = 10
DUE_TIMES_AT_ONCE: Final = 1000
"""The most due times that one transaction handles: after a long outage, a schedule of every minute has many."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MACHINE_DEPENDENT_ZONES: Final = frozenset({"localtime", "Factory", "posixrules"})


class OverlapPolicy(StrEnum):
    """The handling of a due time while a task of the schedule has not ended."""

    SKIP = "SKIP"
    QUEUE = "QUEUE"
    CANCEL_PREVIOUS = "CANCEL_PREVIOUS"


class RunOutcome(StrEnum):
    """The outcome of a due time."""

    STARTED = "STARTED"
    WAITING = "WAITING"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"


class RunReason(StrEnum):
    """Why a due time has no task, or has none yet."""

    OVERLAP = "OVERLAP"
    QUEUE_FULL = "QUEUE_FULL"
    REPLACED = "REPLACED"
    MISSED = "MISSED"
    CATCH_UP_LIMIT = "CATCH_UP_LIMIT"
    NOT_CREATED = "NOT_CREATED"


@dataclass(frozen=True, slots=True)
class Times:
    """The rule for a schedule's due times: the cron expression, its time zone, and its bounds (both inclusive)."""

    cron: str
    zone: tzinfo
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the first due time later than `moment`, in UTC and whole seconds, or None if none is left."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - timedelta(microseconds=1))
        due = _next_match(self.cron, self.zone, moment)
        return None if due is None or (self.ends_at is not None and due > self.ends_at) else due

    def until(self, first: datetime, now: datetime) -> Iterator[datetime]:
        """Yields the due times from `first`, which must be a due time, up to `now`."""
        due: datetime | None = first
        while due is not None and due <= now:
            yield due
            due = self.next_after(due)


@dataclass(frozen=True, slots=True)
class Missed:
    """Consecutive due times that start no task: the reason, their number, and the last one."""

    reason: RunReason
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """The due times that were reached: `missed` ones are recorded as skipped, `runs` are planned by `plan_runs`.

    `next_due`: the first due time that is not handled yet. `more`: `next_due` is past already; handle it in the next
    transaction.
    """

    missed: tuple[Missed, ...]
    runs: tuple[datetime, ...]
    next_due: datetime | None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision about due runs: which to skip, which wait, which one starts, and whether to cancel active tasks."""

    skip: tuple[tuple[datetime, RunReason], ...] = ()
    wait: tuple[datetime, ...] = ()
    start: datetime | None = None
    cancel_active: bool = False


def check_cron(cron: str) -> None:
    """Raises ValueError, with the reason, unless `cron` is a valid expression of five fields."""
    if len(cron.split()) != 5:
        raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
    from cronsim import CronSim, CronSimError  # only services have it, and clients import this module for its enums

    try:
        CronSim(cron, _EPOCH)
    except CronSimError as error:
        raise ValueError(str(error)[:1].lower() + str(error)[1:]) from None


def read_zone(name: str) -> ZoneInfo:
    """Returns the time zone of an IANA name.

    Raises ValueError for any other name, also for a zone that each machine defines for itself (localtime).
    """
    refused = ValueError("must be an IANA time zone, for example Europe/Berlin")
    if name in _MACHINE_DEPENDENT_ZONES:
        raise refused
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise refused from None


def run_id_of(due: datetime) -> str:
    """Returns the id of a due time's run: unique within the schedule."""
    return due.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def what_is_due(times: Times, next_due: datetime, now: datetime, catch_up_seconds: float) -> Due:
    """Sorts the due times from `next_due` up to `now` into missed ones and runs.

    Missed are the due times that are older than the catch-up window, and all but the newest MAX_CATCH_UP_RUNS. With
    more than DUE_TIMES_AT_ONCE due times, the call handles only those that have at least MAX_CATCH_UP_RUNS newer ones.
    """
    due: list[datetime] = []
    for due_time in times.until(next_due, now):
        due.append(due_time)
        if len(due) == DUE_TIMES_AT_ONCE:
            break
    if not due:
        return Due((), (), next_due)
    following = times.next_after(due[-1])
    if following is not None and following <= now:
        handled, following = due[:-MAX_CATCH_UP_RUNS], due[-MAX_CATCH_UP_RUNS]
        return Due(_missed(handled, now, catch_up_seconds), (), following, more=True)
    dropped, runs = due[:-MAX_CATCH_UP_RUNS], due[-MAX_CATCH_UP_RUNS:]
    late = [due_time for due_time in runs if _is_late(due_time, now, catch_up_seconds)]
    missed = _missed([*dropped, *late], now, catch_up_seconds)
    return Due(missed, tuple(runs[len(late) :]), following)


def next_due_after_change(times: Times, now: datetime, decided_until: datetime | None) -> datetime | None:
    """Returns the first due time of a schedule whose times change now, or None if it never comes due again.

    The old times apply until now. `decided_until`: the last decided due time. It is later than now only if the clock
    was set back; decided due times stay decided.
    """
    return times.next_after(now if decided_until is None else max(now, decided_until))


def plan_runs(policy: OverlapPolicy, *, is_active: bool, waiting: Sequence[datetime], due: Sequence[datetime]) -> Plan:
    """Decides about the waiting runs and the newly due runs, both oldest first.

    At most one run starts, because it is active for all later runs. The plan names other runs of `waiting` only if it
    skips them: the rest keep waiting.
    """
    if policy is OverlapPolicy.SKIP:
        return _plan_skipping([*waiting, *due], is_active=is_active)
    if policy is OverlapPolicy.CANCEL_PREVIOUS:
        return _plan_cancelling([*waiting, *due], is_active=is_active, has_waiting=bool(waiting), due=due)
    return _plan_queueing(waiting, due, is_active=is_active)


def _plan_skipping(runs: Sequence[datetime], *, is_active: bool) -> Plan:
    start = None if is_active or not runs else runs[0]
    skipped = runs if start is None else runs[1:]
    return Plan(skip=tuple((run, RunReason.OVERLAP) for run in skipped), start=start)


def _plan_cancelling(runs: Sequence[datetime], *, is_active: bool, has_waiting: bool, due: Sequence[datetime]) -> Plan:
    replaced = tuple((run, RunReason.REPLACED) for run in runs[:-1])
    if not runs or not is_active:
        return Plan(skip=replaced, start=runs[-1] if runs else None)
    newly_waiting = tuple(due[-1:])
    return Plan(skip=replaced, wait=newly_waiting, cancel_active=bool(newly_waiting) or has_waiting)


def _plan_queueing(waiting: Sequence[datetime], due: Sequence[datetime], *, is_active: bool) -> Plan:
    start = None if is_active else next(iter([*waiting, *due]), None)
    still_waiting = [run for run in waiting if run != start]
    newly_due = [run for run in due if run != start]
    free = max(MAX_WAITING_RUNS - len(still_waiting), 0)
    skipped = tuple((run, RunReason.QUEUE_FULL) for run in newly_due[free:])
    return Plan(skip=skipped, wait=tuple(newly_due[:free]), start=start)


def _missed(due: Sequence[datetime], now: datetime, catch_up_seconds: float) -> tuple[Missed, ...]:
    late = [due_time for due_time in due if _is_late(due_time, now, catch_up_seconds)]
    beyond_limit = due[len(late) :]
    groups = ((RunReason.MISSED, late), (RunReason.CATCH_UP_LIMIT, beyond_limit))
    return tuple(Missed(reason, len(due_times), due_times[-1]) for reason, due_times in groups if due_times)


def _is_late(due: datetime, now: datetime, catch_up_seconds: float) -> bool:
    return now - due > timedelta(seconds=catch_up_seconds)


def _next_match(cron: str, zone: tzinfo, moment: datetime) -> datetime | None:
    """Returns the first match later than `moment`.

    CronSim steps through calendar days, so a match during a change of clocks may not be later than `moment`.
    """
    from cronsim import CronSim

    for match in CronSim(cron, moment.astimezone(zone)):
        due = match.astimezone(UTC)
        if due > moment:
            return due
    return None
