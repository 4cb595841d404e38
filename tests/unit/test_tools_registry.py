"""What is said about a call before anything runs; and that the database knows the same words as the rules."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from services.tools.own_tools import check_own_call
from services.tools.registry import LIST_PATIENCE_SECONDS, PATIENCE_SECONDS, ToolRegistry
from services.tools.tool import Tool, define
from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

ALL = Claims("tasks/t", "default", 1, "c", "w")
NONE = Claims("tasks/t", "default", 1, "c", "w", tools=())


async def never(_context: Any, _arguments: Any) -> Any:
    raise AssertionError


def tool(name: str) -> Tool:
    count = {"count": {"type": "integer", "minimum": 0}, "items": {"type": "array", "items": {"type": "string"}}}
    return Tool(define(name, EffectClass.PURE, "d", count, required=("count",)), never)


REGISTRY = ToolRegistry([tool("b"), tool("a")])


def test_arguments_that_fit_are_handed_on() -> None:
    assert REGISTRY.check_call(ALL, "a", '{"count": 2}') == {"count": 2}


def test_each_problem_has_its_path_and_a_bound() -> None:
    checked = REGISTRY.check_call(ALL, "a", '{"count": -1, "items": ["x", ' + ", ".join(["5"] * 20) + "]}")
    assert isinstance(checked, Outcome)
    assert checked.status is OutcomeStatus.INVALID_ARGUMENTS
    assert "count: -1 is less than the minimum of 0" in checked.content
    assert "items[1]: 5 is not of type 'string'" in checked.content
    assert checked.content.endswith("and more.")
    huge = REGISTRY.check_call(ALL, "a", '{"count": "' + "x" * 100_000 + '"}')
    assert isinstance(huge, Outcome)
    assert len(huge.content) < 1000


def test_a_forbidden_tool_differs_from_a_missing_one() -> None:
    for claims, name, status in (
        (NONE, "a", "NOT_ALLOWED"),
        (NONE, "z", "INVALID_ARGUMENTS"),
        (ALL, "z", "INVALID_ARGUMENTS"),
    ):
        checked = REGISTRY.check_call(claims, name, '{"count": 2}')
        assert isinstance(checked, Outcome)
        assert checked.status == status
    assert [definition.name for definition in REGISTRY.definitions(ALL)] == ["a", "b"]
    assert REGISTRY.definitions(NONE) == []


def test_unknown_allowed_names_are_reported() -> None:
    some = Claims("tasks/t", "default", 1, "c", "w", tools=("z", "a", "aa"))
    assert [definition.name for definition in REGISTRY.definitions(some)] == ["a"]
    assert REGISTRY.unknown_names(some) == ["aa", "z"]
    assert REGISTRY.unknown_names(ALL) == REGISTRY.unknown_names(NONE) == []


def test_two_tools_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two tools of this name"):
        ToolRegistry([tool("a"), tool("a")])


def test_the_database_knows_the_states_and_classes_of_the_rules() -> None:
    sql = resources.files("services.tools").joinpath("sql/migrations/0001_calls.sql").read_text()
    for column, enum in (("state", CallState), ("effect_class", EffectClass)):
        listed = re.search(rf"check \({column} in \((.*?)\)\)", sql)
        assert listed is not None
        assert set(re.findall(r"'(\w+)'", listed[1])) == {member.value for member in enum}


def put_names(registry: ToolRegistry) -> list[str]:
    return [definition.name for definition in registry.definitions(ALL)]


def test_a_source_replaces_its_own_tools_and_no_others() -> None:
    registry = ToolRegistry([tool("a")])
    assert registry.put("s", [tool("s__x"), tool("s__y")]) == []
    kept = registry.find("s__x")
    assert registry.put("s", [tool("s__y"), tool("s__z"), tool("a")]) == [
        "a: there are two tools of this name, the other is built-in"
    ]
    assert put_names(registry) == ["a", "s__y", "s__z"]
    assert kept is not None
    assert registry.find("s__x") is None
    assert registry.put("s", []) == []
    assert put_names(registry) == ["a"]


def test_a_tool_with_an_unusable_schema_is_left_out() -> None:
    bad = Tool(replace(tool("s__bad").definition, input_schema_json='{"$ref": "http://127.0.0.1:1/"}'), never)
    registry = ToolRegistry([])
    assert registry.put("s", [bad, tool("s__good")]) == [
        "s__bad: its schema refers to another document: http://127.0.0.1:1/"
    ]
    assert put_names(registry) == ["s__good"]


def test_a_call_of_an_unreached_source_is_deferred() -> None:
    now = 100.0
    registry = ToolRegistry([], clock=lambda: now)
    registry.expect("s")
    with pytest.raises(Unavailable):
        registry.check_call(ALL, "s__x", "{}")
    assert isinstance(registry.check_call(ALL, "t__x", "{}"), Outcome)
    now += PATIENCE_SECONDS
    checked = registry.check_call(ALL, "s__x", "{}")
    assert isinstance(checked, Outcome)
    assert (checked.status, checked.detail) == (OutcomeStatus.FAILED, "UNREACHABLE")
    registry.put("s", [tool("s__x")])
    assert registry.check_call(ALL, "s__x", '{"count": 1}') == {"count": 1}
    checked = registry.check_call(ALL, "s__y", "{}")
    assert isinstance(checked, Outcome)
    assert checked.status is OutcomeStatus.INVALID_ARGUMENTS


def test_tools_of_some_tenants_do_not_exist_for_others() -> None:
    registry = ToolRegistry([tool("a")])
    acme = replace(ALL, tenant="acme", tools=("s__x",))
    other = replace(acme, tenant="other")
    registry.expect("s", frozenset({"acme"}))
    with pytest.raises(Unavailable):
        registry.check_call(acme, "s__x", "{}")
    unknown = registry.check_call(other, "s__x", "{}")
    assert isinstance(unknown, Outcome)
    assert unknown.status is OutcomeStatus.INVALID_ARGUMENTS
    registry.put("s", [tool("s__x")], frozenset({"acme"}))
    assert [definition.name for definition in registry.definitions(acme)] == ["s__x"]
    assert (registry.definitions(other), registry.unknown_names(other)) == ([], ["s__x"])
    assert registry.check_call(acme, "s__x", '{"count": 1}') == {"count": 1}
    assert registry.check_call(other, "s__x", '{"count": 1}') == unknown
    assert registry.put("other", [tool("s__x")]) == ["s__x: there are two tools of this name"]


async def test_a_list_waits_briefly_for_an_expected_source() -> None:
    now = [0.0]
    registry = ToolRegistry([tool("a")], clock=lambda: now[0])
    registry.expect("late")
    waiting = asyncio.create_task(registry.wait_for_expected(ALL))
    for claims in (NONE, replace(ALL, tools=("a", "other__x"))):
        await registry.wait_for_expected(claims)  # nothing of it is theirs
    assert not waiting.done()
    assert registry.put("late", [tool("late__x")]) == []
    await waiting
    registry.expect("never")
    now[0] = LIST_PATIENCE_SECONDS
    await registry.wait_for_expected(ALL)


async def test_a_tenants_list_waits_for_the_tenants_sources() -> None:
    registry = ToolRegistry([tool("a")])
    registry.expect("late", frozenset({"acme"}))
    await registry.wait_for_all_expected("other")
    waiting = asyncio.create_task(registry.wait_for_all_expected("acme"))
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.put("late", [tool("late__x")], frozenset({"acme"}))
    await waiting
    assert [(one.name, source) for one, source in registry.offered("acme")] == [("a", "built-in"), ("late__x", "late")]
    assert [one.name for one, _ in registry.offered("other")] == ["a"]


def test_sources_have_room_for_so_many_characters_and_no_more() -> None:
    def wide(name: str) -> Tool:
        return Tool(replace(tool(name).definition, description="d" * (200 * 1024)), never)

    registry = ToolRegistry([tool("a")])
    assert registry.put("s0", [wide("s0__x"), wide("s0__y"), tool("s0__z")]) == [
        "s0__y: its source's tools have more than 262144 characters together"
    ]
    seen = [registry.put(f"s{n}", [wide(f"s{n}__x")]) for n in range(1, 6)]
    assert seen == [[], [], [], [], ["s5__x: all tools have more than 1048576 characters together"]]
    narrow = [Tool(replace(tool(f"s6__{n}").definition, description="d" * (16 * 1024)), never) for n in range(2)]
    assert registry.put("s6", narrow) == ["s6__1: all tools have more than 1048576 characters together"]
    assert registry.put("s0", []) == []
    assert registry.put("s5", [wide("s5__x")]) == []


def test_ours_may_be_as_long_as_they_are() -> None:
    wide = [Tool(replace(tool(name).definition, description="d" * (200 * 1024)), never) for name in ("a", "b")]
    assert ToolRegistry(wide).find("b") is wide[1]


def test_a_source_s_patterns_are_not_matched_and_ours_are() -> None:
    def patterned(name: str) -> Tool:
        schema = '{"type": "object", "properties": {"a": {"pattern": "^b$"}}}'
        return Tool(replace(tool(name).definition, input_schema_json=schema), never)

    registry = ToolRegistry([patterned("a")])
    assert registry.put("s", [patterned("s__a")]) == []
    assert registry.check_call(ALL, "s__a", '{"a": "x"}') == {"a": "x"}
    assert isinstance(registry.check_call(ALL, "a", '{"a": "x"}'), Outcome)


def test_an_own_tool_that_no_model_can_read_is_refused() -> None:
    claims = Claims("tasks/t", "acme", 1, "c", "w")
    definition = replace(tool("own").definition, input_schema_json='{"type": "object", "maxProperties": NaN}')
    with pytest.raises(InvalidRequest) as refusal:
        check_own_call(ToolRegistry([]), claims, definition, "{}")
    assert "NaN is not a JSON number" in str(refusal.value)
