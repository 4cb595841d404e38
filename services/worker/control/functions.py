"""The functions that this worker has, by name, from the modules it was told."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.control import Function
from tenure.runtime.settings import ConfigurationError
from tenure.validators import FUNCTION_NAME, MAX_CHOICES

TABLE: Final = "FUNCTIONS"
MOST_FUNCTIONS: Final = MAX_CHOICES - 1
"""Each is offered like a loop, beside the loop of agents."""


def load_functions(modules: Sequence[str]) -> dict[str, Function]:
    """Imports the modules and takes their FUNCTIONS. Raises ConfigurationError with all that is wrong with them."""
    functions: dict[str, Function] = {}
    problems: list[str] = []
    for module in modules:
        try:
            table = getattr(importlib.import_module(module), TABLE, None)
        except Exception as error:  # noqa: BLE001  whatever a backend's own module does when it is imported
            problems.append(f"{module} cannot be imported: {type(error).__name__}: {error}")
            continue
        problems += _problems(module, table, functions)
        functions.update(table if isinstance(table, Mapping) else {})
    if len(functions) > MOST_FUNCTIONS:
        problems.append(f"a worker has at most {MOST_FUNCTIONS} functions, these are {len(functions)}")
    if problems:
        raise ConfigurationError(problems)
    return functions


def _problems(module: str, table: Any, known: Mapping[str, Function]) -> Iterator[str]:
    if not isinstance(table, Mapping) or not table:
        yield f"{module} has no {TABLE}: a mapping of names to coroutine functions"
        return
    for name, function in table.items():
        if not isinstance(name, str) or FUNCTION_NAME.match(name) is None:
            yield f"{module}: {name!r} is no name of up to 55 letters, digits, dots, - and _"
        if not inspect.iscoroutinefunction(function):
            yield f"{module}: {name} is no coroutine function (async def)"
        if name in known:
            yield f"{module}: there is another function {name}"
