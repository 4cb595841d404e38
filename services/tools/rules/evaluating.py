"""Judges one call by rules: what can be evaluated before the counters are locked, and the rest under their locks.

The first rule that cannot be decided ends it: it denies the call, whatever the others say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenure.domain.call_plans import finding_of, share_of_plan
from tenure.domain.tool_rules import (
    Counter,
    Counts,
    RuledCall,
    RuleFinding,
    RuleVerdict,
    Ruling,
    ToolRule,
    Undecided,
    Use,
    decide_call,
    share_of,
)
from tenure.domain.tools import PlannedCalls
from tenure.runtime.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say about a call, before what they have counted is known.

    `open_findings`: the rules whose expressions read `used`; they are evaluated by `decide`. `ask_reason`: why a
    person is asked whatever the rules say. `plans`: those that apply to the call.
    """

    expressions: Expressions
    values: Mapping[str, Any]
    findings: Sequence[RuleFinding]
    open_findings: Sequence[RuleFinding] = ()
    ask_reason: str = ""
    plans: Sequence[RuleFinding] = ()

    @property
    def counters(self) -> list[Counter]:
        """The counters that `decide` reads."""
        findings = (*self.findings, *self.open_findings, *self.plans)
        return [each.share.counter for each in findings if each.share is not None]

    @property
    def may_ask(self) -> bool:
        """Whether the decision may be to ask a person, so that plans matter."""
        rules = [each.rule for each in (*self.findings, *self.open_findings)]
        asking = (rule.verdict is RuleVerdict.ASK or _asks_beyond(rule) for rule in rules)
        return bool(self.ask_reason) or any(asking)

    async def decide(self, counts: Counts[Any], *, is_approved: bool) -> Ruling:
        """Returns the decision. The caller holds the locks of the counters. Raises Unavailable."""
        findings = [_with_use(each, counts) for each in self.findings]
        if not any(each.problem for each in findings):
            later = [_with_use(each, counts) for each in self.open_findings]
            evaluations = [(each.rule.when, _used(each.use)) for each in later]
            answers = await self.expressions.values(evaluations, self.values)
            findings += [_evaluated(each, answer) for each, answer in zip(later, answers, strict=False)]
        plans = [_with_use(each, counts) for each in self.plans]
        findings.sort(key=lambda each: each.rule.name)
        return decide_call(findings, is_approved=is_approved, ask_reason=self.ask_reason, plans=plans)


async def judge(
    expressions: Expressions,
    rules: Sequence[ToolRule],
    called: Callable[[], RuledCall],
    now: float,
) -> Judgement:
    """Judges a call by the rules that fit it. `called`: reads the call, or raises Undecided. `now`: Unix time.

    Raises Unavailable when the machine is too busy to evaluate an expression.
    """
    if not rules:
        return Judgement(expressions, {}, [])
    try:
        call = called()
        values = call.values() if any(rule.when for rule in rules) else {}
    except Undecided as why:
        return Judgement(expressions, {}, [RuleFinding(rule, applies=False, problem=str(why)) for rule in rules])
    at_once = [rule for rule in rules if rule.when and not rule.reads_used]
    answers = await expressions.values([(rule.when, _used(Use())) for rule in at_once], values)
    if answers and isinstance(answers[-1], str):
        undecided = RuleFinding(at_once[len(answers) - 1], applies=False, problem=answers[-1])
        return Judgement(expressions, {}, [undecided])
    by_name = {rule.name: answer for rule, answer in zip(at_once, answers, strict=True)}
    findings, later = list[RuleFinding](), list[RuleFinding]()
    for rule in rules:
        finding = RuleFinding(rule, applies=by_name.get(rule.name, True) is True)
        if rule.bounds is not None and (finding.applies or rule.reads_used):
            finding = _with_share(finding, call, now)
        (later if rule.reads_used and not finding.problem else findings).append(finding)
    return Judgement(expressions, values, findings, later)


def _asks_beyond(rule: ToolRule) -> bool:
    return rule.bounds is not None and rule.bounds.beyond is RuleVerdict.ASK


async def judge_plans(
    expressions: Expressions, plans: Sequence[PlannedCalls], called: Callable[[], RuledCall], now: float
) -> list[RuleFinding]:
    """Returns the findings of the plans that apply to a call; an undecided one does not. Raises Unavailable."""
    findings = []
    for plan in plans:
        try:
            call = called()
            share = share_of_plan(plan, call, now)
            values = call.values() if plan.when else {}
        except Undecided:
            continue
        if share is None:
            continue
        if not plan.when or await expressions.values([(plan.when, _used(Use()))], values) == [True]:
            findings.append(finding_of(plan, share))
    return findings


def _used(use: Use) -> dict[str, Any]:
    return {"used.count": use.calls, "used.sum": float(use.total)}


def _with_share(finding: RuleFinding, call: RuledCall, now: float) -> RuleFinding:
    try:
        return replace(finding, share=share_of(finding.rule, call, now))
    except Undecided as why:
        return replace(finding, applies=False, problem=str(why))


def _with_use(finding: RuleFinding, counts: Counts[Any]) -> RuleFinding:
    use = Use() if finding.share is None else counts.use(finding.share.counter)
    return replace(finding, use=use)


def _evaluated(finding: RuleFinding, value: bool | str) -> RuleFinding:
    """Returns the finding with the value of its expression. A rule that does not apply takes no share."""
    return replace(finding, applies=value is True, problem="" if isinstance(value, bool) else value)
