"""Durable functions in Python: the decorator `@function`, and the named functions that a worker runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Protocol, get_type_hints, overload, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from tenure.agents.execution import executing
from tenure.control.work import Function, Work

MAX_PROBLEM_CHARACTERS: Final = 1000


class InputMismatch(ValueError):  # noqa: N818  the name says what is wrong
    """The task's input does not fit the function. Another attempt would get the same input."""

    retryable = False


@dataclass(frozen=True, slots=True)
class DurableFunction:
    """A function under the name by which tasks ask for it: `tenure submit --function NAME`, or `--agent NAME`."""

    name: str
    run: Function


@runtime_checkable
class HasDurableFunction(Protocol):
    """An agent that a worker can run as a task."""

    @property
    def durable_function(self) -> DurableFunction: ...


def function_table(items: Iterable[Any]) -> dict[str, Function]:
    """Returns the functions of agents and functions by name. Raises TypeError and ValueError for what is not one."""
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
        table[named.name] = named.run
    return table


Body = Callable[..., Awaitable[Any]]


@overload
def function(body: Body, /) -> DurableFunction: ...


@overload
def function(*, name: str = "") -> Callable[[Body], DurableFunction]: ...


def function(body: Body | None = None, /, *, name: str = "") -> DurableFunction | Callable[[Body], DurableFunction]:
    """Makes a coroutine function durable: `async def month_end(work: Work, order: Order) -> Receipt`.

    The parameter after the work, if there is one, is the task's input, validated by its annotation. What the function
    returns is the task's result, written as its annotation says. Its model calls and tools are recorded by `work`, and
    so are those of durable agents that it runs. Raises TypeError for a function of another shape.
    """
    if body is None:
        return lambda decorated: function(decorated) if not name else _durable(decorated, name)
    return _durable(body, name or body.__name__)


def _durable(body: Body, name: str) -> DurableFunction:
    takes_input, given_type, result_type = _signature(body)

    @wraps(body)
    async def run(work: Work, given: Any) -> Any:
        arguments = (_validated(name, given_type, given),) if takes_input else ()
        with executing(work):
            result = await body(work, *arguments)
        return result_type.dump_python(result, mode="json")

    return DurableFunction(name, run)


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
