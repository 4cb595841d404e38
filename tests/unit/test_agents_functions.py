"""What a worker takes as agents and functions, and what it refuses with a reason."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from services.worker.agents import definitions_of
from services.worker.control.functions import load_functions
from services.worker.main import OwnFunctionsSettings
from tenure.agents import Agent, DurableFunction, Effect, Work, Worker, compensate_with, function
from tenure.agents.functions import function_table, undo_tools_of
from tenure.control import OwnTool
from tenure.control.own_tools import runs_nowhere
from tenure.runtime.settings import ConfigurationError, load
from tests.support.journal_work import JournalWork


@function
async def first(work: Work, given: int) -> str:
    return f"{work.goal}{given + 1}"


@function(name="renamed")
async def second(work: Work) -> None:
    await work.step("note", lambda: None)


def module(monkeypatch: pytest.MonkeyPatch, functions: Any) -> str:
    made = ModuleType("own_functions")
    vars(made)["FUNCTIONS"] = functions
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made.__name__


async def test_a_module_may_have_a_list_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = load_functions([module(monkeypatch, [first, second])])
    assert list(functions) == ["first", "renamed"]
    assert await functions["first"](JournalWork("goal "), 1) == "goal 2"
    assert await functions["renamed"](JournalWork(), None) is None


def test_functions_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="first"):
        load_functions([module(monkeypatch, [first])], {"first": first.run})


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ([print], "neither a durable agent nor a durable function"),
        ([first, first], "two agents or functions are named first"),
        ([DurableFunction("no spaces", first.run)], "'no spaces' is not a name"),
        ([], "has no FUNCTIONS"),
    ],
)
def test_other_objects_are_refused(monkeypatch: pytest.MonkeyPatch, functions: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        load_functions([module(monkeypatch, functions)])


def test_a_worker_needs_something_to_run() -> None:
    with pytest.raises(ValueError):
        Worker([])
    assert list(Worker([first]).functions) == ["first"]


def test_a_function_of_another_shape_is_refused() -> None:
    with pytest.raises(TypeError, match="coroutine"):
        function(lambda work: work)
    with pytest.raises(TypeError, match="input"):

        @function
        async def three(work: Work, one: int, two: int) -> None: ...


def test_a_worker_of_a_program_needs_no_modules() -> None:
    assert load(OwnFunctionsSettings, {}, prefix="TENURE_WORKER_").loops == ("control",)
    with pytest.raises(ConfigurationError, match="control"):
        load(OwnFunctionsSettings, {"TENURE_WORKER_LOOPS": "messages"}, prefix="TENURE_WORKER_")


def test_a_worker_with_a_record_takes_the_replay_only() -> None:
    """Whatever it has: any other task would be answered from the record. It needs no key for code."""
    given = {"TENURE_WORKER_LOOPS": "replay", "TENURE_WORKER_RECORDED_CALLS_FILE": "entries"}
    settings = load(OwnFunctionsSettings, given, prefix="TENURE_WORKER_")
    assert settings.identity(1, {"first": "digest"}, b"secret").loops == ("replay",)


def test_undo_tools_of_a_function_are_also_those_of_its_agents() -> None:
    """A worker offers undos only of functions that have such tools."""
    clerk = Agent("clerk")

    @clerk.tool_plain(effect=Effect.KEYED)
    async def release() -> None: ...

    @clerk.tool_plain(effect=Effect.KEYED, compensation=compensate_with(release, {}))
    async def book() -> None: ...

    own = OwnTool(name="cancel", description="", input_schema={}, effect=Effect.KEYED, run=runs_nowhere)

    @function(undo_tools=[own, clerk])
    async def shopping(work: Work) -> None: ...

    @function
    async def looking(work: Work) -> None: ...

    table = function_table([shopping, looking])
    assert {name: [tool.name for tool in undo_tools_of(run)] for name, run in table.items()} == {
        "shopping": ["cancel", "release"],
        "looking": [],
    }
    settings = load(OwnFunctionsSettings, {}, prefix="TENURE_WORKER_")
    loops = settings.identity(1, dict.fromkeys(table, ""), b"", undoing=["shopping"]).loops
    assert [loop for loop in loops if "undo" in loop] == ["tenure.undo", "undo.shopping"]


def test_two_undo_tools_of_one_name_are_refused() -> None:
    """An undo knows the tool of a compensation by its name: it would release the other one's room."""

    def clerk(name: str) -> Agent:
        made = Agent(name)

        @made.tool_plain(effect=Effect.KEYED)
        async def release() -> None: ...

        @made.tool_plain(effect=Effect.KEYED, compensation=compensate_with(release, {}))
        async def book() -> None: ...

        return made

    @function(undo_tools=[clerk("north"), clerk("south")])
    async def shopping(work: Work) -> None: ...

    with pytest.raises(ConfigurationError, match="shopping has two tools release"):
        definitions_of(function_table([shopping]), "")


def test_compensation_with_other_arguments_is_refused() -> None:
    schema = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    own = OwnTool(name="cancel", description="", input_schema=schema, effect=Effect.KEYED, run=runs_nowhere)
    assert compensate_with(own, {"order": "/outcome/id"}).tool == "cancel"
    with pytest.raises(ValueError, match="cancel requires order"):
        compensate_with(own, {"id": "/outcome/id"})
