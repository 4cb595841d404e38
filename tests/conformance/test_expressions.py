"""Expressions and arguments of strangers: each evaluation ends in time, and the next one is right."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.domain.errors import Unavailable
from tenure.domain.tool_rules import RuledCall, Undecided
from tenure.runtime.evaluate_expressions import TOGETHER_TOO_SLOW
from tenure.runtime.expressions import TOO_LARGE, TOO_SLOW, Evaluation, Expressions

NOTHING: dict[str, Any] = {
    "args": {}, "labels": {}, "task": "", "agent": "", "tenant": "", "tool": "", "used.count": 0, "used.sum": 0.0,
}  # fmt: skip
SLOW = "args.l.all(x, args.s.matches('(a|b)*[0-9]') || args.s.matches('a*c[0-9]') || x >= 0)"
"""It reads a gigabyte."""
LONG = {"s": "a" * 60_000, "l": list(range(9000))}


@pytest.fixture
async def expressions() -> AsyncIterator[Expressions]:
    async with Expressions() as made:
        yield made


@pytest.mark.parametrize(
    "hostile",
    [
        "args.l.map(x, args.s + args.s + args.s + args.s).size() > 0",
        "args.l.all(x, args.l.all(y, x + y >= 0))",
        "args.l.all(x, args.s.matches('(a+)+b') || args.s.matches('(.*)*c') || args.s.contains('b'))",
        "args.s.matches('((a*)*)*b')",
        "args.l.all(x, args.l.all(y, args.l.all(z, args.s.matches('(x+x+)+y'))))",
        SLOW,
    ],
)
async def test_a_hostile_expression_ends(expressions: Expressions, hostile: str) -> None:
    [value] = await expressions.values([alone(hostile)], {**NOTHING, "args": LONG})
    assert value in (True, False, TOO_SLOW, TOO_LARGE) or "budget" in str(value)
    assert await expressions.values([alone("args.l.size() == 9000")], {**NOTHING, "args": LONG}) == [True]


async def test_the_first_expression_without_a_value_is_named(expressions: Expressions) -> None:
    """The others of the request are not at fault, and nothing is evaluated after it."""
    evaluations = [alone("true"), alone("used.count == 0"), alone(SLOW), alone("true"), alone(SLOW)]
    answers = await expressions.values(evaluations, {**NOTHING, "args": LONG})
    assert answers == [True, True, TOO_SLOW]
    value, problem = await expressions.values([alone("false"), alone("args.nope > 1"), alone("true")], NOTHING)
    assert (value, "nope" in str(problem)) == (False, True)


async def test_each_expression_has_its_own_time_and_all_have_a_limit(expressions: Expressions) -> None:
    """Each needs much less than its limit, some of them together more, and all together more than the limit for all."""
    some = alone("args.l.all(x, x >= 0)")
    values = {**NOTHING, "args": LONG}
    assert await expressions.values([some], values) == [True]
    *answers, last = await expressions.values([some] * 5000, values)
    assert (set(answers), last) == ({True}, TOGETHER_TOO_SLOW)
    assert len(answers) > 20


async def test_a_slow_request_delays_another_one_by_itself_only(expressions: Expressions) -> None:
    ended = list[str]()

    async def slow() -> None:
        for _ in range(3):
            await expressions.values([alone(SLOW)], {**NOTHING, "args": LONG})
            ended.append("slow")

    async with asyncio.TaskGroup() as group:
        group.create_task(slow())
        await asyncio.sleep(0)  # it is asked first
        assert await expressions.values([alone("true")], NOTHING) == [True]
        ended.append("other")
    assert ended == ["slow", "other", "slow", "slow"]


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_next_request_is_not_blamed_for_a_dead_child(
    expressions: Expressions, ending: signal.Signals
) -> None:
    assert await expressions.values([alone("true")], NOTHING) == [True]
    child = expressions._child
    assert child is not None
    child.send_signal(ending)
    await child.wait()
    assert await expressions.values([alone("true"), alone("false")], NOTHING) == [True, False]


class Ended(Expressions):
    """Each of its children gets a signal before it gets a request."""

    ending = signal.SIGTERM

    async def _begin(self) -> asyncio.subprocess.Process:
        child = await super()._begin()
        child.send_signal(self.ending)
        await child.wait()
        return child


async def test_a_request_is_not_blamed_for_a_signal_from_outside() -> None:
    async with Ended() as expressions:
        with pytest.raises(Unavailable) as refused:
            await expressions.values([alone("true")], NOTHING)
    assert refused.value.reason == "RULES_UNAVAILABLE"


async def test_a_request_that_breaks_a_new_child_is_at_fault() -> None:
    """The kernel kills what needs too much memory: a request that it kills twice would come again for ever."""
    async with Ended() as expressions:
        expressions.ending = signal.SIGKILL
        assert await expressions.values([alone("true")], NOTHING) == [TOO_LARGE]


@pytest.mark.fuzz
def test_expressions_read_each_text_as_the_tool_does() -> None:
    """Its equality with the same literal, and its size, or the call is undecided."""
    with asyncio.Runner() as runner:
        expressions = Expressions()
        odd = st.text(st.sampled_from("\0\ud800\udc00aé\u0301\ufeff\U0001f600'"), max_size=4)
        texts = odd | st.text(st.characters(exclude_categories=()), max_size=8)

        @settings(deadline=None)
        @given(text=texts, more=texts)
        @example(text="boss\0evil", more="boss")
        @example(text="\ud83d", more="")
        def holds(text: str, more: str) -> None:
            args = {"a": text, "l": [more, text], "m": {text: 1, more: 2}}
            call = RuledCall("t", text, "t", args, more, {text: more})
            try:
                values = {**NOTHING, **call.values()}
            except Undecided:
                assert any(ord(one) == 0 or 0xD800 <= ord(one) <= 0xDFFF for one in text + more)
                return
            first, second = literal(text), literal(more)
            laws = [
                f"args.a == {first} && size(args.a) == {len(text)}",
                f"(args.a == {second}) == {str(text == more).lower()}",
                f"args.l == [{second}, {first}] && {first} in args.l && {first} in args.m",
                f"args.m.size() == {len(args['m'])} && args.m[{second}] == 2",
                f"labels == {{{first}: {second}}} && task == {first} && agent == {second}",
                f"args.a.startsWith({first}) && args.a + args.l[0] == {literal(text + more)}",
            ]
            assert runner.run(expressions.values([alone(law) for law in laws], values)) == [True] * len(laws)

        holds()
        runner.run(expressions.__aexit__(None, None, None))


def alone(expression: str) -> Evaluation:
    return expression, {}


def literal(text: str) -> str:
    return "'" + "".join(f"\\U{ord(one):08x}" for one in text) + "'"


@pytest.mark.parametrize(
    "broken", ["(" * 900 + "true" + ")" * 900, "!" * 1999 + "true", "args" + ".a" * 900, "'\\u0000", "é", "true &&"]
)
async def test_a_broken_expression_has_a_problem(expressions: Expressions, broken: str) -> None:
    problem = await expressions.problem(broken)
    assert await expressions.problem("args.amount <= 50") == ""
    assert problem or broken.startswith(("!", "args"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.sampled_from(
    ["args.a", "args['a']", "args.b.c", "labels.x", "used.count", "1", "2.5", "'s'", "true", "null", "[1, 2]", "task"]
)
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", "&&", "||", "+", "in", "*"])


@st.composite
def written(draw: st.DrawFn) -> str:
    parts = [draw(PARTS)]
    for _ in range(draw(st.integers(0, 5))):
        parts += [draw(OPERATORS), draw(PARTS)]
    text = " ".join(parts)
    return draw(st.sampled_from(["{}", "!({})", "size(args.a) > 0 || {}", "args.a.exists(x, x == {})"])).format(text)


@pytest.mark.fuzz
def test_generated_expressions_give_a_value_or_a_reason() -> None:
    with asyncio.Runner() as runner:
        expressions = Expressions()

        @settings(deadline=None)
        @given(expression=written(), arguments=st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
        def holds(expression: str, arguments: dict[str, Any]) -> None:
            values = {**NOTHING, "args": arguments}
            problem = runner.run(expressions.problem(expression))
            first, again = [runner.run(expressions.values([alone(expression)], values)) for _ in range(2)]
            assert first == again
            assert isinstance(first[0], bool) != bool(problem) or first[0]

        holds()
        runner.run(expressions.__aexit__(None, None, None))
