"""Loads a service with one guard taken out of its text, before anything else has imported it.

The product has no way to turn its fences off; this edits the source on its way into one process of a test. An edit that
does not find exactly one place to change is an error: a refactoring must not turn a mutation into nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tenure.runtime.queries import Queries

STATEMENTS = "sql/queries.sql"


class NothingToMutate(Exception):  # noqa: N818  what is wrong with the mutation, not with the program
    """The text that was to be changed is not there, not there once, or is not used by this service."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in a module, or with `sql` in the statements of a package."""

    where: str
    old: str
    new: str
    sql: bool = False

    def apply(self, text: str) -> str:
        if (count := text.count(self.old)) != 1:
            raise NothingToMutate(f"{self.where} has {count} places that read:\n{self.old}")
        return text.replace(self.old, self.new)


def load_mutated(edits: Iterable[Edit]) -> None:
    """Puts the edited modules and statements where every later import finds them."""
    modules: dict[str, list[Edit]] = {}
    for edit in edits:
        if edit.sql:
            _edit_statements(edit)
        else:
            modules.setdefault(edit.where, []).append(edit)
    for name, own in modules.items():
        _load_module(name, own)


def _load_module(name: str, edits: list[Edit]) -> None:
    if name in sys.modules:
        raise NothingToMutate(f"{name} was imported before it could be edited")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise NothingToMutate(f"there is no module {name}")
    text = Path(spec.origin).read_text(encoding="utf-8")
    for edit in edits:
        text = edit.apply(text)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(text, spec.origin, "exec"), vars(module))  # noqa: S102  our own source, one line of it changed
    parent, _, child = name.rpartition(".")
    setattr(importlib.import_module(parent), child, module)


def _edit_statements(edit: Edit) -> None:
    """From here on the package's statements are loaded with the edit; those of others as they are."""
    load = Queries.load
    text = edit.apply(resources.files(edit.where).joinpath(STATEMENTS).read_text(encoding="utf-8"))

    def load_edited(package: str, path: str = STATEMENTS) -> Queries:
        return (
            Queries(text, f"{package}/{path}") if (package, path) == (edit.where, STATEMENTS) else load(package, path)
        )

    Queries.load = load_edited  # type: ignore[method-assign]  # for the life of this process
