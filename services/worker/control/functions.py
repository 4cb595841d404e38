"""Loads the control functions of this worker from the modules that its settings name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.agents.functions import function_table, prepare
from tenure.control import Function
from tenure.model_providers.proxies import problem_of_agents_proxy
from tenure.runtime.settings import ConfigurationError
from tenure.validators.common import MAX_CHOICES
from tenure.validators.rules import FUNCTION_NAME

TABLE: Final = "FUNCTIONS"
MAX_FUNCTIONS: Final = MAX_CHOICES - 1
"""The maximum number of functions. Each is offered like a loop, beside those of agents and undos."""
NO_FUNCTIONS: Final[Mapping[str, Function]] = {}


def load_functions(modules: Sequence[str], own: Mapping[str, Function] = NO_FUNCTIONS) -> dict[str, Function]:
    """Imports the modules and returns their FUNCTIONS by name, besides this program's own, ready to run.

    FUNCTIONS is a mapping of names to functions, or a list of agents and functions that have names. Raises
    ConfigurationError with all problems.
    """
    functions: dict[str, Function] = dict(own)
    problems: list[str] = list(_problems("the program", own, {})) if own else []
    for module in modules:
        try:
            table = _table(getattr(importlib.import_module(module), TABLE, None))
        except Exception as error:  # noqa: BLE001  the user's module may raise anything at import
            problems.append(f"{module} cannot be imported: {type(error).__name__}: {error}")
            continue
        problems += _problems(module, table, functions)
        functions.update(table if isinstance(table, Mapping) else {})
    if len(functions) > MAX_FUNCTIONS:
        problems.append(f"a worker may have at most {MAX_FUNCTIONS} functions, the modules define {len(functions)}")
    if problem := problem_of_agents_proxy():
        problems.append(problem)
    if problems:
        raise ConfigurationError(problems)
    for function in functions.values():
        prepare(function)
    return functions


def _table(functions: Any) -> Any:
    """Returns a list of agents and functions as a mapping by their names, and anything else as it is."""
    return function_table(functions) if isinstance(functions, list | tuple) else functions


def _problems(module: str, table: Any, known: Mapping[str, Function]) -> Iterator[str]:
    if not isinstance(table, Mapping) or not table:
        yield f"{module} has no {TABLE}: a mapping of names to coroutine functions, or a list of agents and functions"
        return
    for name, function in table.items():
        if not isinstance(name, str) or FUNCTION_NAME.match(name) is None:
            yield f"{module}: {name!r} is not a name of up to 55 letters, digits, dots, - and _"
        if not inspect.iscoroutinefunction(function):
            yield f"{module}: {name} is not a coroutine function (async def)"
        if name in known:
            yield f"{module}: another module has a function {name}"
