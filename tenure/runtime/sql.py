"""Forward-only migrations of a service's own schema: `sql/migrations/NNNN_what.sql` of its package.

Each runs once, in one transaction, with its schema first in the search path. What has run is kept with a checksum in
`<schema>.migrations`; a file that was changed afterwards is refused. Replicas that start together take turns under an
advisory lock. A database that is ahead of the code is left alone: the code before it must still run beside the new.
"""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from tenure.runtime.postgres import connection_arguments, domain_errors, revealed
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tenure.runtime.settings import Secret


# Named statements from a service's `sql/queries.sql`.

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


_log: Final = logging.getLogger(__name__)
_FILE: Final = re.compile(r"(?P<number>\d{4})_(?P<what>[a-z0-9_]+)\.sql")
_LOCK_TIMEOUT: Final = "120s"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of the text, whatever the line endings of a checkout are."""
        return hashlib.sha256(self.text.replace("\r\n", "\n").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Migrations:
    """All migrations of one schema, in order, numbered 1, 2, 3 …"""

    schema: str
    files: tuple[Migration, ...]

    @classmethod
    def of(cls, package: str, *, schema: str, path: str = "sql/migrations") -> Migrations:
        """Those of a package. Raises ValueError for a name or a number that does not fit."""
        texts = [(file.name, file.read_text(encoding="utf-8")) for file in _sql_files(package, path)]
        return cls.from_texts(schema, texts)

    @classmethod
    def from_texts(cls, schema: str, texts: Sequence[tuple[str, str]]) -> Migrations:
        """From file names and their texts."""
        files = []
        for expected, (name, text) in enumerate(sorted(texts), start=1):
            match = _FILE.fullmatch(name)
            if match is None or int(match["number"]) != expected:
                raise ValueError(f"{name}: expected {expected:04}_what.sql, without gaps and each number once")
            files.append(Migration(expected, name, text))
        return cls(schema, tuple(files))

    @property
    def checksum(self) -> str:
        """Of all together."""
        return hashlib.sha256("".join([self.schema, *(file.checksum for file in self.files)]).encode()).hexdigest()


async def migrate(dsn: str | Secret, migrations: Migrations, *, allowed: bool = True) -> list[str]:
    """Apply what is missing and return the names; safe with any number of replicas at once.

    Raises ConfigurationError for a changed file, and for pending ones when this process is not allowed to apply them.
    A migration that fails leaves those before it applied.
    """
    async with _turn(dsn, migrations.schema) as postgres:
        pending = await _pending(postgres, migrations)
        if pending and not allowed:
            raise ConfigurationError(
                [f"{migrations.schema}: {file.name} is not applied; let one process migrate first" for file in pending]
            )
        for file in pending:
            await _apply(postgres, migrations.schema, file)
            _log.info("migrated", extra={"schema": migrations.schema, "migration": file.name})
    return [file.name for file in pending]


def _sql_files(package: str, path: str) -> list[resources.abc.Traversable]:
    folder = resources.files(package).joinpath(path)
    return [file for file in folder.iterdir() if file.name.endswith(".sql")]


@asynccontextmanager
async def _turn(dsn: str | Secret, schema: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection that holds the schema's lock; closing it gives the lock back, whatever happened."""
    with domain_errors():
        async with await psycopg.AsyncConnection.connect(
            revealed(dsn), **connection_arguments("migrations")
        ) as postgres:
            await postgres.execute(sql.SQL("set lock_timeout = {}").format(_LOCK_TIMEOUT))
            await postgres.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (f"tenure migrations {schema}",))
            yield postgres


async def _pending(postgres: psycopg.AsyncConnection[Any], migrations: Migrations) -> list[Migration]:
    applied = await _applied(postgres, migrations.schema)
    changed = [file.name for file in migrations.files if applied.get(file.number, file.checksum) != file.checksum]
    if changed:
        raise ConfigurationError(
            [f"{name} was changed after it ran: put it back and write a new migration" for name in changed]
        )
    if ahead := sorted(set(applied) - {file.number for file in migrations.files}):
        _log.warning("the database is ahead of this code", extra={"schema": migrations.schema, "unknown": ahead})
    return [file for file in migrations.files if file.number not in applied]


async def _applied(postgres: psycopg.AsyncConnection[Any], schema: str) -> dict[int, str]:
    """Number → checksum; nothing when the schema is not there yet (looking must not make it)."""
    table = sql.Identifier(schema, "migrations")
    there = await (await postgres.execute("select to_regclass(%s)", (f'"{schema}".migrations',))).fetchone()
    if there is None or there[0] is None:
        return {}
    rows = await (await postgres.execute(sql.SQL("select number, checksum from {}").format(table))).fetchall()
    return dict(rows)


async def _apply(postgres: psycopg.AsyncConnection[Any], schema: str, file: Migration) -> None:
    name, table = sql.Identifier(schema), sql.Identifier(schema, "migrations")
    try:
        async with postgres.transaction():
            await postgres.execute(sql.SQL("create schema if not exists {}").format(name))
            await postgres.execute(sql.SQL(_TABLE).format(table))
            await postgres.execute(sql.SQL("set local search_path to {}, public").format(name))
            await postgres.execute(file.text.encode(), prepare=False)
            await postgres.execute(
                sql.SQL("insert into {} (number, name, checksum) values (%s, %s, %s)").format(table),
                (file.number, file.name, file.checksum),
            )
    except psycopg.Error as error:
        error.add_note(f"in the migration {schema}/{file.name}")
        raise


_TABLE: Final = """
create table if not exists {} (
  number     int primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default now()
)"""
