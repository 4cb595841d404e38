"""Quotas: windows slide, a cap delays or refuses, and says for how long."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from services.checkpoint.submit.source_defaults import read_source_defaults
from services.worker.budget_wait import (
    MAX_BUSY_WAITS,
    MAX_WAITS,
    queue_until_budget,
    wait_for_budget,
)
from tenure.domain.budget import Denied, usd
from tenure.domain.errors import LimitReached
from tenure.domain.quotas import (
    LONGEST_HOLD_SECONDS,
    SPANS,
    Quota,
    QuotaKind,
    QuotaPolicy,
    QuotaUse,
    StartDecision,
    bucket_of,
    decide_start,
    deliveries_allowed,
    installation_defaults,
    recheck_seconds,
    use_of_running,
    wait_of_call,
    window_use,
)
from tenure.domain.states import TaskState
from tenure.runtime.settings import ConfigurationError

NOW = 1_800_000_000.0
TOKENS, SUBMITS, MONEY, RUNNING, EMAILS = (
    QuotaKind.TOKENS_PER_HOUR,
    QuotaKind.SUBMITS_PER_MINUTE,
    QuotaKind.MONEY_PER_DAY,
    QuotaKind.RUNNING_TASKS,
    QuotaKind.EMAILS_PER_HOUR,
)


def quota(kind: Any, most: Any, policy: Any = QuotaPolicy.DELAY) -> Any:
    return Quota(kind, most, policy)


def at(kind: Any, **amounts_by_age: Any) -> Any:
    """Amounts by their age in seconds, as s10=…"""
    return {bucket_of(kind, NOW - int(age[1:])): amount for age, amount in amounts_by_age.items()}


def test_a_window_counts_younger_usage_only() -> None:
    use = window_use(quota(TOKENS, 1000), at(TOKENS, s10=5, s3500=7, s3700=100), NOW)
    assert (use.used, use.room_after_seconds) == (12, 0.0)


def test_a_bucket_counts_until_all_of_it_is_out_of_the_window() -> None:
    bucket = bucket_of(TOKENS, NOW)
    until = (bucket + 61) * 60
    assert window_use(quota(TOKENS, 10), {bucket: 10}, until - 1).is_reached
    assert not window_use(quota(TOKENS, 10), {bucket: 10}, until).is_reached


@pytest.mark.parametrize("kind", SPANS)
def test_capacity_is_free_at_the_reported_moment(kind: Any) -> None:
    span = SPANS[kind]
    first = bucket_of(kind, NOW) - span.buckets
    amounts = {first + 1: 6, first + 3: 3, first + 5: 4}
    wanted = quota(kind, 7)
    room = NOW + window_use(wanted, amounts, NOW).room_after_seconds
    assert not window_use(wanted, amounts, room).is_reached
    assert window_use(wanted, amounts, room - 0.5).is_reached


def test_postponed_tasks_start_without_exceeding_a_minute() -> None:
    most, starts = 3, []
    amounts: dict[Any, Any] = {}
    for _ in range(10):
        start = decide_start("acme", {SUBMITS: window_use(quota(SUBMITS, most), amounts, NOW)})
        second = bucket_of(SUBMITS, NOW + start.after_seconds)
        amounts[second] = amounts.get(second, 0) + 1
        starts.append(second)
    assert starts == sorted(starts)
    assert all(sum(second <= other < second + 60 for other in starts) <= most for second in starts)


def test_refusal_has_the_quota_and_the_retry_time() -> None:
    use = window_use(quota(SUBMITS, 2, QuotaPolicy.REFUSE), at(SUBMITS, s20=1, s5=1), NOW)
    with pytest.raises(LimitReached) as refused:
        decide_start("acme", {SUBMITS: use})
    assert refused.value.reason == "TENANT_QUOTA"
    assert refused.value.metadata == {
        "subject": "tenants/acme",
        "quota": "SUBMITS_PER_MINUTE",
        "used": "2",
        "most": "2",
    }
    assert refused.value.retry_after_seconds == pytest.approx(41)


@pytest.mark.parametrize("policy", QuotaPolicy)
def test_a_quota_of_0_allows_nothing(policy: QuotaPolicy) -> None:
    use = window_use(quota(SUBMITS, 0, policy), {}, NOW)
    assert use.is_reached
    with pytest.raises(LimitReached, match="0 of 0 submits a minute"):
        decide_start("acme", {SUBMITS: use})
    assert use_of_running(quota(RUNNING, 0), 0).is_reached
    assert deliveries_allowed(window_use(quota(EMAILS, 0), {}, NOW, 1), 1) == 0


def test_longest_refusal_wins() -> None:
    minute = window_use(quota(SUBMITS, 1, QuotaPolicy.REFUSE), at(SUBMITS, s5=1), NOW)
    day = window_use(quota(MONEY, 1, QuotaPolicy.REFUSE), at(MONEY, s5=1), NOW)
    with pytest.raises(LimitReached) as refused:
        decide_start("acme", {SUBMITS: minute, MONEY: day})
    assert refused.value.metadata["quota"] == "MONEY_PER_DAY"
    assert refused.value.retry_after_seconds is not None
    assert refused.value.retry_after_seconds > 86_000


def test_a_schedules_run_is_put_off_and_never_refused() -> None:
    use = window_use(quota(SUBMITS, 1, QuotaPolicy.REFUSE), at(SUBMITS, s5=1), NOW)
    start = decide_start("acme", {SUBMITS: use}, may_refuse=False)
    assert start.after_seconds == pytest.approx(56)
    assert "1 of 1 submits a minute" in start.message


def test_a_postponed_task_checks_again_for_a_raised_cap() -> None:
    use = window_use(quota(MONEY, 1), at(MONEY, s5=1), NOW)
    assert use.room_after_seconds > 86_000
    assert recheck_seconds(use) == decide_start("acme", {MONEY: use}).after_seconds == LONGEST_HOLD_SECONDS


def test_running_limits_hold_offers_back_unless_refused() -> None:
    assert decide_start("acme", {RUNNING: use_of_running(quota(RUNNING, 2), 2)}) == StartDecision()
    with pytest.raises(LimitReached):
        decide_start("acme", {RUNNING: use_of_running(quota(RUNNING, 2, QuotaPolicy.REFUSE), 2)})
    assert decide_start("acme", {RUNNING: use_of_running(quota(RUNNING, 2, QuotaPolicy.REFUSE), 1)}) == StartDecision()


def test_a_submit_postponed_beyond_an_hour_is_refused() -> None:
    second = bucket_of(SUBMITS, NOW)
    backlog = {second + 61 * n: 1 for n in range(60)}
    with pytest.raises(LimitReached):
        decide_start("acme", {SUBMITS: window_use(quota(SUBMITS, 1), backlog, NOW)})


@pytest.mark.parametrize(("used", "soft"), [(79, False), (80, True), (100, True)])
def test_the_soft_cap_is_four_fifths(used: int, soft: bool) -> None:
    assert QuotaUse(quota(TOKENS, 100), used).is_soft is soft


def test_money_is_in_dollars() -> None:
    assert (
        QuotaUse(quota(MONEY, 2_000_000_000), 1_234_560_000).describe()
        == f"{usd(1_234_560_000)} of {usd(2_000_000_000)} a day"
    )


def test_a_model_call_waits_for_tokens_and_money_only() -> None:
    minute = window_use(quota(SUBMITS, 1), at(SUBMITS, s5=1), NOW)
    assert wait_of_call({SUBMITS: minute}) is None
    hour = window_use(quota(TOKENS, 1), at(TOKENS, s5=1), NOW)
    assert wait_of_call({SUBMITS: minute, TOKENS: hour}) is hour


def test_a_short_wait_keeps_the_worker_a_long_one_does_not() -> None:
    assert wait_for_budget(Denied("TENANT_QUOTA", "", 10.0), 0, 0.5) == 10.0
    assert wait_for_budget(Denied("TENANT_QUOTA", "", 10.0), MAX_WAITS, 0.5) is None
    assert wait_for_budget(Denied("TENANT_QUOTA", "", 100.0), 0, 0.5) is None
    assert wait_for_budget(Denied("TOKEN_LIMIT", "", None), 0, 0.5) is None
    left = queue_until_budget(Denied("TENANT_QUOTA", "full", 100.0))
    assert (left.to_state, left.reason, left.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, "TENANT_QUOTA", 100.0)


def test_a_wait_beside_calls_ends_before_it_looks_stuck() -> None:
    busy = Denied("BUDGET_BUSY", "set aside")
    waits = [wait_for_budget(busy, number, 1.0) for number in range(MAX_BUSY_WAITS + 1)]
    assert waits.pop() is None
    assert sum(wait or 0 for wait in waits) < 60  # half of what a coordinator waits for progress
    left = queue_until_budget(busy)
    assert (left.to_state, left.reason) == (TaskState.RETRY_SCHEDULED, "BUDGET_BUSY")


def test_room_for_an_e_mail_is_free_at_the_reported_moment() -> None:
    amounts = at(EMAILS, s3000=15, s600=10)
    use = window_use(quota(EMAILS, 40), amounts, NOW, 20)
    assert (use.used, use.is_reached, deliveries_allowed(use, 20)) == (25, False, 0)
    room = NOW + use.room_after_seconds
    assert deliveries_allowed(window_use(quota(EMAILS, 40), amounts, room), 20) == 1
    assert deliveries_allowed(window_use(quota(EMAILS, 40), amounts, room - 0.5), 20) == 0
    assert window_use(quota(EMAILS, 40), amounts, NOW, 15).room_after_seconds == 0.0


def test_e_mails_are_limited_by_default() -> None:
    def read(**table: Any) -> Any:
        return installation_defaults(read_source_defaults({"tenant_quotas": table}, "file").tenant_quotas)

    assert read(running_tasks=5) == {EMAILS: Quota(EMAILS, 200, QuotaPolicy.DELAY), RUNNING: quota(RUNNING, 5)}
    assert read(emails_per_hour=20) == {EMAILS: Quota(EMAILS, 20, QuotaPolicy.DELAY)}
    assert read(emails_per_hour=0) == {EMAILS: Quota(EMAILS, 0, QuotaPolicy.DELAY)}
    assert read(emails_per_hour="no limit") == {}
    assert read(running_tasks={"most": "no limit"}) == read()


def test_defaults_are_read_from_the_file_with_money_in_dollars() -> None:
    table = {"running_tasks": 5, "usd_per_day": {"most": Decimal("12.5"), "policy": "DELAY"}}
    quotas = read_source_defaults({"tenant_quotas": table}, "file").tenant_quotas
    assert quotas == {
        RUNNING: Quota(RUNNING, 5, QuotaPolicy.DELAY),
        MONEY: Quota(MONEY, 12_500_000_000, QuotaPolicy.DELAY),
    }


@pytest.mark.parametrize(
    "table",
    [
        {"walking_tasks": 5},
        {"running_tasks": "none"},
        {"running_tasks": -1},
        {"running_tasks": "5"},
        {"running_tasks": True},
        {"running_tasks": {"most": 5, "policy": "MAYBE"}},
        {"running_tasks": {"most": 5, "soft": 3}},
        {"submits_per_minute": 10**6},
        {"emails_per_hour": 19},
        {"emails_per_hour": {"most": 50, "policy": "REFUSE"}},
        [],
    ],
)
def test_invalid_quota_file_stops_the_start(table: Any) -> None:
    with pytest.raises(ConfigurationError, match="tenant_quotas"):
        read_source_defaults({"tenant_quotas": table}, "file")
