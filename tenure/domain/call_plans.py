"""Decides calls by plans: later calls that a person approves at once, by tool, arguments, number, sum and time.

A plan permits a call that needs an approval, and nothing that a rule denies. It is a rule with an exact bound whose
counter belongs to this plan only: the first write of a call counts it, as tenure/domain/tool_rules.py says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, floor
from typing import Any, Final

from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.tool_rules import (
    BoundShare,
    Counter,
    RuleBounds,
    RuledCall,
    RuleFinding,
    RuleVerdict,
    ToolRule,
    Undecided,
    Use,
    amount_of,
    as_received,
    problems_of_rule,
    read_arguments,
)
from tenure.domain.tools import PlannedCalls

MAX_PLANS: Final = 8
"""In force for a task's tree at a time: each token of the tree has all of them."""
MAX_PLANNED_CALLS: Final = 10_000
MAX_VALUE_BYTES: Final = 2000
DEFAULT_PLAN_SECONDS: Final = 24 * 3600
MAX_PLAN_SECONDS: Final = 30 * 24 * 3600
_PREFIX: Final = "plan:"
"""Of the names of counters: no name of a rule has a colon."""


def rule_of(plan: PlannedCalls) -> ToolRule:
    """Returns the plan as a rule that allows its calls."""
    bounds = RuleBounds(plan.count, plan.sum_of, plan.limit)
    return ToolRule(f"{_PREFIX}{plan.plan_id}", plan.tool or "*", RuleVerdict.ALLOW, when=plan.when, bounds=bounds)


def plan_id_of(rule: str) -> str:
    """Returns the id of the plan that is the rule of this name."""
    return rule.removeprefix(_PREFIX)


def counter_of(plan: PlannedCalls, tenant: str) -> Counter:
    """Returns the counter that belongs to the plan."""
    return Counter(tenant, rule_of(plan).name, b"", plan.end_time - plan.approve_time, plan.approve_time)


def left_of_plan(plan: PlannedCalls, use: Use, now: float) -> tuple[int, str]:
    """Returns how many calls the plan may still count, and what is left of its limit; "": it has none.

    `now`: Unix time.
    """
    if use.ended or now >= plan.end_time:
        return 0, "0" if plan.limit else ""
    return max(plan.count - use.calls, 0), f"{use.left_of(plan.limit):f}" if plan.limit else ""


def share_of_plan(plan: PlannedCalls, call: RuledCall, now: float) -> BoundShare | None:
    """Returns what the call would take of the plan; None: the plan is not about the call, or is over.

    `now`: Unix time. Raises Undecided. The expression of the plan is not evaluated here.
    """
    if call.tool != plan.tool or now >= plan.end_time:
        return None
    if any(_value_text(call.at(path)) != value for path, value in zip(plan.same, plan.same_values, strict=True)):
        return None
    return BoundShare(counter_of(plan, call.tenant), amount_of(call.at(plan.sum_of)) if plan.sum_of else amount_of(0))


def finding_of(plan: PlannedCalls, share: BoundShare) -> RuleFinding:
    """Returns the finding of a plan whose expression is true for the call."""
    return RuleFinding(rule_of(plan), applies=True, share=share)


def problems_of_plan(plan: PlannedCalls) -> Iterable[tuple[str, str]]:
    """Yields each wrong field and its problem. The expression is not compiled."""
    if not 1 <= plan.count <= MAX_PLANNED_CALLS:
        yield "count", f"must be 1 to {MAX_PLANNED_CALLS:,}"
    if plan.same_values or plan.plan_id or plan.approved_by or plan.approve_time:
        yield "plan_id", "and approved_by, approve_time and same_values must be unset: the ledger sets them"
    if plan.sum_of and not plan.limit:
        yield "limit", "must be set with sum_of"
    rule = rule_of(plan)
    for name, why in problems_of_rule(rule):
        yield name.removeprefix("bounds."), why
    for index, path in enumerate(plan.same):
        if not path.startswith("args.") or any(problems_of_rule(replace(rule, bounds=RuleBounds(per=path)))):
            yield f"same[{index}]", "must be the path of an argument, such as args.customer"
    if rule.reads_used:
        yield "when", "must not read used: count and limit are exact"


def approve(plan: PlannedCalls, allowed: Sequence[tuple[str, str]], plan_id: str, by: str, now: float) -> PlannedCalls:
    """Returns the plan as a person approved it. `allowed`: tool and arguments of each call that the answer allows.

    `now`: Unix time. Raises InvalidRequest, and WrongState (NO_SAME_VALUE) if the call has no value to compare with.
    """
    problems = [(f"plan.{name}", why) for name, why in problems_of_plan(plan)]
    begins_at, lasts = floor(now), ceil(plan.lasts_seconds) or DEFAULT_PLAN_SECONDS
    ends_at = ceil(plan.end_time) or begins_at + lasts
    if not 1 <= ends_at - begins_at <= MAX_PLAN_SECONDS:
        problems.append(("plan.end_time", "must be in the future, and within 30 days"))
    if not allowed:
        problems.append(
            ("plan", "needs an answer that allows a tool call, or its tool and an approval of the agent's request")
        )
    if problems:
        raise InvalidRequest(violations=problems)
    tool, arguments_json = next((call for call in allowed if call[0] == plan.tool), allowed[0])
    try:
        call = RuledCall("", "", tool, read_arguments(arguments_json.encode()) if plan.same else {})
        values = tuple(_short(_value_text(call.at(path)), path) for path in plan.same)
    except Undecided as why:
        raise WrongState(f"the plan cannot compare its calls with this one: {why}", reason="NO_SAME_VALUE") from why
    return replace(
        plan,
        plan_id=plan_id,
        tool=plan.tool or tool,
        end_time=float(ends_at),
        lasts_seconds=0.0,
        same_values=values,
        approved_by=by,
        approve_time=float(begins_at),
    )


def _short(value: str, path: str) -> str:
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise Undecided(f"the value at {path} has more than {MAX_VALUE_BYTES:,} bytes")
    return value


def _value_text(value: Any) -> str:
    """Returns a value as a text in which equal values of JSON are equal: 7, 7.0 and 7.00 are.

    Two whole numbers are two values, also if they are one double: most tools receive them exactly, and a person allowed
    one of them.
    """
    return json.dumps(value, sort_keys=True, default=as_received)
