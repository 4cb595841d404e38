"""Expressions and arguments of strangers: each evaluation ends in time, and the next one is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.runtime.expressions import TOO_LARGE, TOO_SLOW, Expressions

NOTHING: dict[str, Any] = {
    "args": {}, "labels": {}, "task": "", "agent": "", "tenant": "", "tool": "", "used.count": 0, "used.sum": 0.0,
}  # fmt: skip
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
    ],
)
async def test_a_hostile_expression_ends(expressions: Expressions, hostile: str) -> None:
    [value] = await expressions.values([hostile], {**NOTHING, "args": LONG})
    assert value in (True, False, TOO_SLOW, TOO_LARGE) or "budget" in str(value)
    assert await expressions.values(["args.l.size() == 9000"], {**NOTHING, "args": LONG}) == [True]


@pytest.mark.parametrize(
    "broken", ["(" * 900 + "true" + ")" * 900, "!" * 1999 + "true", "args" + ".a" * 900, "'\\u0000", "é", "true &&"]
)
async def test_a_broken_expression_has_a_problem(expressions: Expressions, broken: str) -> None:
    problem, fine = await expressions.problems([broken, "args.amount <= 50"])
    assert fine == ""
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
            [problem] = runner.run(expressions.problems([expression]))
            first, again = [runner.run(expressions.values([expression], values)) for _ in range(2)]
            assert first == again
            assert isinstance(first[0], bool) != bool(problem) or first[0]

        holds()
        runner.run(expressions.__aexit__(None, None, None))
