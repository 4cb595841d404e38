"""Named statements from a service's `sql/queries.sql`.

    -- name: open_task
    -- Raises the fence and reads the row in one statement: a fence checked on writes only still loses updates.
    update tasks set …

    QUERIES = Queries.load("services.checkpoint")
    _OPEN_TASK = QUERIES.open_task          # at import: a name that is not there is an error there

Statements are bytes, which psycopg takes as they are and caches by. Every statement says in a comment why it is so.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = re.compile(r"^-- name: *(?P<name>\S+) *$", re.MULTILINE)
_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")


class Queries:
    """The statements of one file, each an attribute."""

    def __init__(self, text: str, source: str = "queries.sql") -> None:
        """Raises ValueError for a file that is not as described above."""
        self._source = source
        self._statements: dict[str, bytes] = {}
        parts = _NAME.split(text)
        if _without_comments(parts[0]):
            raise ValueError(f"{source}: there is SQL before the first `-- name:`")
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            self._add(name, body)

    @classmethod
    def load(cls, package: str, path: str = "sql/queries.sql") -> Queries:
        """The statements of `path` inside `package`."""
        return cls(resources.files(package).joinpath(path).read_text(encoding="utf-8"), f"{package}/{path}")

    def __getattr__(self, name: str) -> bytes:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no statement named {name}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def _add(self, name: str, body: str) -> None:
        statement = _without_comments(body).removesuffix(";").rstrip()
        if _IDENTIFIER.fullmatch(name) is None:
            raise ValueError(f"{self._source}: {name} is no name for a statement")
        if name in self._statements:
            raise ValueError(f"{self._source}: there are two statements named {name}")
        if not statement:
            raise ValueError(f"{self._source}: {name} has no statement")
        if not body.lstrip().startswith("--"):
            raise ValueError(f"{self._source}: {name} does not say why: put a comment under its name")
        self._statements[name] = statement.encode()


def _without_comments(text: str) -> str:
    """Whole lines of comment are for the reader; a % in one would be taken for a placeholder."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()
