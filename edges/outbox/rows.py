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
returning request_id, task::text, attempts
"""
_END: Final = """
update tenure.outbox
   set next_attempt_at = null, ended_at = clock_timestamp(), task_id = %(task_id)s, problem = %(problem)s
 where request_id = %(request_id)s
"""
_PUT_OFF: Final = """
update tenure.outbox
   set next_attempt_at = clock_timestamp() + make_interval(secs => %(seconds)s), problem = %(problem)s
 where request_id = %(request_id)s and ended_at is null
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
_FORGET: Final = """
delete from tenure.outbox where request_id in (
  select request_id from tenure.outbox
   where ended_at < clock_timestamp() - make_interval(secs => %(seconds)s) and task_id is not null limit %(limit)s)
"""


class WaitingSubmit(NamedTuple):
    """A row to send. `task_json`: the body of the request, as the backend wrote it."""

    request_id: str
    task_json: str
    attempts: int


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

    Raises, also inside of the block, Unavailable (OUTBOX_UNAVAILABLE) when the database cannot be reached, and
    WrongState (NO_OUTBOX) for a database without the table.
    """
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_SECONDS
        ) as connection:
            await connection.execute(f"listen {CHANNEL}".encode())
            yield Outbox(connection)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        message = "this database has no outbox: run `tenure outbox sql | psql DSN`"
        raise WrongState(message, reason="NO_OUTBOX") from None
    except psycopg.OperationalError as error:
        message = f"the database of the outbox cannot be reached: {str(error).strip()}"
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

    async def sent(self, request_id: str, task_id: str) -> None:
        """Ends a row whose task exists."""
        await self._connection.execute(_END, {"request_id": request_id, "task_id": task_id, "problem": ""})

    async def refuse(self, request_id: str, problem: str) -> None:
        """Ends a row that the gateway refuses: only a person can make it acceptable."""
        await self._connection.execute(_END, {"request_id": request_id, "task_id": None, "problem": problem})

    async def put_off(self, request_id: str, seconds: float, problem: str) -> None:
        """Sends a row again after `seconds`."""
        await self._connection.execute(_PUT_OFF, {"request_id": request_id, "seconds": seconds, "problem": problem})

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

    async def wait(self, seconds: float) -> None:
        """Returns when a backend adds a row, or after `seconds`. Behind a pooler only the time counts."""
        async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            pass
