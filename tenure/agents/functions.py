"""Durable functions in Python: the decorator `@function`, and the named functions that a worker runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, Protocol, get_type_hints, overload, runtime_checkable

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode

from tenure.agents.execution import executing
from tenure.agents.own_calls import check_finite
from tenure.agents.undo_tools import two_tools_of
from tenure.control.own_tools import OwnTool
from tenure.control.work import Function, Work
from tenure.domain.agents import AgentContent, AgentKind

MAX_PROBLEM_CHARACTERS: Final = 1000
_CONTENT: Final = "_tenure_content"
"""The attribute of a function in a worker's table that describes it: the table has functions of users, too."""
_PREPARE: Final = "_tenure_prepare"
_UNDO_TOOLS: Final = "_tenure_undo_tools"
UndoTools = Callable[[Any], Sequence[OwnTool]]
"""Returns the own tools by which effects of a task are undone, for the input of the task."""


class InputMismatch(ValueError):  # noqa: N818  the name says what is wrong
    """The task's input does not fit the function. Another attempt would get the same input."""

    retryable = False


@dataclass(frozen=True, slots=True)
class DurableFunction:
    """A function under the name by which tasks ask for it: `tenure submit --function NAME`, or `--agent NAME`.

    `describe`: returns what its revisions fix besides the code, see docs/versions.md; None: nothing else. `prepare`:
    does what its first run would wait for, before its worker takes tasks. `undo_tools`: returns the own tools that
    undos of its tasks may call; None: there are none.
    """

    name: str
    run: Function
    describe: Callable[[], AgentContent] | None = None
    prepare: Callable[[], None] | None = None
    undo_tools: UndoTools | None = None


@runtime_checkable
class HasDurableFunction(Protocol):
    """An agent that a worker can run as a task."""

    @property
    def durable_function(self) -> DurableFunction: ...


UndoTool = OwnTool | HasDurableFunction | DurableFunction
"""An own tool that undoes effects, or an agent whose tools do."""


def function_table(items: Iterable[Any]) -> dict[str, Function]:
    """Returns the functions of agents and functions by name. Raises TypeError and ValueError for other items."""
    table: dict[str, Function] = {}
    for item in items:
        named = item.durable_function if isinstance(item, HasDurableFunction) else item
        if not isinstance(named, DurableFunction):
            raise TypeError(
                f"{item!r} is neither a durable agent nor a durable function: decorate a function with @function, "
                "and pass an agent of another library through durable(agent)"
            )
        if named.name in table:
            raise ValueError(f"two agents or functions are named {named.name}: tasks find them by their names")
        if named.describe is not None:
            vars(named.run)[_CONTENT] = named.describe
        if named.prepare is not None:
            vars(named.run)[_PREPARE] = named.prepare
        if named.undo_tools is not None:
            vars(named.run)[_UNDO_TOOLS] = named.undo_tools
        table[named.name] = named.run
    return table


def content_of(run: Function) -> AgentContent | None:
    """Returns the content of a function's revisions besides its code; None: it describes none."""
    describe: Callable[[], AgentContent] | None = vars(run).get(_CONTENT)
    return None if describe is None else describe()


def undo_tools_of(run: Function, given: Any = None) -> Sequence[OwnTool]:
    """Returns the own tools by which effects of the function's tasks are undone. `given`: the input of such a task."""
    make: UndoTools | None = vars(run).get(_UNDO_TOOLS)
    return () if make is None else make(given)


def prepare(run: Function) -> None:
    """Does what the first run of a function would wait for."""
    preparing: Callable[[], None] | None = vars(run).get(_PREPARE)
    if preparing is not None:
        preparing()


Body = Callable[..., Awaitable[Any]]


@overload
def function(body: Body, /) -> DurableFunction: ...


@overload
def function(
    *, name: str = "", version: str = "", undo_tools: Sequence[UndoTool] = ()
) -> Callable[[Body], DurableFunction]: ...


def function(
    body: Body | None = None, /, *, name: str = "", version: str = "", undo_tools: Sequence[UndoTool] = ()
) -> DurableFunction | Callable[[Body], DurableFunction]:
    """Makes a coroutine function durable: `async def month_end(work: Work, order: Order) -> Receipt`.

    The parameter after the work, if there is one, is the task's input, validated by its annotation. What the function
    returns is the task's result, written as its annotation says. Its model calls and tools are recorded by `work`, and
    so are those of durable agents that it runs. version: of the code; tasks of one version may go on under any build
    that has it (docs/versions.md). undo_tools: the own tools with which compensations of its tools are made,
    and the agents that it runs, for theirs (docs/undo.md). Raises TypeError for a function of another shape.
    """
    tools = tuple(undo_tools)
    if body is None:
        return lambda decorated: _durable(decorated, name or decorated.__name__, version, tools)
    return _durable(body, name or body.__name__, version, tools)


def _durable(body: Body, name: str, version: str, undo_tools: Sequence[UndoTool]) -> DurableFunction:
    takes_input, given_type, result_type = _signature(body)

    def describe() -> AgentContent:
        return AgentContent(
            AgentKind.FUNCTION,
            input_schema_json=schema_json(given_type, "validation") if takes_input else "",
            output_schema_json=schema_json(result_type, "serialization"),
            version=version,
        )

    @wraps(body)
    async def run(work: Work, given: Any) -> Any:
        arguments = (_validated(name, given_type, given),) if takes_input else ()
        with executing(work):
            result = await body(work, *arguments)
        check_finite(result, f"the function {name}")
        return result_type.dump_python(result, mode="json")

    return DurableFunction(name, run, describe, undo_tools=partial(all_undo_tools, name, undo_tools))


def all_undo_tools(name: str, items: Iterable[UndoTool], given: Any) -> list[OwnTool]:
    """Returns the own tools of a function or an agent that undo effects. Raises ValueError for two of one name."""
    tools: dict[str, OwnTool] = {}
    for tool in (tool for item in items for tool in _own_tools(item, given)):
        if tools.setdefault(tool.name, tool) is not tool:
            raise two_tools_of(name, tool.name)
    return list(tools.values())


def _own_tools(item: UndoTool, given: Any) -> Sequence[OwnTool]:
    if isinstance(item, OwnTool):
        return [item]
    named = item.durable_function if isinstance(item, HasDurableFunction) else item
    return () if named.undo_tools is None else named.undo_tools(given)


def schema_json(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> str:
    """Returns the JSON Schema of a type; "" for a type that has none."""
    try:
        return json.dumps(adapter.json_schema(mode=mode), sort_keys=True)
    except PydanticUserError:
        return ""


def _signature(body: Body) -> tuple[bool, TypeAdapter[Any], TypeAdapter[Any]]:
    """Returns whether the function takes an input, and the types of its input and its result."""
    if not inspect.iscoroutinefunction(body):
        raise TypeError(f"{body!r} is not a coroutine function (async def)")
    names = list(inspect.signature(body).parameters)
    if not 1 <= len(names) <= 2:
        raise TypeError(f"{body.__name__} must take the work, and at most the input: (work) or (work, given)")
    types: Mapping[str, Any] = get_type_hints(body, include_extras=True)
    given = types.get(names[1], Any) if len(names) == 2 else Any
    return len(names) == 2, TypeAdapter(given), TypeAdapter(types.get("return", Any))


def _validated(name: str, given_type: TypeAdapter[Any], given: Any) -> Any:
    try:
        return given_type.validate_python(given)
    except ValidationError as error:
        raise InputMismatch(f"the input does not fit {name}: {error}"[:MAX_PROBLEM_CHARACTERS]) from None
