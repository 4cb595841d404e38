"""Plans: which calls one permits, and what a person may approve."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tenure.domain.call_plans import approve, finding_of, left_of_plan, rule_of, share_of_plan
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.tool_rules import (
    Counter,
    RuledCall,
    RuleFinding,
    RuleVerdict,
    ToolRule,
    Undecided,
    Use,
    decide_call,
    read_arguments,
)
from tenure.domain.tools import OutcomeStatus, PlannedCalls

NOW = 1_000_000.25
ASKED = (("refund", '{"customer": 7, "amount": "20.00"}'),)
WANTED = PlannedCalls(count=2, same=("args.customer",), sum_of="args.amount", limit="100")
PLAN = approve(WANTED, ASKED, "t/w1", "user/ann", NOW)


def called(arguments_json: str = '{"customer": 7, "amount": 40}', tool: str = "refund") -> RuledCall:
    return RuledCall("acme", "t", tool, read_arguments(arguments_json.encode()))


def test_approved_plan_has_values_author_and_end() -> None:
    assert (PLAN.tool, PLAN.same_values, PLAN.approved_by) == ("refund", ("7",), "user/ann")
    assert (PLAN.approve_time, PLAN.end_time) == (1_000_000.0, 1_086_400.0)
    assert PLAN.describe() == "up to 2 calls of refund, args.customer 7, args.amount at most 100 in all"


def test_plan_lasts_from_its_approval_on() -> None:
    plan = approve(replace(WANTED, lasts_seconds=90.5), ASKED, "t/w1", "user/ann", NOW)
    assert (plan.end_time, plan.lasts_seconds) == (1_000_091.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "tool", "fits"),
    [
        ('{"customer": 7, "amount": 40}', "refund", True),
        ('{"customer": 7.0, "amount": "40.00"}', "refund", True),
        ('{"customer": "7", "amount": 40}', "refund", False),
        ('{"customer": 8, "amount": 40}', "refund", False),
        ('{"customer": 7, "amount": 40}', "refund_all", False),
    ],
)
def test_plan_fits_its_tool_and_equal_values(arguments: str, tool: str, fits: bool) -> None:
    share = share_of_plan(PLAN, called(arguments, tool), NOW)
    assert (share is not None) is fits
    if share is not None:
        assert share.counter == Counter("acme", "plan:t/w1", b"", 86_400.0, 1_000_000.0)
        assert share.amount == Decimal(40)


def test_plan_tells_whole_numbers_of_one_double_apart() -> None:
    plan = replace(PLAN, same_values=(str(2**53),))
    called_with = (called(f'{{"customer": {customer}, "amount": 1}}') for customer in (2**53, 2**53 + 1))
    assert [share_of_plan(plan, each, NOW) is not None for each in called_with] == [True, False]


def test_plan_is_over_at_its_end() -> None:
    assert share_of_plan(PLAN, called(), PLAN.end_time - 1) is not None
    assert share_of_plan(PLAN, called(), PLAN.end_time) is None


def test_plan_without_a_value_is_undecided() -> None:
    with pytest.raises(Undecided):
        share_of_plan(PLAN, called('{"amount": 1}'), NOW)


def ruling_of(used: Use, *, verdict: RuleVerdict = RuleVerdict.ASK, **decided: Any) -> tuple[bool, bool, str]:
    share = share_of_plan(PLAN, called(), NOW)
    assert share is not None
    plan = replace(finding_of(PLAN, share), use=used)
    rules = [RuleFinding(ToolRule("money", "refund", verdict), applies=True)]
    ruling = decide_call(rules, **{"is_approved": False, "plans": [plan], **decided})
    return ruling.outcome is None, ruling.asks, ruling.permitted_by


def test_plan_permits_what_a_rule_asks_about() -> None:
    assert ruling_of(Use(1, Decimal(60))) == (True, False, "plan:t/w1")
    assert ruling_of(Use(2, Decimal(2))) == (False, True, "")  # its calls are used up
    assert ruling_of(Use(1, Decimal("60.01"))) == (False, True, "")  # its sum is


def test_plan_permits_what_the_task_asks_about() -> None:
    allows: dict[str, Any] = {"verdict": RuleVerdict.ALLOW, "ask_reason": "The task asks."}
    assert ruling_of(Use(), **allows) == (True, False, "plan:t/w1")
    assert ruling_of(Use(2), **allows) == (False, True, "")


def test_plan_permits_nothing_that_a_rule_denies() -> None:
    assert ruling_of(Use(), verdict=RuleVerdict.DENY) == (False, False, "")


def test_plan_is_left_to_calls_that_need_it() -> None:
    assert ruling_of(Use(), is_approved=True) == (True, False, "")
    assert ruling_of(Use(), verdict=RuleVerdict.ALLOW) == (True, False, "")


def test_used_up_plan_is_named_to_the_person() -> None:
    share = share_of_plan(PLAN, called(), NOW)
    assert share is not None
    plan = replace(finding_of(PLAN, share), use=Use(2, Decimal(2)))
    outcome = decide_call([], is_approved=False, ask_reason="The task asks.", plans=[plan]).outcome
    assert outcome is not None
    assert outcome.status is OutcomeStatus.NOT_ALLOWED
    assert outcome.content == "The task asks. The plan of an earlier approval allows 2 calls, and 2 are counted."


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"count": 0}, "plan.count"),
        ({"count": 10_001}, "plan.count"),
        ({"limit": "x"}, "plan.limit"),
        ({"limit": ""}, "plan.limit"),
        ({"sum_of": "amount"}, "plan.sum_of"),
        ({"same": ("labels.team",)}, "plan.same[0]"),
        ({"same": ("args.a b",)}, "plan.same[0]"),
        ({"when": "used.count < 3"}, "plan.when"),
        ({"end_time": NOW - 1}, "plan.end_time"),
        ({"end_time": NOW + 31 * 86_400}, "plan.end_time"),
        ({"lasts_seconds": 31 * 86_400.0}, "plan.end_time"),
        ({"plan_id": "mine"}, "plan.plan_id"),
    ],
)
def test_unbounded_plan_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        approve(replace(WANTED, **changes), ASKED, "t/w1", "user/ann", NOW)
    assert [one.field for one in refused.value.violations] == [field]


def test_plan_needs_an_allowed_call_with_its_values() -> None:
    with pytest.raises(InvalidRequest, match="allows a tool call"):
        approve(WANTED, (), "t/w1", "user/ann", NOW)
    with pytest.raises(WrongState) as refused:
        approve(WANTED, (("refund", '{"amount": 1}'),), "t/w1", "user/ann", NOW)
    assert refused.value.reason == "NO_SAME_VALUE"


def test_plan_without_other_bounds_fits_each_call() -> None:
    plan = approve(PlannedCalls(count=1), ASKED, "t/w1", "user/ann", NOW)
    assert share_of_plan(plan, called("{}"), NOW) is not None
    assert rule_of(plan).bounds is not None


@pytest.mark.parametrize(
    ("use", "now", "left"),
    [
        (Use(), NOW, (2, "100")),
        (Use(1, Decimal("20.25")), NOW, (1, "79.75")),
        (Use(3, Decimal(200)), NOW, (0, "0")),
        (Use(1, Decimal(1), ended=True), NOW, (0, "0")),
        (Use(), PLAN.end_time, (0, "0")),
    ],
)
def test_nothing_is_left_of_a_plan_that_has_ended(use: Use, now: float, left: tuple[int, str]) -> None:
    assert left_of_plan(PLAN, use, now) == left
    assert left_of_plan(replace(PLAN, limit="", sum_of=""), use, now) == (left[0], "")
