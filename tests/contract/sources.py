"""The files of this repository for checks of their text. They are read once, and parsed only where a pattern occurs.

All of them together take seconds to parse and to walk; the pattern of a check occurs in few.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("tenure", "services", "edges", "devstack", "checker")


@cache
def texts(*folders: str) -> dict[str, str]:
    """The texts of the modules below these folders, by path; generated code is left out."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    written = [path for path in paths if path.parent != ROOT / "tenure" / "v1" and "node_modules" not in path.parts]
    assert written
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in written}


@cache
def parse(file: str) -> ast.Module:
    """The tree of one file."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def files_with(pattern: str, folders: Sequence[str] = PRODUCT) -> list[str]:
    """The files in whose text the pattern occurs."""
    occurs = re.compile(pattern, re.MULTILINE)
    return [file for file, text in texts(*folders).items() if occurs.search(text)]


def calls_of(name: str, folders: Sequence[str] = PRODUCT) -> Iterator[tuple[str, ast.Call]]:
    """The calls of functions and methods of this name, each with its file."""
    for file in files_with(rf"\b{name}\(", folders):
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
                yield file, node
