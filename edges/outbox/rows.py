"""The rows of an outbox, in the database of a backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.resources import files
from typing import Any, Final, NamedTuple

import psycopg

from tenure.domain.errors import Unavailable, WrongState

CONNECT_SECONDS: Final = 10
CHANNEL: Final = "tenure_outbox"
KEPT_AT_ONCE: Final = 1000
_CLAIM: Final = """
update tenure.outbox
   set attempts = attempts + 1, next_attempt_at = clock_timestamp() + make_interval(secs => %(seconds)s)
 where request_id in (select request_id from tenure.outbox where next_attempt_at <= clock_timestamp()
                       order by next_attempt_at limit %(limit)s for update skip locked)
returning request_id, task::text, attempts, next_attempt_at
"""
_SENT: Final = """
update tenure.outbox set next_attempt_at = null, ended_at = clock_timestamp(), task_id = %(task_id)s, problem = ''
 where request_id = %(request_id)s
"""
# Only under its claim: a relay that was frozen may come back with an answer that another relay has got since.
_REFUSE: Final = """
update tenure.outbox set next_attempt_at = null, ended_at = clock_timestamp(), problem = %(problem)s
 where request_id = %(request_id)s and next_attempt_at = %(claimed_until)s returning request_id
"""
_PUT_OFF: Final = """
update tenure.outbox
   set next_attempt_at = clock_timestamp() + make_interval(secs => %(seconds)s), problem = %(problem)s
 where request_id = %(request_id)s and next_attempt_at = %(claimed_until)s returning request_id
"""
_LIST: Final = """
select request_id, created_at, attempts, next_attempt_at, problem, task_id, ended_at from tenure.outbox
 where case when %(refused)s then ended_at is not null and task_id is null else ended_at is null end
 order by created_at, request_id limit %(limit)s
"""
_RETRY: Final = """
update tenure.outbox set next_attempt_at = clock_timestamp(), ended_at = null, attempts = 0
 where request_id = %(request_id)s and ended_at is not null and task_id is null returning request_id
"""
_END_LONG_PAUSES: Final = """
update tenure.outbox set next_attempt_at = clock_timestamp()
 where next_attempt_at > clock_timestamp() + make_interval(secs => %(longest_seconds)s)
"""
_FORGET: Final = """
delete from tenure.outbox where request_id in (
  select request_id from tenure.outbox
   where ended_at < clock_timestamp() - make_interval(secs => %(seconds)s) and task_id is not null limit %(limit)s)
"""


class WaitingSubmit(NamedTuple):
    """A row to send. `task_json`: the body of the request, as the backend wrote it. `claimed_until` is its claim."""

    request_id: str
    task_json: str
    attempts: int
    claimed_until: datetime


class OutboxRow(NamedTuple):
    """A row for people. `task_id` None and an end: the gateway refused it."""

    request_id: str
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    problem: str
    task_id: str | None
    ended_at: datetime | None


@asynccontextmanager
async def open_outbox(dsn: str) -> AsyncGenerator[Outbox]:
    """Yields the outbox of a database.

    Raises, also inside of the block, Unavailable (OUTBOX_UNAVAILABLE) when the database cannot be reached, or is a
    standby that takes no writes, and WrongState (NO_OUTBOX) for a database without the table.
    """
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, client_encoding="utf8"
        ) as connection:
            await connection.execute(f"listen {CHANNEL}".encode())
            yield Outbox(connection)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        message = "this database has no outbox: run `tenure outbox sql | psql DSN`"
        raise WrongState(message, reason="NO_OUTBOX") from None
    except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
        message = f"the database of the outbox cannot be used: {str(error).strip()}"
        raise Unavailable(message, reason="OUTBOX_UNAVAILABLE") from None


def schema() -> str:
    """Returns the SQL of the table and its function."""
    return files("edges.outbox").joinpath("schema.sql").read_text(encoding="utf-8")


class Outbox:
    """The outbox of a database. Every statement is a transaction of its own. Its errors are those of `open_outbox`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def claim(self, limit: int, seconds: float) -> list[WaitingSubmit]:
        """Returns due rows, which no other relay gets within `seconds`."""
        cursor = await self._connection.execute(_CLAIM, {"limit": limit, "seconds": seconds})
        return [WaitingSubmit(*row) for row in await cursor.fetchall()]

    async def sent(self, row: WaitingSubmit, task_id: str) -> None:
        """Ends a row whose task exists."""
        await self._connection.execute(_SENT, {"request_id": row.request_id, "task_id": task_id})

    async def refuse(self, row: WaitingSubmit, problem: str) -> bool:
        """Ends a row that only a person can make acceptable. Returns False if another relay has claimed it since."""
        return await self._answered(_REFUSE, row, problem)

    async def put_off(self, row: WaitingSubmit, seconds: float, problem: str) -> None:
        """Sends a row again after `seconds`, unless another relay has claimed it since."""
        await self._answered(_PUT_OFF, row, problem, seconds=seconds)

    async def _answered(self, statement: str, row: WaitingSubmit, problem: str, **values: float) -> bool:
        """Records a problem under the claim of the row, in ASCII if the database has fewer characters."""
        claim = {"request_id": row.request_id, "claimed_until": row.claimed_until, **values}
        try:
            cursor = await self._connection.execute(statement, {**claim, "problem": problem})
        except (psycopg.DataError, UnicodeEncodeError):
            escaped = problem.encode("ascii", "backslashreplace").decode()
            cursor = await self._connection.execute(statement, {**claim, "problem": escaped})
        return await cursor.fetchone() is not None

    async def listed(self, limit: int, *, refused: bool) -> list[OutboxRow]:
        """Returns the oldest rows that wait, or that were refused."""
        cursor = await self._connection.execute(_LIST, {"limit": limit, "refused": refused})
        return [OutboxRow(*row) for row in await cursor.fetchall()]

    async def retry(self, request_id: str) -> bool:
        """Lets the relay send a refused row again. Returns whether there was one."""
        cursor = await self._connection.execute(_RETRY, {"request_id": request_id})
        return await cursor.fetchone() is not None

    async def forget(self, kept_seconds: float) -> None:
        """Deletes the rows whose tasks were made that long ago, in batches. Refused rows stay."""
        parameters = {"seconds": kept_seconds, "limit": KEPT_AT_ONCE}
        while (await self._connection.execute(_FORGET, parameters)).rowcount == KEPT_AT_ONCE:
            pass

    async def end_long_pauses(self, longest_seconds: float) -> None:
        """Makes rows due whose pause is longer: the database's clock was ahead when it began."""
        await self._connection.execute(_END_LONG_PAUSES, {"longest_seconds": longest_seconds})

    async def wait(self, seconds: float) -> None:
        """Returns when a backend adds a row, or after `seconds`. Behind a pooler only the time counts."""
        async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            pass
