"""How often a call's rules are evaluated: once before the counters are locked, once under their locks, or less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.tools.rules.evaluating import judge
from tenure.domain.tool_rules import Counts, RuleBounds, RuledCall, RuleVerdict, ToolRule, Undecided
from tenure.runtime.expressions import Evaluation, Expressions

ALLOW, _, DENY = RuleVerdict


class Recorded(Expressions):
    """Answers as `answers` says, up to the first text."""

    def __init__(self, answers: Mapping[str, bool | str]) -> None:
        super().__init__()
        self.answers, self.requests = answers, list[list[Evaluation]]()

    async def values(self, evaluations: Sequence[Evaluation], _values: Mapping[str, Any]) -> list[bool | str]:
        if evaluations:
            self.requests.append(list(evaluations))
        values: list[bool | str] = []
        for expression, _ in evaluations:
            values.append(self.answers.get(expression, True))
            if isinstance(values[-1], str):
                break
        return values


def rules(*expressions: str) -> list[ToolRule]:
    bounds = RuleBounds(count=5)
    return [ToolRule(f"r{place}", "refund", ALLOW, when=when, bounds=bounds) for place, when in enumerate(expressions)]


async def decided(expressions: Recorded, made: Sequence[ToolRule]) -> tuple[str, str]:
    judgement = await judge(expressions, made, lambda: RuledCall("t", "t", "refund", {}), 0.0)
    ruling = await judgement.decide(Counts[str]({}), is_approved=False)
    return ruling.verdict, ruling.outcome.content if ruling.outcome else ""


async def test_all_expressions_of_a_call_need_two_requests() -> None:
    expressions = Recorded({})
    made = rules("a", "used.count < 1", "b", "used.count < 2", "used.count < 3")
    assert await decided(expressions, made) == (ALLOW, "")
    assert [[when for when, _ in evaluations] for evaluations in expressions.requests] == [
        ["a", "b"],
        ["used.count < 1", "used.count < 2", "used.count < 3"],
    ]
    assert {tuple(used.items()) for evaluations in expressions.requests for _, used in evaluations} == {
        (("used.count", 0), ("used.sum", 0.0))
    }


async def test_the_first_rule_without_a_value_ends_the_decision() -> None:
    early = Recorded({"b": "it is broken"})
    verdict, content = await decided(early, rules("a", "used.count < 1", "b", "c"))
    assert (verdict, len(early.requests)) == (DENY, 1)
    assert "The rule r2 cannot be decided for this call: it is broken." in content
    late = Recorded({"used.count < 2": "it is slow"})
    verdict, content = await decided(late, rules("a", "used.count < 1", "used.count < 2", "used.count < 3"))
    assert (verdict, len(late.requests)) == (DENY, 2)
    assert "The rule r2 cannot be decided for this call: it is slow." in content


async def test_a_call_that_cannot_be_read_needs_no_request() -> None:
    def called() -> RuledCall:
        raise Undecided("it is unclear")

    expressions = Recorded({})
    judgement = await judge(expressions, rules("a", "used.count < 1"), called, 0.0)
    assert (await judgement.decide(Counts[str]({}), is_approved=True)).verdict is DENY
    assert expressions.requests == []
