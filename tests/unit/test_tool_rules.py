"""Rules on tool calls: strictness, exact amounts, windows, and arguments of strangers."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.domain.tool_rules import (
    MAX_ARGUMENT_BYTES,
    NEEDS_APPROVAL,
    RULE_DENIED,
    RULE_FAILED,
    Counts,
    RuleBounds,
    RuledCall,
    RuleFinding,
    RuleVerdict,
    ToolRule,
    Undecided,
    Use,
    amount_of,
    decide_call,
    problems_of_rule,
    read_arguments,
    share_of,
)

ALLOW, ASK, DENY = RuleVerdict
STRICTNESS = {ALLOW: 0, ASK: 1, DENY: 2}


def rule(verdict: RuleVerdict = ALLOW, name: str = "r", **fields: Any) -> ToolRule:
    return ToolRule(name, "refund", verdict, **fields)


def call(**args: Any) -> RuledCall:
    return RuledCall("acme", "task", "refund", read_arguments(json.dumps(args).encode()))


@pytest.mark.parametrize(
    ("pattern", "tool", "fits"), [("re*", "refund", True), ("refund", "refunds", False), ("*", "a__b", True)]
)
def test_a_rule_fits_tools_by_their_names(pattern: str, tool: str, fits: bool) -> None:
    assert ToolRule("r", pattern, ALLOW).fits(tool, "any") is fits
    assert ToolRule("r", pattern, ALLOW, agent="x").fits(tool, "y") is False


@given(st.lists(st.tuples(st.sampled_from(RuleVerdict), st.booleans()), max_size=6), st.booleans())
def test_the_strictest_rule_that_applies_decides(rules: list[tuple[RuleVerdict, bool]], approved: bool) -> None:
    findings = [RuleFinding(rule(verdict, f"r{index}"), applies) for index, (verdict, applies) in enumerate(rules)]
    ruling = decide_call(findings, is_approved=approved)
    applied = [verdict for verdict, applies in rules if applies]
    is_closed = any(verdict is ALLOW for verdict, _ in rules)
    expected = max(applied, key=STRICTNESS.__getitem__) if applied else DENY if is_closed else ALLOW
    assert ruling.verdict is (ALLOW if expected is ASK and approved else expected)


def test_a_rule_that_has_a_problem_denies_approved_calls() -> None:
    ruling = decide_call([RuleFinding(rule(), applies=False, problem="it takes too long")], is_approved=True)
    assert ruling.outcome is not None
    assert (ruling.outcome.detail, ruling.asks) == (RULE_FAILED, False)


@pytest.mark.parametrize(
    ("used", "amount", "detail"),
    [
        (Use(4, Decimal(150)), "50.00", ""),
        (Use(4, Decimal(150)), "50.01", RULE_DENIED),
        (Use(5, Decimal(0)), "1", RULE_DENIED),
    ],
)
def test_a_bound_is_exact(used: Use, amount: str, detail: str) -> None:
    bounded = rule(bounds=RuleBounds(count=5, sum_of="args.amount", limit="200"))
    share = share_of(bounded, call(amount=amount), 0.0)
    ruling = decide_call([RuleFinding(bounded, True, share=share, use=used)], is_approved=False)
    assert (ruling.outcome.detail if ruling.outcome else "") == detail
    assert ruling.shares == (() if detail else (share,))


def test_beyond_a_bound_an_approval_counts_on() -> None:
    bounded = rule(bounds=RuleBounds(count=1, beyond=ASK))
    finding = RuleFinding(bounded, True, share=share_of(bounded, call(), 0.0), use=Use(1))
    asked = decide_call([finding], is_approved=False)
    assert asked.outcome is not None
    assert (asked.outcome.detail, asked.asks) == (NEEDS_APPROVAL, True)
    assert len(decide_call([finding], is_approved=True).shares) == 1


@given(st.lists(st.decimals(0, 10**12, places=12), min_size=1, max_size=30))
def test_amounts_are_added_without_rounding(amounts: list[Decimal]) -> None:
    use = Use()
    for amount in amounts:
        use = use.plus(amount)
    assert int(use.total * 10**12) == sum(int(amount * 10**12) for amount in amounts)
    assert use.minus(amounts[0]).calls == len(amounts) - 1


def test_equal_values_have_one_counter() -> None:
    bounded = rule(bounds=RuleBounds(per="args.customer", count=1, window_seconds=86_400))
    first = share_of(bounded, call(customer=7), 86_400.0 * 3 + 5).counter
    assert share_of(bounded, call(customer=7.0), 86_400.0 * 4 - 1).counter == first
    assert share_of(bounded, call(customer="7"), 86_400.0 * 3).counter != first
    assert share_of(bounded, call(customer=7), 86_400.0 * 4).counter != first
    assert first.begins_at == 86_400.0 * 3


@pytest.mark.parametrize("value", [True, None, [], "", "1e5", "-1", -1, 10**31, "0." + "1" * 13, "NaN", " 1"])
def test_an_invalid_amount_is_refused(value: Any) -> None:
    with pytest.raises(Undecided):
        amount_of(value)


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1, "a": 2}', "[]", "{", '{"a": NaN}', '{"a": 1e9999999}', '{"a": -1e309}'),
        *('{"a": ' * 900 + "1" + "}" * 900, f'"{"x" * MAX_ARGUMENT_BYTES}"'),
    ],
)
def test_unclear_arguments_are_refused(text: str) -> None:
    with pytest.raises(Undecided):
        read_arguments(text.encode())


@pytest.mark.parametrize("value", ["boss\0evil", "\0", "\ud83d", 2**63, -(2**63) - 1])
def test_a_value_that_expressions_would_misread_is_refused(value: Any) -> None:
    """The library reads a text up to its first NUL, and whole numbers of 64 bits."""
    text = str(value)
    seen = [
        *(RuledCall("t", "t", "t", args) for args in ({"a": value}, {"a": [{"b": [value]}]})),
        *(RuledCall("t", "t", "t", {}, labels=labels) for labels in ({"team": text}, {text: "team"})),
        *(RuledCall("t", "t", "t", args) for args in ({text: 1}, {"a": [{text: 1}]})),
        *(RuledCall(text, "t", "t", {}), RuledCall("t", "t", text, {}), RuledCall("t", "t", "t", {}, text)),
    ]
    for one in seen if isinstance(value, str) else seen[:2]:
        with pytest.raises(Undecided):
            one.values()


@pytest.mark.parametrize("zero", ["0e99999999", "0.0", "-0.0e-99999999"])
def test_the_size_of_an_exponent_takes_no_time(zero: str) -> None:
    """The tool gets 0.0 for each."""
    bounded = rule(bounds=RuleBounds(per="args.customer", count=1))
    read = RuledCall("acme", "task", "refund", read_arguments(f'{{"customer": {zero}}}'.encode()))
    assert share_of(bounded, read, 0.0) == share_of(bounded, call(customer=0), 0.0)


@given(st.decimals(-(10**20), 10**20, places=30) | st.integers(-(10**20), 10**20).map(Decimal))
@example(Decimal(9007199254740993))
def test_numbers_that_a_tool_receives_as_one_have_one_counter(number: Decimal) -> None:
    bounded = rule(bounds=RuleBounds(per="args.customer", count=1))
    read = RuledCall("acme", "task", "refund", read_arguments(f'{{"customer": {number:f}}}'.encode()))
    assert share_of(bounded, read, 0.0) == share_of(bounded, call(customer=float(number)), 0.0)


def test_numbers_within_a_value_have_one_counter() -> None:
    bounded = rule(bounds=RuleBounds(per="args.customer", count=1))
    subjects = [
        share_of(bounded, call(customer={"ids": [2**53 + odd, True, "x"]}), 0.0).counter.subject for odd in (0, 1, 2)
    ]
    assert subjects[0] == subjects[1] != subjects[2]


def test_a_whole_number_beyond_doubles_is_undecided() -> None:
    with pytest.raises(Undecided, match="beyond those of a double"):
        share_of(rule(bounds=RuleBounds(per="args.customer", count=1)), call(customer=10**400), 0.0)


@given(st.binary(max_size=200))
def test_any_bytes_are_arguments_or_refused(data: bytes) -> None:
    with contextlib.suppress(Undecided):
        json.dumps(RuledCall("t", "t", "t", read_arguments(data)).values(), allow_nan=False)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (ToolRule("r", "a b", ALLOW), "tool"),
        (rule(when="used.count < 3"), "when"),
        (rule(DENY, bounds=RuleBounds(count=1)), "bounds"),
        (rule(bounds=RuleBounds(sum_of="amount")), "bounds.sum_of"),
        (rule(bounds=RuleBounds(limit="5")), "bounds.limit"),
        (rule(bounds=RuleBounds(sum_of="args.a", limit="five")), "bounds.limit"),
        (rule(bounds=RuleBounds(window_seconds=90.5)), "bounds.window"),
        (rule(bounds=RuleBounds(beyond=ALLOW)), "bounds.beyond"),
    ],
)
def test_a_wrong_rule_has_its_field_named(made: ToolRule, field: str) -> None:
    assert [name for name, _ in problems_of_rule(made)] == [field]


def test_calls_of_a_batch_see_those_before() -> None:
    counts = Counts[str]({})
    bounded = rule(bounds=RuleBounds(count=2))
    share = share_of(bounded, call(), 0.0)
    for index in range(3):
        found = RuleFinding(bounded, True, share=share, use=counts.use(share.counter))
        ruling = decide_call([found], is_approved=False)
        if ruling.outcome is None:
            counts.take(str(index), ruling.shares)
    assert [name for name, _ in counts.taken] == ["0", "1"]
