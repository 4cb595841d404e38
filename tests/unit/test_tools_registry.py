"""What is said about a call before anything runs; and that the database knows the same words as the rules."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from services.tools.builtin.definitions import define
from services.tools.registry import Registry
from services.tools.tool import Tool
from tenure.domain.token import Claims
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

ALL = Claims("tasks/t", "default", 1, "c", "w")
NONE = Claims("tasks/t", "default", 1, "c", "w", tools=())


async def never(_context, _arguments):
    raise AssertionError


def tool(name: str) -> Tool:
    count = {"count": {"type": "integer", "minimum": 0}, "items": {"type": "array", "items": {"type": "string"}}}
    return Tool(define(name, EffectClass.PURE, "d", count, required=("count",)), never)


REGISTRY = Registry([tool("b"), tool("a")])


def test_arguments_that_fit_are_handed_on():
    assert REGISTRY.judge(ALL, "a", '{"count": 2}') == {"count": 2}


def test_each_problem_is_told_with_its_place_and_none_at_length():
    judged = REGISTRY.judge(ALL, "a", '{"count": -1, "items": ["x", ' + ", ".join(["5"] * 20) + "]}")
    assert isinstance(judged, Outcome)
    assert judged.status is OutcomeStatus.INVALID_ARGUMENTS
    assert "count: -1 is less than the minimum of 0" in judged.content
    assert "items[1]: 5 is not of type 'string'" in judged.content
    assert judged.content.endswith("and more.")
    huge = REGISTRY.judge(ALL, "a", '{"count": "' + "x" * 100_000 + '"}')
    assert isinstance(huge, Outcome)
    assert len(huge.content) < 1000


def test_a_tool_that_is_not_allowed_is_told_apart_from_one_that_is_not_there():
    for claims, name, status in (
        (NONE, "a", "NOT_ALLOWED"),
        (NONE, "z", "INVALID_ARGUMENTS"),
        (ALL, "z", "INVALID_ARGUMENTS"),
    ):
        judged = REGISTRY.judge(claims, name, '{"count": 2}')
        assert isinstance(judged, Outcome)
        assert judged.status == status
    assert [definition.name for definition in REGISTRY.definitions(ALL)] == ["a", "b"]
    assert REGISTRY.definitions(NONE) == []


def test_names_that_are_allowed_in_vain_are_told():
    some = Claims("tasks/t", "default", 1, "c", "w", tools=("z", "a", "aa"))
    assert [definition.name for definition in REGISTRY.definitions(some)] == ["a"]
    assert REGISTRY.unknown_names(some) == ["aa", "z"]
    assert REGISTRY.unknown_names(ALL) == REGISTRY.unknown_names(NONE) == []


def test_two_tools_of_one_name_are_a_mistake():
    with pytest.raises(ValueError, match="two tools named a"):
        Registry([tool("a"), tool("a")])


def test_the_database_knows_the_states_and_classes_of_the_rules():
    sql = resources.files("services.tools").joinpath("sql/migrations/0001_calls.sql").read_text()
    for column, enum in (("state", CallState), ("effect_class", EffectClass)):
        listed = re.search(rf"check \({column} in \((.*?)\)\)", sql)
        assert listed is not None
        assert set(re.findall(r"'(\w+)'", listed[1])) == {member.value for member in enum}
