"""Named SQL statements of a service, and forward-only migrations of its schema.

The statements are in `sql/queries.sql` of the service's package, the migrations in `sql/migrations/NNNN_what.sql`.

Each migration runs once, in one transaction, with its schema first in the search path. The table `<schema>.migrations`
records it with a checksum; a file that was changed afterwards is refused. Replicas that start together run one after
the other under an advisory lock. A database with migrations that this code does not know is accepted: during an upgrade
the old code must still run beside the new code.

Services run while a migration waits for a lock, and whatever they ask for then waits behind it. So a migration gives up
after seconds, lets them continue and tries again.

A file whose first line is `-- outside a transaction` runs statement by statement, for `create index concurrently` and
`validate constraint`, which let services write meanwhile. If it fails in the middle, all its statements run again: each
of them must be repeatable. The line of a statement's end is the only one that ends with a semicolon.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from tenure.domain.errors import Unavailable
from tenure.runtime.rpc.status import LOCK_TIMEOUT
from tenure.runtime.settings import ConfigurationError
from tenure.runtime.store.postgres import connection_arguments, domain_errors, revealed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence

    from tenure.runtime.settings import Secret


# Named statements.

_BLOCK: Final = re.compile(r"^-- (name|part): *(\S+) *$", re.MULTILINE)
_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")
_PLACE: Final = re.compile(r"\{([a-z][a-z0-9_.]*)\}")


class Queries:
    """The statements of one file. Each statement is an attribute.

    A line `-- name: <name>` begins a statement, and a comment below it says why the statement exists. A line
    `-- part: <name>` begins SQL that statements share: `{<name>}` below stands for it. The caller may pass more parts,
    for example the columns of a row class.
    """

    def __init__(self, text: str, source: str = "queries.sql", parts: Mapping[str, str] | None = None) -> None:
        """Raises ValueError for a file of another form."""
        self.source = source
        self._statements: dict[str, bytes] = {}
        self._parts = dict(parts or {})
        head, *blocks = _BLOCK.split(text)
        if _without_comments(head):
            raise ValueError(f"{source}: SQL before the first `-- name:`")
        for kind, name, body in zip(blocks[0::3], blocks[1::3], blocks[2::3], strict=True):
            self._add(kind, name, body)

    @classmethod
    def load(cls, package: str, path: str = "sql/queries.sql", parts: Mapping[str, str] | None = None) -> Queries:
        """Loads the statements of the file `path` in `package`."""
        return cls(resources.files(package).joinpath(path).read_text(encoding="utf-8"), f"{package}/{path}", parts)

    def __getattr__(self, name: str) -> bytes:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"{self.source} has no statement named {name}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def _add(self, kind: str, name: str, body: str) -> None:
        sql_text = _PLACE.sub(self._part, _without_comments(body).removesuffix(";").rstrip())
        if _IDENTIFIER.fullmatch(name) is None:
            raise ValueError(f"{self.source}: {name} is not a valid name of a statement")
        if name in (self._parts if kind == "part" else self._statements):
            raise ValueError(f"{self.source}: {name} is defined twice")
        if not sql_text:
            raise ValueError(f"{self.source}: {name} has no statement")
        if not body.lstrip().startswith("--"):
            raise ValueError(f"{self.source}: {name} has no comment: say below its name why it exists")
        if kind == "part":
            self._parts[name] = sql_text
        else:
            self._statements[name] = sql_text.encode()

    def _part(self, place: re.Match[str]) -> str:
        if place[1] not in self._parts:
            raise ValueError(f"{self.source}: no part named {place[1]} above")
        return self._parts[place[1]]


def _without_comments(text: str) -> str:
    """Removes comment lines: psycopg would take a % in a comment for a placeholder."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


_log: Final = logging.getLogger(__name__)
_FILE: Final = re.compile(r"(?P<number>\d{4})_(?P<what>[a-z0-9_]+)\.sql")
_OUTSIDE: Final = "-- outside a transaction"
_WAIT_SECONDS: Final = 120.0
"""How long a replica waits for another one that migrates."""
_POLL_SECONDS: Final = 0.2
LOCK_SECONDS: Final = 5.0
"""How long a migration waits for the lock of a table. Services wait behind it, for at most half of their timeouts."""
LOCK_TRIES: Final = 24
LOCK_PAUSE_SECONDS: Final = 1.0
"""Between two tries: the time in which services do what has piled up."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the text, independent of the checkout's line endings."""
        return hashlib.sha256(self.text.replace("\r\n", "\n").encode()).hexdigest()

    @property
    def is_outside(self) -> bool:
        """Whether its statements run outside a transaction, one by one."""
        return self.text.startswith(f"{_OUTSIDE}\n")

    @property
    def statements(self) -> list[str]:
        """Its statements, for a file that runs outside a transaction."""
        parts = re.split(r";[ \t]*$", _without_comments(self.text.replace("\r\n", "\n")), flags=re.MULTILINE)
        return [part.strip() for part in parts if part.strip()]


@dataclass(frozen=True, slots=True)
class Migrations:
    """All migrations of one schema in order, numbered 1, 2, 3 …"""

    schema: str
    files: tuple[Migration, ...]

    @classmethod
    def of(cls, package: str, *, schema: str, path: str = "sql/migrations") -> Migrations:
        """Loads the migrations of a package. Raises ValueError for a wrong file name or number."""
        texts = [(file.name, file.read_text(encoding="utf-8")) for file in _sql_files(package, path)]
        return cls.from_texts(schema, texts)

    @classmethod
    def from_texts(cls, schema: str, texts: Sequence[tuple[str, str]]) -> Migrations:
        """Builds the migrations from pairs of file name and text. Raises ValueError as `of`."""
        files = []
        for expected, (name, text) in enumerate(sorted(texts), start=1):
            match = _FILE.fullmatch(name)
            if match is None or int(match["number"]) != expected:
                raise ValueError(f"{name}: expected {expected:04}_what.sql, without gaps and each number once")
            files.append(Migration(expected, name, text))
        return cls(schema, tuple(files))

    @property
    def checksum(self) -> str:
        """The SHA-256 of the schema's name and of all checksums."""
        return hashlib.sha256("".join([self.schema, *(file.checksum for file in self.files)]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a service's role in its schema: statements in which `{role}` stands for the role."""

    text: str

    @classmethod
    def of(cls, package: str, path: str = "sql/rights.sql") -> Rights:
        """Loads the statements of a package."""
        return cls(_without_comments(resources.files(package).joinpath(path).read_text(encoding="utf-8")))

    async def give(self, dsn: str | Secret, role: str) -> None:
        """Gives the rights to a role. `dsn`: of the schema's owner. Raises ConfigurationError for an unknown role."""
        with domain_errors():
            async with await _connect(dsn) as owner:
                if await (await owner.execute("select from pg_roles where rolname = %s", (role,))).fetchone() is None:
                    raise ConfigurationError([f"the role {role} does not exist: create it first (docs/postgres.md)"])
                async with owner.transaction():
                    await owner.execute(sql.SQL(self.text).format(role=sql.Identifier(role)), prepare=False)
        _log.info("gave the service's role its rights", extra={"role": role})


async def migrate(dsn: str | Secret, migrations: Migrations, *, allowed: bool = True) -> list[str]:
    """Applies the pending migrations and returns their names. Safe with any number of concurrent replicas.

    Raises ConfigurationError for a changed file, and for pending migrations if `allowed` is False. When a migration
    fails, the migrations before it stay applied.
    """
    if not allowed and not await _has_pending(dsn, migrations):  # an index of a newer release may take minutes
        return []
    async with _migration_lock(dsn, migrations.schema) as postgres:
        pending = await _pending(postgres, migrations)
        if pending and not allowed:
            raise ConfigurationError(
                [f"{migrations.schema}: {file.name} is not applied; run the migrations first" for file in pending]
            )
        for file in pending:
            await _apply(postgres, migrations.schema, file)
            _log.info("migrated", extra={"schema": migrations.schema, "migration": file.name})
    return [file.name for file in pending]


async def _has_pending(dsn: str | Secret, migrations: Migrations) -> bool:
    """Needs no lock: an applied migration stays applied, also beside another migration."""
    with domain_errors():
        async with await _connect(dsn) as postgres:
            return bool(await _pending(postgres, migrations))


def _connect(dsn: str | Secret) -> Awaitable[psycopg.AsyncConnection[Any]]:
    return psycopg.AsyncConnection.connect(revealed(dsn), **connection_arguments("migrations"))


def _sql_files(package: str, path: str) -> list[resources.abc.Traversable]:
    folder = resources.files(package).joinpath(path)
    return [file for file in folder.iterdir() if file.name.endswith(".sql")]


@asynccontextmanager
async def _migration_lock(dsn: str | Secret, schema: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Opens a connection that holds the schema's advisory lock. Closing it always releases the lock.

    It polls. A statement that waits for the lock would hold a snapshot, and `create index concurrently` of the holder
    waits for all older snapshots: a deadlock.
    """
    with domain_errors():
        async with await _connect(dsn) as postgres:
            ends_at = time.monotonic() + _WAIT_SECONDS
            while not await _try_lock(postgres, schema):
                if time.monotonic() > ends_at:
                    message = f"another process has migrated {schema} for {_WAIT_SECONDS:g} s; try again when it ends"
                    raise Unavailable(message, reason=LOCK_TIMEOUT)
                await asyncio.sleep(_POLL_SECONDS)
            yield postgres


async def _try_lock(postgres: psycopg.AsyncConnection[Any], schema: str) -> bool:
    statement = "select pg_try_advisory_lock(hashtextextended(%s, 0))"
    row = await (await postgres.execute(statement, (f"tenure migrations {schema}",))).fetchone()
    return row is not None and bool(row[0])


async def _pending(postgres: psycopg.AsyncConnection[Any], migrations: Migrations) -> list[Migration]:
    applied = await _applied(postgres, migrations.schema)
    changed = [file.name for file in migrations.files if applied.get(file.number, file.checksum) != file.checksum]
    if changed:
        raise ConfigurationError(
            [f"{name} was changed after it was applied: restore it and write a new migration" for name in changed]
        )
    if ahead := sorted(set(applied) - {file.number for file in migrations.files}):
        _log.warning("the database is newer than this code", extra={"schema": migrations.schema, "unknown": ahead})
    return [file for file in migrations.files if file.number not in applied]


async def _applied(postgres: psycopg.AsyncConnection[Any], schema: str) -> dict[int, str]:
    """Returns number → checksum of the applied migrations, or {} without the schema, which it does not create."""
    table = sql.Identifier(schema, "migrations")
    row = await (await postgres.execute("select to_regclass(%s)", (f'"{schema}".migrations',))).fetchone()
    if row is None or row[0] is None:
        return {}
    rows = await (await postgres.execute(sql.SQL("select number, checksum from {}").format(table))).fetchall()
    return dict(rows)


async def _apply(postgres: psycopg.AsyncConnection[Any], schema: str, file: Migration) -> None:
    """Applies a migration, again after a lock that it did not get in time."""
    apply_once = _apply_outside if file.is_outside else _apply_inside
    try:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                return await apply_once(postgres, schema, file)
            except psycopg.errors.LockNotAvailable:
                if not tries_left:
                    raise
                _log.warning(
                    "a migration waits for a lock",
                    extra={"schema": schema, "migration": file.name, "tries": tries_left},
                )
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
    except psycopg.Error as error:
        error.add_note(f"in the migration {schema}/{file.name}")
        raise


async def _apply_inside(postgres: psycopg.AsyncConnection[Any], schema: str, file: Migration) -> None:
    name, table = sql.Identifier(schema), sql.Identifier(schema, "migrations")
    async with postgres.transaction():
        schemas = await postgres.execute("select from pg_namespace where nspname = %s", (schema,))
        if await schemas.fetchone() is None:  # `if not exists` needs the right to create schemas in any case
            await postgres.execute(sql.SQL("create schema {}").format(name))
        await postgres.execute(sql.SQL(_TABLE).format(table))
        await postgres.execute(sql.SQL("set local search_path to {}, public").format(name))
        await postgres.execute(sql.SQL("set local lock_timeout = {}").format(f"{LOCK_SECONDS:g}s"))
        await postgres.execute(file.text.encode(), prepare=False)
        await _record(postgres, schema, file)


async def _apply_outside(postgres: psycopg.AsyncConnection[Any], schema: str, file: Migration) -> None:
    """Without a lock timeout: these statements wait for transactions that began before, and block none."""
    await postgres.execute(sql.SQL("set search_path to {}, public").format(sql.Identifier(schema)))
    await postgres.execute("set lock_timeout = 0")
    for statement in file.statements:
        await postgres.execute(statement.encode(), prepare=False)
    await _record(postgres, schema, file)
    await postgres.execute("reset search_path")


async def _record(postgres: psycopg.AsyncConnection[Any], schema: str, file: Migration) -> None:
    table = sql.Identifier(schema, "migrations")
    await postgres.execute(
        sql.SQL("insert into {} (number, name, checksum) values (%s, %s, %s)").format(table),
        (file.number, file.name, file.checksum),
    )


_TABLE: Final = """
create table if not exists {} (
  number     int primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default now()
)"""
