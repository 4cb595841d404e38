"""Laws of due times, catching up and overlaps; no database, no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.domain.schedules import (
    DUE_TIMES_AT_ONCE,
    MAX_CATCH_UP_RUNS,
    MAX_WAITING_RUNS,
    OverlapPolicy,
    RunReason,
    Times,
    check_cron,
    next_due_after_change,
    plan_runs,
    read_zone,
    run_id_of,
    what_is_due,
)
from tests.support.examples import examples

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 1, tzinfo=UTC)
EVERY_MINUTE = Times("* * * * *", UTC)

moments = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  hypothesis' way
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])
crons = st.one_of(
    st.sampled_from(
        ["* * * * *", "30 * * * *", "*/7 1-3 * * *", "30 2 * * *", "15,45 1-3 * * 0", "0 9 LW * *", "0 0 29 2 *"]
    ),
    st.builds(
        "{} {} * * {}".format, st.integers(0, 59), st.integers(0, 23), st.sampled_from(["*", "1-5", "SUN", "0#1"])
    ),
)
steps = st.integers(-30, 200).map(lambda minutes: timedelta(minutes=minutes))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dues(cron: str, after: str, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    times, results, moment = Times(cron, zone), [], utc(after)
    for _ in range(count):
        following = times.next_after(moment)
        assert following is not None
        moment = following
        results.append(moment.strftime("%d %H:%M"))
    return results


class TestChanges:
    @given(crons, zones, moments)
    def test_new_times_count_from_now(self, cron: Any, zone: Any, now: Any) -> None:
        times = Times(cron, ZoneInfo(zone))
        assert next_due_after_change(times, now, None) == times.next_after(now)
        assert next_due_after_change(times, now, now - timedelta(days=1)) == times.next_after(now)

    @given(crons, zones, moments, steps)
    def test_a_decided_time_is_not_due_after_a_clock_step_back(
        self, cron: Any, zone: Any, decided_until: Any, step: Any
    ) -> None:
        result = next_due_after_change(Times(cron, ZoneInfo(zone)), decided_until - abs(step), decided_until)
        assert result is None or result > decided_until

    def test_a_sooner_expression_is_due_sooner(self) -> None:
        now = utc("2026-03-01T12:00:30")
        assert next_due_after_change(EVERY_MINUTE, now, None) == utc("2026-03-01T12:01")
        assert next_due_after_change(Times("* * * * *", UTC, ends_at=now), now, None) is None


class TestDueTimes:
    @given(crons, zones, moments)
    @settings(max_examples=examples(20), deadline=None)
    def test_the_next_due_time_is_later_and_a_whole_minute(self, cron: Any, zone: Any, moment: Any) -> None:
        result = Times(cron, ZoneInfo(zone)).next_after(moment)
        assert result is not None
        assert result > moment
        assert (result.second, result.microsecond, result.tzinfo) == (0, 0, UTC)

    @given(crons, zones, moments, st.timedeltas(timedelta(0), timedelta(days=2)))
    @settings(max_examples=examples(20), deadline=None)
    @example("30 2 * * *", "Europe/Berlin", utc("2026-10-25T00:10"), timedelta(hours=1))
    @example("15,45 2 * * *", "Europe/Berlin", utc("2026-03-29T00:10"), timedelta(minutes=50))
    def test_due_times_do_not_depend_on_the_start(self, cron: Any, zone: Any, moment: Any, later: Any) -> None:
        """What lies between two moments is found from both: none is lost when a sweep comes late, none comes twice."""
        times = Times(cron, ZoneInfo(zone))
        first, second = times.next_after(moment), times.next_after(moment + later)
        assert first is not None
        assert second is not None
        assert first <= second
        if first > moment + later:
            assert first == second

    def test_a_skipped_time_of_day_is_due_after_the_gap(self) -> None:
        """In Berlin 02:00 to 03:00 is left out on 29 March 2026; 03:00 there is 01:00 UTC."""
        assert dues("30 2 * * *", "2026-03-28T12:00", 2) == ["29 01:00", "30 00:30"]
        assert dues("15,45 2 * * *", "2026-03-28T12:00", 2) == ["29 01:00", "30 00:15"]

    def test_a_time_of_day_that_comes_twice_comes_due_once(self) -> None:
        """02:00 to 03:00 comes twice on 25 October 2026, first from 00:00 UTC."""
        assert dues("30 2 * * *", "2026-10-24T12:00", 2) == ["25 00:30", "26 01:30"]
        assert dues("30 2 * * *", "2026-10-25T00:45", 1) == ["26 01:30"]

    def test_every_hour_stays_every_hour(self) -> None:
        assert dues("30 * * * *", "2026-03-29T00:00", 3) == ["29 00:30", "29 01:30", "29 02:30"]
        assert dues("30 * * * *", "2026-10-25T00:00", 3) == ["25 00:30", "25 01:30", "25 02:30"]

    def test_star_follows_the_clock(self) -> None:
        assert dues("*/30 2 * * *", "2026-03-28T12:00", 1) == ["30 00:00"]
        assert dues("*/30 2 * * *", "2026-10-24T12:00", 5) == [
            "25 00:00",
            "25 00:30",
            "25 01:00",
            "25 01:30",
            "26 01:00",
        ]

    def test_nothing_comes_due_before_the_start_and_after_the_end(self) -> None:
        times = Times("0 12 * * *", UTC, utc("2026-03-05T12:00"), utc("2026-03-06T12:00"))
        first = times.next_after(START)
        assert first is not None
        assert list(times.until(first, utc("2027-01-01"))) == [
            utc("2026-03-05T12:00"),
            utc("2026-03-06T12:00"),
        ]
        assert times.next_after(utc("2026-03-06T12:00")) is None

    @settings(deadline=None)
    @given(st.text(max_size=30))
    @example("0 0 30 2 *")
    @example("* * * * * *")
    @example("@daily")
    def test_invalid_expression_is_refused(self, text: str) -> None:
        try:
            check_cron(text)
        except ValueError:
            return
        Times(text, UTC).next_after(START)

    @pytest.mark.parametrize(
        "name", ["", "Mars/Olympus", "/etc/passwd", "../etc/passwd", "localtime", "Europe", "a\0b"]
    )
    def test_invalid_time_zone_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="IANA"):
            read_zone(name)

    def test_a_run_is_named_by_its_due_time_in_utc(self) -> None:
        assert run_id_of(datetime(2026, 3, 30, 2, 30, tzinfo=BERLIN)) == "2026-03-30T00:30:00Z"


class TestCatchingUp:
    def test_schedule_that_is_not_due_is_unchanged(self) -> None:
        due = what_is_due(EVERY_MINUTE, START, START - timedelta(seconds=1), 60)
        assert (due.missed, due.runs, due.next_due) == ((), (), START)

    def test_outage_within_the_window_is_caught_up(self) -> None:
        due = what_is_due(EVERY_MINUTE, START, START + timedelta(minutes=3), 3600)
        assert due.runs == tuple(START + timedelta(minutes=minute) for minute in range(4))
        assert (due.missed, due.next_due) == ((), START + timedelta(minutes=4))

    def test_due_times_before_the_window_are_skipped(self) -> None:
        due = what_is_due(EVERY_MINUTE, START, START + timedelta(minutes=30), 180)
        (missed,) = due.missed
        assert (missed.reason, missed.count) == (RunReason.MISSED, 27)
        assert len(due.runs) == 4

    def test_newest_due_times_are_caught_up(self) -> None:
        due = what_is_due(EVERY_MINUTE, START, START + timedelta(minutes=30), 3600)
        (missed,) = due.missed
        assert (missed.reason, missed.count) == (RunReason.CATCH_UP_LIMIT, 31 - MAX_CATCH_UP_RUNS)
        assert due.runs[-1] == START + timedelta(minutes=30)

    @settings(max_examples=examples(15), deadline=None)
    @given(
        st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=6),
        st.integers(60, 90_000),
        st.sampled_from(["* * * * *", "*/5 * * * *", "7 * * * *"]),
    )
    def test_each_due_time_is_handled_once_despite_the_clock(
        self, looks: list[Any], window_seconds: int, cron: str
    ) -> None:
        """The clock leaps and goes back between looks; what was dealt with is what came due, in order, without gaps."""
        times = Times(cron, UTC)
        next_due = first = times.next_after(START)
        assert first is not None
        now, newest, missed = START, START, 0
        runs: list[datetime] = []
        for step, leaps in looks:
            now = now + step * (6 if leaps else 1)
            newest = max(newest, now)
            while next_due is not None:
                due = what_is_due(times, next_due, now, window_seconds)
                assert all(now - timedelta(seconds=window_seconds) <= run <= now for run in due.runs)
                assert len(due.runs) <= MAX_CATCH_UP_RUNS
                runs += due.runs
                missed += sum(some.count for some in due.missed)
                next_due = due.next_due
                if not due.more:
                    break
        assert runs == sorted(set(runs))
        assert missed + len(runs) == len(list(times.until(first, newest)))
        assert next_due == times.next_after(max(newest, START))

    def test_long_outage_is_caught_up_in_parts(self) -> None:
        now = START + timedelta(days=3)
        next_due: datetime | None = START
        missed, parts = 0, 0
        while True:
            assert next_due is not None
            due = what_is_due(EVERY_MINUTE, next_due, now, 3600)
            missed += sum(some.count for some in due.missed)
            next_due, parts = due.next_due, parts + 1
            if not due.more:
                break
            assert due.runs == ()
        assert parts == 5
        assert missed + len(due.runs) == 3 * 24 * 60 + 1
        assert len(due.runs) == MAX_CATCH_UP_RUNS
        assert missed > DUE_TIMES_AT_ONCE


MINUTES = [START + timedelta(minutes=minute) for minute in range(40)]


class TestOverlap:
    @settings(deadline=None)
    @given(
        st.sampled_from(OverlapPolicy),
        st.booleans(),
        st.integers(0, MAX_WAITING_RUNS),
        st.integers(0, MAX_CATCH_UP_RUNS),
    )
    def test_each_run_has_one_outcome(self, policy: Any, is_active: bool, waiting_count: int, due_count: int) -> None:
        waiting = MINUTES[:waiting_count] if policy is not OverlapPolicy.SKIP else []
        due = MINUTES[20 : 20 + due_count]
        plan = plan_runs(policy, is_active=is_active, waiting=waiting, due=due)
        skipped = [one for one, _ in plan.skip]
        started = [] if plan.start is None else [plan.start]
        seen = [*skipped, *plan.wait, *started]
        assert len(set(seen)) == len(seen)
        still = set(waiting) - set(seen)
        assert set(seen) | still == {*waiting, *due}
        assert len(still) + len(plan.wait) <= MAX_WAITING_RUNS
        assert not (is_active and started)
        if (waiting or due) and not is_active:
            assert started

    def test_skip_starts_the_first_run(self) -> None:
        plan = plan_runs(OverlapPolicy.SKIP, is_active=False, waiting=[], due=MINUTES[:3])
        assert (plan.start, [one for one, _ in plan.skip]) == (MINUTES[0], MINUTES[1:3])
        plan = plan_runs(OverlapPolicy.SKIP, is_active=True, waiting=[], due=MINUTES[:1])
        assert (plan.start, plan.skip) == (None, ((MINUTES[0], RunReason.OVERLAP),))

    def test_queue_starts_the_oldest_run(self) -> None:
        plan = plan_runs(OverlapPolicy.QUEUE, is_active=False, waiting=MINUTES[:2], due=MINUTES[5:6])
        assert (plan.start, plan.wait, plan.skip) == (MINUTES[0], (MINUTES[5],), ())
        full = plan_runs(OverlapPolicy.QUEUE, is_active=True, waiting=MINUTES[:MAX_WAITING_RUNS], due=MINUTES[20:21])
        assert (full.wait, full.skip) == ((), ((MINUTES[20], RunReason.QUEUE_FULL),))

    def test_cancel_previous_cancels_and_keeps_the_newest(self) -> None:
        plan = plan_runs(OverlapPolicy.CANCEL_PREVIOUS, is_active=True, waiting=MINUTES[:1], due=MINUTES[5:7])
        assert plan.cancel_active
        assert (plan.wait, plan.start) == ((MINUTES[6],), None)
        assert plan.skip == ((MINUTES[0], RunReason.REPLACED), (MINUTES[5], RunReason.REPLACED))
        then = plan_runs(OverlapPolicy.CANCEL_PREVIOUS, is_active=False, waiting=[MINUTES[6]], due=[])
        assert (then.start, then.cancel_active) == (MINUTES[6], False)

    def test_nothing_is_cancelled_while_nothing_is_due(self) -> None:
        plan = plan_runs(OverlapPolicy.CANCEL_PREVIOUS, is_active=True, waiting=[], due=[])
        assert not plan.cancel_active
