"""Connections to Postgres: one pool per process, set up for durable and short statements.

Every connection is in autocommit, prepares each statement at its first use, plans it once, answers in binary and gives
up after bounded times. Errors of psycopg become domain errors where the cause lies outside of our statements
(`tenure.runtime.postgres`); any other one is a bug and stays what it is.

    async with open_pool(settings.database, schema="ledger") as pool:
        async with connection(pool) as postgres:
            row = await (await postgres.execute(QUERIES.task, {"task_id": task_id})).fetchone()
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg_pool
from psycopg.pq import Format
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tenure.domain.errors import InvalidRequest, LimitReached, TenureError, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.process import note_progress
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_status import LOCK_TIMEOUT, OUTCOME_UNKNOWN
from tenure.runtime.settings import ConfigurationError, Secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


# What an error of Postgres means to us: psycopg's exceptions by SQLSTATE, as domain errors.


class TransactionConflict(Unavailable):
    """Postgres undid the transaction for the sake of another one: nothing was done, and it may be run again at once."""

    default_reason = "TRANSACTION_CONFLICT"


# SQLSTATE → reason. In all of these the statement was refused or rolled back: nothing was done.
_NOTHING_DONE: Final = {
    "25006": "READ_ONLY",  # a standby, or a primary about to be one
    "53100": "STORAGE_FULL",
    "53200": "OUT_OF_MEMORY",
    "53300": "TOO_MANY_CONNECTIONS",
    "55P03": LOCK_TIMEOUT,
    "57014": "STATEMENT_TIMEOUT",
    "57P03": "STARTING_UP",
}
_CONFLICTS: Final = frozenset(("40001", "40P01"))
# The server ended the connection; a commit on its way may or may not have been the last thing it did.
_CONNECTION_ENDED: Final = frozenset(("57P01", "57P02", "57P05", "25P03", "25P04"))


# What Postgres cannot keep in a text, such as a NUL.
_UNFIT_TEXT: Final = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)


@contextmanager
def domain_errors() -> Iterator[None]:
    """Around anything that talks to Postgres: raises what `to_domain` makes of psycopg's errors."""
    try:
        yield
    except psycopg.Error as error:
        translated = to_domain(error)
        if translated is None:
            raise
        raise translated from error


def to_domain(error: psycopg.Error) -> TenureError | None:
    """The domain error, or None when the statement itself is at fault: that is a bug of ours."""
    state = error.sqlstate
    if isinstance(error, _UNFIT_TEXT):
        message = "a text has characters that Postgres cannot store, such as NUL"
        return InvalidRequest(f"{message}: remove them and send the request again", reason="INVALID_TEXT")
    if isinstance(error, psycopg_pool.TooManyRequests):
        return LimitReached("too many wait for a connection to Postgres", reason="POOL_FULL")
    if isinstance(error, (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed)):
        return Unavailable("no connection to Postgres in time", reason="POSTGRES_UNAVAILABLE")
    if state in _CONFLICTS:
        return TransactionConflict(str(error))
    if state in _NOTHING_DONE:
        return Unavailable(_first_line(error), reason=_NOTHING_DONE[state])
    if state is None and isinstance(error, psycopg.errors.ConnectionTimeout):
        return Unavailable("Postgres does not answer", reason="POSTGRES_UNAVAILABLE")
    lost = state in _CONNECTION_ENDED or (state or "").startswith("08")
    if lost or (state is None and isinstance(error, psycopg.OperationalError)):
        return Unavailable(
            "the connection to Postgres was lost", reason="POSTGRES_UNAVAILABLE", metadata=OUTCOME_UNKNOWN
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(_first_line(error), reason="POSTGRES_UNAVAILABLE")
    return None


def _first_line(error: psycopg.Error) -> str:
    """Without the context, which quotes our statements."""
    return str(error).partition("\n")[0]


# Connections to Postgres on which nothing is waited for without end.

WAIT_MARGIN_SECONDS: Final = 10.0
LISTEN_SECONDS: Final = 10.0
"""After so long without a notification it is asked whether Postgres still answers."""


class BoundedConnection(psycopg.AsyncConnection[TupleRow]):
    """Its socket is shut down when Postgres says nothing for too long: whoever waits gets psycopg's OperationalError.

    Not a timeout of asyncio: psycopg takes up to ten seconds more to cancel a statement that is not answered.
    """

    longest_wait_seconds: float = 10.0 + WAIT_MARGIN_SECONDS

    async def wait(self, *args: Any, **options: Any) -> Any:
        """As psycopg's, by which everything here waits for Postgres; but not for ever."""
        cutting = asyncio.get_running_loop().call_later(self.longest_wait_seconds, self._cut)
        try:
            return await super().wait(*args, **options)
        finally:
            cutting.cancel()

    def _cut(self) -> None:
        # An error means that it is broken already, which is what is wanted.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)


async def notifications(connection: BoundedConnection) -> AsyncGenerator[psycopg.Notify, None]:
    """What is notified, for ever. Raises psycopg's OperationalError when Postgres does not answer any more."""
    while True:
        note_progress()
        async for notification in connection.notifies(timeout=LISTEN_SECONDS):
            yield notification
            note_progress()
        await connection.execute("select 1")


Connection = BoundedConnection
Pool = AsyncConnectionPool[Connection]
_Result = TypeVar("_Result")

OLDEST_VERSION: Final = 140000
CONFLICTS: Final = RetryPolicy(max_attempts=5, initial_seconds=0.05, factor=3.0, cap_seconds=0.5)

# The pool doubles its wait between attempts until it gives one up; the next caller then starts a new one at once. So a
# short time here is what brings us back soon after a long outage.
_GIVE_UP_CONNECTING_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Bounds of a pool. Streams never hold a connection, so few of them serve many callers."""

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
        """What every connection sets first."""
        settings = {
            "statement_timeout": f"{round(self.statement_timeout_seconds * 1000)}ms",
            "lock_timeout": f"{round(self.lock_timeout_seconds * 1000)}ms",
            "idle_in_transaction_session_timeout": f"{round(self.idle_in_transaction_timeout_seconds * 1000)}ms",
            # Measured: planning the large statements anew takes a quarter of their time, and so does compiling them.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            "timezone": "UTC",
        }
        if schema is not None:
            settings["search_path"] = f"{schema}, public"
        return {**settings, **dict(self.settings)}


class BinaryCursor(psycopg.AsyncCursor[Any]):
    """A cursor whose answers come in binary unless asked otherwise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY


def connection_arguments(service: str, connect_timeout_seconds: float = 5.0) -> dict[str, Any]:
    """How every connection is made: a peer that fell silent is given up after about 20 s, also while idle."""
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "application_name": f"tenure-{service}",
        "connect_timeout": max(2, round(connect_timeout_seconds)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        # What was sent and never acknowledged; only Linux knows it.
        **({"tcp_user_timeout": 15_000} if sys.platform == "linux" else {}),
    }


@asynccontextmanager
async def open_pool(
    dsn: str | Secret, *, service: str = "service", schema: str | None = None, options: PoolOptions | None = None
) -> AsyncIterator[Pool]:
    """A pool that has its first connections. Raises Unavailable when Postgres does not answer in time."""
    chosen = options or PoolOptions()

    async def configure(fresh: Connection) -> None:
        await configure_session(fresh, chosen, schema)

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
        check=AsyncConnectionPool.check_connection,
        configure=configure,
        name=f"tenure-{service}",
    )
    async with pool:
        with domain_errors():
            await _first_connection(pool, chosen.start_timeout_seconds)
        yield pool


async def _first_connection(pool: Pool, timeout_seconds: float) -> None:
    """Ask again and again: the pool connects on demand, and Postgres may start after us."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_seconds
    while True:
        try:
            async with pool.connection(timeout=min(1.0, timeout_seconds)):
                return
        except PoolTimeout:
            if clock() >= deadline:
                raise


async def configure_session(fresh: Connection, options: PoolOptions, schema: str | None) -> None:
    """Set these on a connection, in one statement and not by `options`, which poolers in between refuse."""
    fresh.longest_wait_seconds = options.statement_timeout_seconds + WAIT_MARGIN_SECONDS
    settings = options.session_settings(schema)
    statement = "select set_config(name, value, false) from unnest(%b::text[], %b::text[]) as s(name, value)"
    await fresh.execute(statement, (list(settings), list(settings.values())))


@asynccontextmanager
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """A connection of the pool, in autocommit; what goes wrong with it is a domain error."""
    with domain_errors():
        async with pool.connection() as postgres:
            yield postgres


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[Connection]:
    """A connection inside a transaction: committed at the end, rolled back by an exception."""
    async with connection(pool) as postgres, postgres.transaction():
        yield postgres


async def in_transaction(
    pool: Pool, work: Callable[[Connection], Awaitable[_Result]], policy: RetryPolicy = CONFLICTS
) -> _Result:
    """Run `work` in a transaction, again when Postgres undid it for a conflict (deadlock, serialization).

    `work` may run several times and must have no effect outside of its transaction. A connection lost while
    committing is not repeated: its outcome is unknown. Raises TransactionConflict when no attempt is left.
    """

    async def once() -> _Result:
        async with transaction(pool) as postgres:
            return await work(postgres)

    return await retrying(once, policy, on=(TransactionConflict,), luck=_half_jitter)


def _half_jitter() -> float:
    """Never no wait: whoever was undone by a deadlock and is back at once takes its first lock again before the other
    one has woken up to take it, and both deadlock anew, which Postgres notices only after another second.
    """
    return random.uniform(0.5, 1.0)


def revealed(dsn: str | Secret) -> str:
    """The DSN itself; a Secret gives it out only here."""
    return dsn.reveal() if isinstance(dsn, Secret) else dsn


async def startup_guard(pool: Pool, *, allow_unsafe: bool = False) -> None:
    """Refuse a server that may lose what it acknowledged, or that is too old. Raises ConfigurationError.

    `allow_unsafe` (for experiments) accepts the first, never the second.
    """
    names = ["fsync", "synchronous_commit", "full_page_writes", "server_version", "server_version_num"]
    async with connection(pool) as postgres:
        rows = await (
            await postgres.execute("select name, setting from pg_settings where name = any(%b)", (names,))
        ).fetchall()
    settings: dict[str, str] = dict(rows)
    problems = [
        f"Postgres runs with {name}=off: a crash would lose committed entries; turn it on"
        for name in ("fsync", "synchronous_commit", "full_page_writes")
        if settings[name] == "off" and not allow_unsafe
    ]
    if int(settings["server_version_num"]) < OLDEST_VERSION:
        problems.append(f"Postgres is {settings['server_version']}: 14 or newer is needed")
    if problems:
        raise ConfigurationError(problems)
