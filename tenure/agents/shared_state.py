"""Finds changes that a recorded tool makes to the value that the tools of a run share: its deps, or its context.

A later execution takes the tool's result from the ledger and does not run the tool, so it would continue without
the change, and no error would show it. Such a tool therefore fails the task at its first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Final

from pydantic import BaseModel

from tenure.control.failures import NotReplayable

MAX_DEPTH: Final = 20
_PLAIN: Final = (str, bytes, int, float, complex, type(None))


@contextmanager
def unchanged(shared: Any, what: str) -> Iterator[None]:
    """Raises NotReplayable if the code inside changes `shared`: its members, and the content of containers in them.

    Objects of other classes, such as connections, count as unchanged: only copies of data are compared.
    """
    before = _members(shared)
    yield
    after = _members(shared)
    if before != after:
        changed = sorted(str(name) for name in {**before, **after} if before.get(name) != after.get(name))
        raise NotReplayable(
            f"{what} changed {', '.join(changed)[:200]} of the value that the agent's tools share (deps, context). A "
            "worker that takes the task over would not have the change, because it does not run the tool again. Return "
            "the change as the tool's result, or declare the tool with effect=None: then it runs again. The call "
            "itself ran to its end"
        )


def _members(shared: Any) -> dict[Any, Any]:
    """Returns the members of the value itself, also of a plain object, as data that can be compared."""
    match shared:
        case Mapping():
            return {name: _data(value, 1) for name, value in shared.items()}
        case _ if hasattr(shared, "__dict__") and not isinstance(shared, type):
            return {name: _data(value, 1) for name, value in vars(shared).items()}
        case _:
            return {type(shared).__name__: _data(shared, 0)}


def _data(value: Any, depth: int) -> Any:
    """Returns data as a value that later changes leave alone; for anything else the object's identity."""
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value)
    if depth < MAX_DEPTH:
        match value:
            case Mapping():
                return [(_data(name, depth + 1), _data(inner, depth + 1)) for name, inner in value.items()]
            case list() | tuple():
                return [_data(inner, depth + 1) for inner in value]
            case AbstractSet():
                return frozenset(map(repr, value))
            case BaseModel():
                return {name: _data(inner, depth + 1) for name, inner in vars(value).items()}
            case _ if is_dataclass(value) and not isinstance(value, type):
                return {each.name: _data(getattr(value, each.name, None), depth + 1) for each in fields(value)}
    return ("object", id(value))
