"""Loads a service with one guard taken out of its text, on its way into one process of a test.

The product has no way to turn its fences off. An edit that does not find exactly one place to change is an error, as is
one of a module that the service does not use: a refactoring must not turn a mutation into nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

STATEMENTS = "sql/queries.sql"


class NothingToMutate(Exception):  # noqa: N818  what is wrong with the mutation, not with the program
    """The text that was to be changed is not there, not there once, or not what this service runs."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in a module, or with `sql` in the statements of a package."""

    where: str
    old: str
    new: str
    sql: bool = False

    def apply(self, text: str) -> str:
        """The text with the edit. Raises NothingToMutate."""
        if (count := text.count(self.old)) != 1:
            raise NothingToMutate(f"{self.where} has {count} places that read:\n{self.old}")
        return text.replace(self.old, self.new)


def load_mutated(main: str, edits: Sequence[Edit]) -> ModuleType:
    """The module `main`, imported with all edits in what it imports. Raises NothingToMutate."""
    modules: dict[str, list[Edit]] = {}
    statements: dict[str, list[Edit]] = {}
    for edit in edits:
        (statements if edit.sql else modules).setdefault(edit.where, []).append(edit)
    for package, edits_of_package in statements.items():
        _edit_statements(package, edits_of_package)
    sys.meta_path.insert(0, _Finder(modules))
    imported = importlib.import_module(main)
    for name in modules:
        if not isinstance(getattr(sys.modules.get(name), "__loader__", None), _Loader):
            raise NothingToMutate(f"{main} does not import {name}, or did so before it could be edited")
    return imported


class _Finder(MetaPathFinder):
    """Finds the edited modules, and only these."""

    def __init__(self, modules: dict[str, list[Edit]]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._modules else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._modules[fullname])
        return spec


class _Loader(SourceFileLoader):
    """Compiles a module from its edited text; no compiled file is read or left behind."""

    def __init__(self, fullname: str, path: str, edits: list[Edit]) -> None:
        super().__init__(fullname, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        """Called by the import system."""
        text = _edited(self.get_source(fullname) or "", self._edits)
        return compile(text, self.path, "exec", dont_inherit=True)


def _edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        text = edit.apply(text)
    return text


def _edit_statements(edited: str, edits: Sequence[Edit]) -> None:
    """From here on the package's statements are loaded with the edits; those of others as they are."""
    from tenure.runtime.store.sql import Queries  # here, since it imports modules that other mutations edit

    load = Queries.load
    text = _edited(resources.files(edited).joinpath(STATEMENTS).read_text(encoding="utf-8"), edits)

    def load_edited(package: str, path: str = STATEMENTS, parts: Mapping[str, str] | None = None) -> Queries:
        is_meant = (package, path) == (edited, STATEMENTS)
        return Queries(text, f"{package}/{path}", parts) if is_meant else load(package, path, parts)

    Queries.load = load_edited  # type: ignore[method-assign]  # for the life of this process
