"""Connections to Postgres: one pool per process, configured for durable and short statements.

Every connection is in autocommit, prepares each statement at its first use, plans it once, returns results in binary
and has bounded timeouts. Errors of psycopg become domain errors if their cause is not the statement itself; any other
error is a bug and stays unchanged.

    async with open_pool(settings.database, schema="ledger") as pool:
        async with pool_connection(pool) as postgres:
            row = await (await postgres.execute(QUERIES.task, {"task_id": task_id})).fetchone()
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import psycopg
import psycopg_pool
from psycopg.pq import Conninfo, Format
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tenure.domain.errors import UNWRITABLE, InvalidRequest, LimitReached, TenureError, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import LOCK_TIMEOUT, OUTCOME_UNKNOWN, STATEMENT_TIMEOUT
from tenure.runtime.security.process_security import SecuritySettings, clear_text_problems
from tenure.runtime.settings import ConfigurationError, Secret
from tenure.runtime.store.pipelined_transaction import PipelinedTransaction, PreparedStatements, pipelined_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


# Errors: psycopg's exceptions, converted to domain errors by SQLSTATE.


class TransactionConflict(Unavailable):
    """Postgres rolled the transaction back because of another one, or of statements that the session had lost.

    Nothing was written; it may be repeated at once.
    """

    default_reason = "TRANSACTION_CONFLICT"


class _Outage(NamedTuple):
    """An answer of Postgres that is not the fault of the statement. The message does not quote Postgres: an error of a
    batch reaches the callers of all its items.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = MappingProxyType({})


_CONNECTION_ENDED: Final = _Outage("POSTGRES_UNAVAILABLE", "the connection to Postgres was lost", OUTCOME_UNKNOWN)
_STORAGE: Final = _Outage("STORAGE_FAILED", "Postgres cannot read or write its files")

# SQLSTATE, or its class → the outage. Any other SQLSTATE is the fault of the statement and its values.
_OUTAGES: Final = {
    "08": _CONNECTION_ENDED,
    "25P03": _CONNECTION_ENDED,
    "25P04": _CONNECTION_ENDED,
    "57P01": _CONNECTION_ENDED,
    "57P02": _CONNECTION_ENDED,
    "57P04": _CONNECTION_ENDED,
    "57P05": _CONNECTION_ENDED,
    "25006": _Outage("READ_ONLY", "Postgres is read-only: it is a standby, or about to become one"),
    "53100": _Outage("STORAGE_FULL", "the disk of Postgres is full"),
    "53200": _Outage("OUT_OF_MEMORY", "Postgres is out of memory"),
    "53300": _Outage("TOO_MANY_CONNECTIONS", "Postgres has too many connections"),
    "55P03": _Outage(LOCK_TIMEOUT, "another transaction keeps a row lock"),
    "57014": _Outage(STATEMENT_TIMEOUT, "Postgres cancelled the statement, which took too long or was stopped"),
    "57P03": _Outage("STARTING_UP", "Postgres starts or stops"),
    "58": _STORAGE,
}
# 26000: the session lost its prepared statements, see PreparedStatements.
_CONFLICTS: Final = frozenset(("40001", "40P01", "26000"))

_REFUSED_VALUES: Final = ("22", "23", "54", "P0")
"""Classes of SQLSTATE: a value, a constraint, a limit such as the size of an index row, a guard of a trigger. With any
other class the statement or the database is broken, and the values are not at fault."""


# Characters that Postgres cannot store in a text, such as NUL.
_UNFIT_TEXT: Final = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)


@contextmanager
def domain_errors() -> Iterator[None]:
    """Converts psycopg's errors of the block by `to_domain`. Use it around every access to Postgres."""
    try:
        yield
    except psycopg.Error as error:
        translated = to_domain(error)
        if translated is None:
            metrics.count("tenure_postgres_errors_total", reason="REFUSED" if unwritable(error) else "BUG")
            raise
        metrics.count("tenure_postgres_errors_total", reason=translated.reason)
        raise translated from error


def to_domain(error: psycopg.Error) -> TenureError | None:
    """Returns the domain error, or None if the statement itself is at fault, which is a bug."""
    state = error.sqlstate
    if isinstance(error, _UNFIT_TEXT):
        message = "a text has characters that Postgres cannot store, such as NUL"
        return InvalidRequest(f"{message}: remove them and send the request again", reason="INVALID_TEXT")
    if isinstance(error, psycopg_pool.TooManyRequests):
        return LimitReached("too many requests wait for a connection to Postgres", reason="POOL_FULL")
    if isinstance(error, (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed)):
        return Unavailable("no connection to Postgres was free in time", reason="POSTGRES_UNAVAILABLE")
    if state in _CONFLICTS:
        return TransactionConflict("Postgres rolled the transaction back because of another one")
    if state is None:
        return _without_answer(error)
    outage = _OUTAGES.get(state) or _OUTAGES.get(state[:2])
    return None if outage is None else Unavailable(outage.message, reason=outage.reason, metadata=outage.metadata)


def _without_answer(error: psycopg.Error) -> TenureError | None:
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return Unavailable("Postgres does not answer", reason=_CONNECTION_ENDED.reason)
    if isinstance(error, psycopg.OperationalError):
        ended = _CONNECTION_ENDED
        return Unavailable(ended.message, reason=ended.reason, metadata=ended.metadata)
    return None


def unwritable(error: psycopg.Error) -> InvalidRequest | None:
    """Returns the refusal of values that Postgres does not store, or None if they are not at fault."""
    state = error.sqlstate or ""
    if not state.startswith(_REFUSED_VALUES):
        return None
    return InvalidRequest(f"the database refuses it (SQLSTATE {state}): {_first_line(error)}", reason=UNWRITABLE)


def _first_line(error: BaseException) -> str:
    """Returns the message without its context, which quotes the statement."""
    return str(error).partition("\n")[0]


# Connections whose waits for Postgres are bounded.

WAIT_MARGIN_SECONDS: Final = 10.0
LISTEN_SECONDS: Final = 10.0
"""After this time without a notification, `notifications` checks that Postgres still answers."""


class BoundedConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection that shuts down its socket when Postgres is silent for too long.

    A pending wait then raises psycopg's OperationalError. This is not a timeout of asyncio because psycopg takes up to
    ten more seconds to cancel an unanswered statement.
    """

    longest_wait_seconds: float = 10.0 + WAIT_MARGIN_SECONDS

    @property
    def backend_pid(self) -> int:
        """The process id of the session at the server."""
        return self.pgconn.backend_pid

    @cached_property
    def prepared_statements(self) -> PreparedStatements:
        """The statements that pipelined transactions have prepared in this session."""
        return PreparedStatements(self)

    async def wait(self, *args: Any, **options: Any) -> Any:
        """Replaces psycopg's `wait`, which all waits for Postgres use: waits at most `longest_wait_seconds`."""
        timer = asyncio.get_running_loop().call_later(self.longest_wait_seconds, self._cut)
        try:
            return await super().wait(*args, **options)
        finally:
            timer.cancel()

    def _cut(self) -> None:
        # An error means that the connection is broken already, which is the goal.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


async def notifications(connection: BoundedConnection) -> AsyncGenerator[psycopg.Notify, None]:
    """Yields notifications without end. Raises psycopg's OperationalError when Postgres no longer answers."""
    while True:
        note_progress()
        async for notification in connection.notifies(timeout=LISTEN_SECONDS):
            yield notification
            note_progress()
        await connection.execute("select 1")


class Result(Protocol):
    """The rows of a statement."""

    async def fetchall(self) -> list[Any]: ...

    async def fetchone(self) -> Any: ...


class Connection(Protocol):
    """Runs statements: a connection of psycopg, or a pipelined transaction."""

    @property
    def backend_pid(self) -> int: ...

    async def execute(self, query: bytes, params: Mapping[str, Any] | None = None, /) -> Result: ...


Pool = AsyncConnectionPool[BoundedConnection]
_Result = TypeVar("_Result")

OLDEST_VERSION: Final = 140000
CONFLICTS: Final = RetryPolicy(max_attempts=5, initial_seconds=0.05, factor=3.0, cap_seconds=0.5)

# After a failed connect the pool doubles its waits until this time is over; the next caller then starts a new attempt
# at once. So a short time lets the process recover soon after a long outage.
_GIVE_UP_CONNECTING_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The bounds of a pool. Streams never hold a connection, so few connections serve many callers."""

    min_size: int = 2
    max_size: int = 16
    max_waiting: int = 1000
    acquire_timeout_seconds: float = 5.0
    connect_timeout_seconds: float = 5.0
    start_timeout_seconds: float = 30.0
    max_lifetime_seconds: float = 3600.0
    statement_timeout_seconds: float = 10.0
    lock_timeout_seconds: float = 5.0
    idle_in_transaction_timeout_seconds: float = 10.0
    settings: tuple[tuple[str, str], ...] = ()

    def session_settings(self, schema: str | None) -> dict[str, str]:
        """Returns the session settings of every connection."""
        settings = {
            "statement_timeout": f"{round(self.statement_timeout_seconds * 1000)}ms",
            "lock_timeout": f"{round(self.lock_timeout_seconds * 1000)}ms",
            "idle_in_transaction_session_timeout": f"{round(self.idle_in_transaction_timeout_seconds * 1000)}ms",
            # Measured: repeated planning of the large statements takes a quarter of their time, and so does JIT.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            "timezone": "UTC",
            # A client that falls silent in the middle of a pipeline is not idle, so no other timeout of Postgres ends
            # its transaction, and its row locks would last until the kernel's own keepalives: two hours.
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "15000",
        }
        if schema is not None:
            settings["search_path"] = f"{schema}, public"
        return {**settings, **dict(self.settings)}


class BinaryCursor(psycopg.AsyncCursor[Any]):
    """A cursor whose results are binary by default."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY


def connection_arguments(service: str, connect_timeout_seconds: float = 5.0) -> dict[str, Any]:
    """Returns psycopg's arguments for a new connection. A silent server is given up after about 20 s, even if idle."""
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "application_name": f"tenure-{service}",
        "connect_timeout": max(2, round(connect_timeout_seconds)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        # The limit for unacknowledged data. Only Linux has it.
        **({"tcp_user_timeout": 15_000} if sys.platform == "linux" else {}),
    }


@asynccontextmanager
async def open_pool(
    dsn: str | Secret, *, service: str = "service", schema: str | None = None, options: PoolOptions | None = None
) -> AsyncIterator[Pool]:
    """Opens a pool and waits for its first connection. Raises Unavailable if Postgres does not answer in time."""
    chosen = options or PoolOptions()

    async def configure(postgres: BoundedConnection) -> None:
        await configure_session(postgres, chosen, schema)

    metrics.cell("tenure_postgres_errors_total", reason="POSTGRES_UNAVAILABLE")  # from 0 on

    pool: Pool = AsyncConnectionPool(
        revealed(dsn),
        connection_class=BoundedConnection,
        kwargs={**connection_arguments(service, chosen.connect_timeout_seconds), "cursor_factory": BinaryCursor},
        min_size=chosen.min_size,
        max_size=chosen.max_size,
        max_waiting=chosen.max_waiting,
        timeout=chosen.acquire_timeout_seconds,
        max_lifetime=chosen.max_lifetime_seconds,
        reconnect_timeout=_GIVE_UP_CONNECTING_SECONDS,
        open=False,
        check=_check,
        configure=configure,
        name=f"tenure-{service}",
    )
    async with pool:
        with domain_errors():
            await _first_connection(pool, chosen.start_timeout_seconds)
        with metrics.on_sample(lambda: _sample(pool, chosen.max_size)):
            yield pool


def _sample(pool: Pool, most: int) -> None:
    """Reports the use of a pool."""
    stats = pool.get_stats()
    idle = stats.get("pool_available", 0)
    connections = {"idle": idle, "used": stats.get("pool_size", 0) - idle, "max": most}
    for state, number in connections.items():
        metrics.gauge("tenure_postgres_pool_connections", number, pool=pool.name, state=state)
    metrics.gauge("tenure_postgres_pool_waiting", stats.get("requests_waiting", 0), pool=pool.name)


async def _check(postgres: BoundedConnection) -> None:
    """Asks Postgres for a sign of life if it wrote something since the last use: mostly that it closed the connection.

    A round trip before each use would cost as much as a short statement. A server that vanished without a word is
    noticed by the statement itself, which is bounded.
    """
    poll = select.poll()
    poll.register(postgres.pgconn.socket, select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(postgres)


async def _first_connection(pool: Pool, timeout_seconds: float) -> None:
    """Waits for a connection, repeatedly: the pool connects on demand, and Postgres may start after this process."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_seconds
    while True:
        try:
            async with pool.connection(timeout=min(1.0, timeout_seconds)):
                return
        except PoolTimeout:
            if clock() >= deadline:
                raise


async def configure_session(postgres: BoundedConnection, options: PoolOptions, schema: str | None) -> None:
    """Sets the session settings with one statement, not with the startup parameter `options`, which poolers refuse."""
    postgres.longest_wait_seconds = options.statement_timeout_seconds + WAIT_MARGIN_SECONDS
    send_int8(postgres)
    settings = options.session_settings(schema)
    statement = "select set_config(name, value, false) from unnest(%b::text[], %b::text[]) as s(name, value)"
    # Not prepared: psycopg would deallocate all statements of the session after a ROLLBACK of its own.
    await postgres.execute(statement, (list(settings), list(settings.values())), prepare=False)


def send_int8(postgres: psycopg.AsyncConnection[Any]) -> None:
    """Sends every int as int8. By value psycopg would choose among three types, each with its own prepared
    statement.
    """
    postgres.adapters.register_dumper(int, Int8BinaryDumper)


@asynccontextmanager
async def pool_connection(pool: Pool) -> AsyncIterator[BoundedConnection]:
    """Takes a connection of the pool, in autocommit. Raises domain errors."""
    with domain_errors():
        async with pool.connection() as postgres:
            yield postgres


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[PipelinedTransaction]:
    """Takes a connection and opens a transaction: committed at the end of the block, rolled back by an exception.

    Raises domain errors: of a statement when its rows are fetched, or at the end.
    """
    async with pool_connection(pool) as postgres, pipelined_transaction(postgres) as opened:
        yield opened


async def in_transaction(
    pool: Pool,
    work: Callable[[Connection], Awaitable[_Result]],
    policy: RetryPolicy = CONFLICTS,
) -> _Result:
    """Runs `work` in a transaction, and again after a conflict (deadlock or serialization failure).

    `work` may run several times and must have no effect outside of its transaction. A connection that is lost during
    the commit is not repeated, because the outcome is unknown. Raises TransactionConflict when no attempt is left.
    """

    async def once() -> _Result:
        async with transaction(pool) as postgres:
            return await work(postgres)

    return await retrying(once, policy, on=(TransactionConflict,), random_fraction=_half_jitter)


def _half_jitter() -> float:
    """Returns a factor for the wait after a conflict, which is never 0.

    A transaction that Postgres ended because of a deadlock and that retries at once takes its first lock again before
    the other transaction has woken up to take it. Both deadlock again, and Postgres detects that only after another
    second.
    """
    return random.uniform(0.5, 1.0)


def revealed(dsn: str | Secret) -> str:
    """Returns the DSN as a plain string, for the connect call."""
    return dsn.reveal() if isinstance(dsn, Secret) else dsn


_ENCRYPTED_MODES: Final = frozenset({"require", "verify-ca", "verify-full"})


def dsn_problems(settings: SecuritySettings, variable: str, dsn: Secret) -> Iterator[str]:
    """Yields a problem for each host of another machine that the DSN names, unless it demands TLS.

    libpq's default, `sslmode=prefer`, continues without TLS. A text that is not a DSN yields nothing: connecting fails.
    """
    try:
        given = {one.keyword: one.val for one in Conninfo.parse(dsn.reveal().encode()) if one.val}
    except psycopg.OperationalError:
        return
    chosen = {**{one.keyword: one.val for one in Conninfo.get_defaults() if one.val}, **given}
    if chosen.get(b"sslmode", b"").decode() in _ENCRYPTED_MODES:
        return
    hosts = (chosen.get(b"hostaddr") or chosen.get(b"host") or b"").decode().split(",")
    remote = [host for host in hosts if host and not host.startswith(("/", "@"))]  # others are local sockets
    yield from clear_text_problems(settings, variable, remote, "sslmode=verify-full and sslrootcert in it")


_POOLER_SECONDS: Final = 5.0
_POOLER_LOOKS: Final = 5


async def _pooler_problems(pool: Pool) -> list[str]:
    """Returns a problem if a pooler gives the transactions of one connection to several sessions of Postgres.

    A pooler has process ids of its own. Then a second connection keeps a transaction open, so that the first one gets
    another session, or none.
    """
    problem = (
        "a pooler in transaction mode is between this service and Postgres: settings, prepared statements and "
        "LISTEN of a session would be lost; set pool_mode = session, or name Postgres itself"
    )
    async with pool_connection(pool) as one, pool_connection(pool) as other:
        if await _server_process(one) == one.backend_pid:
            return []
        for _ in range(_POOLER_LOOKS):
            own = await _server_process(one)
            async with other.transaction():
                if await _server_process(other) == own:
                    return [problem]
                try:
                    async with asyncio.timeout(_POOLER_SECONDS):
                        moved = await _server_process(one) != own
                except TimeoutError:
                    return [problem]
            if moved:
                return [problem]
    return []


async def _server_process(postgres: BoundedConnection) -> int:
    row = await (await postgres.execute("select pg_backend_pid()", prepare=False)).fetchone()
    assert row is not None, "the function returns a row"
    return int(row[0])


async def startup_guard(pool: Pool, *, allow_unsafe: bool = False) -> None:
    """Raises ConfigurationError for a server that may lose acknowledged commits, or that is too old.

    `allow_unsafe` (for experiments) accepts unsafe settings, but not an old version.
    """
    if pooler := await _pooler_problems(pool):  # first: a prepared statement may fail behind it
        raise ConfigurationError(pooler)
    names = ["fsync", "synchronous_commit", "full_page_writes", "server_version", "server_version_num"]
    async with pool_connection(pool) as postgres:
        rows = await (
            await postgres.execute("select name, setting from pg_settings where name = any(%b)", (names,))
        ).fetchall()
    settings: dict[str, str] = dict(rows)
    problems = [
        f"Postgres runs with {name}=off: a crash would lose committed entries; set {name}=on"
        for name in ("fsync", "synchronous_commit", "full_page_writes")
        if settings[name] == "off" and not allow_unsafe
    ]
    if int(settings["server_version_num"]) < OLDEST_VERSION:
        problems.append(f"Postgres is {settings['server_version']}: Tenure needs 14 or newer")
    if problems:
        raise ConfigurationError(problems)
