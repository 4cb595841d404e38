"""Keeps a row that is locked, or that the database refuses, from harming the other tasks of a batch or a sweep."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from services.checkpoint.queries import QUERIES
from tenure.domain.errors import TryLater
from tenure.runtime.rpc.status import LOCK_TIMEOUT, STATEMENT_TIMEOUT
from tenure.runtime.store.postgres import Connection, Pool, in_transaction


class OfTask(Protocol):
    """An item of a batch."""

    @property
    def task_id(self) -> str: ...


Item = TypeVar("Item", bound=OfTask)
Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)
_LOCK_SECONDS: Final = 1.0
_ALONE_LOCK_SECONDS: Final = 0.05
"""Short: coordinators wait 5 s for the response, and repeat the tasks that were left out."""


def may_be_one_row(error: Exception) -> bool:
    """Whether the error may come from one of several rows; otherwise Postgres as a whole does not work."""
    return not isinstance(error, TryLater) or error.reason in {LOCK_TIMEOUT, STATEMENT_TIMEOUT}


async def without_locked(
    pool: Pool, items: Sequence[Item], work: Callable[[Connection, Sequence[Item]], Awaitable[list[Result]]]
) -> list[Result]:
    """Runs `work` on all items in one transaction. When a row may be at fault, runs it on each item alone and leaves
    out those whose rows are locked or refused.

    Raises the error of a single item.
    """
    if len(items) == 1:
        return await in_transaction(pool, lambda connection: work(connection, items))
    try:
        return await in_transaction(pool, partial(_limited, work, items, _LOCK_SECONDS))
    except Exception as error:
        if not may_be_one_row(error):
            raise
    results: list[Result] = []
    for item in items:
        try:
            results += await in_transaction(pool, partial(_limited, work, [item], _ALONE_LOCK_SECONDS))
        except Exception as error:
            if not may_be_one_row(error):
                raise
            _left_out(item.task_id, error)
    return results


async def each_apart(
    connection: Connection, task_ids: Sequence[str], work: Callable[[str], Awaitable[list[Result]]]
) -> list[Result]:
    """Runs `work` on each task under a savepoint, and leaves out those that fail. For a transaction that is run again
    because a row of the first run was at fault.
    """
    await connection.execute(QUERIES.lock_timeout, {"lock_timeout": f"{round(_ALONE_LOCK_SECONDS * 1000)}ms"})
    results: list[Result] = []
    for task_id in task_ids:
        await _run(connection, b"savepoint one_row")
        try:
            done = await work(task_id)
            await _run(connection, b"release savepoint one_row")
        except Exception as error:  # noqa: BLE001  of a lost connection too: then the next statement fails
            await _run(connection, b"rollback to savepoint one_row")
            _left_out(task_id, error)
        else:
            results += done
    return results


async def _run(connection: Connection, command: bytes) -> None:
    """Runs the queued statements and the command."""
    await (await connection.execute(command)).fetchall()


def _left_out(task_id: str, error: Exception) -> None:
    message = str(error).partition("\n")[0]
    _log.warning("a task was left out: its row is locked or refused", extra={"task": task_id, "error": message})


async def _limited(
    work: Callable[[Connection, Sequence[Item]], Awaitable[list[Result]]],
    items: Sequence[Item],
    lock_seconds: float,
    connection: Connection,
) -> list[Result]:
    await connection.execute(QUERIES.lock_timeout, {"lock_timeout": f"{round(lock_seconds * 1000)}ms"})
    return await work(connection, items)
