"""Keeps a locked row from harming the other tasks of a batch."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from services.checkpoint.queries import QUERIES, in_ledger_transaction
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc_status import LOCK_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from tenure.runtime.postgres import Connection, Pool

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


async def without_locked(
    pool: Pool, items: Sequence[Item], work: Callable[[Connection, Sequence[Item]], Awaitable[list[Result]]]
) -> list[Result]:
    """Runs `work` on all items in one transaction. When another transaction keeps a row, runs it on each item alone and
    leaves out those whose rows are locked.

    Raises Unavailable (LOCK_TIMEOUT) for a single item.
    """
    if len(items) == 1:
        return await in_ledger_transaction(pool, lambda connection: work(connection, items))
    try:
        return await in_ledger_transaction(pool, partial(_limited, work, items, _LOCK_SECONDS))
    except Unavailable as error:
        if error.reason != LOCK_TIMEOUT:
            raise
    results: list[Result] = []
    for item in items:
        try:
            results += await in_ledger_transaction(pool, partial(_limited, work, [item], _ALONE_LOCK_SECONDS))
        except Unavailable as error:
            if error.reason != LOCK_TIMEOUT:
                raise
            _log.warning("a task was left out of a batch: its row is locked", extra={"task": item.task_id})
    return results


async def _limited(
    work: Callable[[Connection, Sequence[Item]], Awaitable[list[Result]]],
    items: Sequence[Item],
    lock_seconds: float,
    connection: Connection,
) -> list[Result]:
    await connection.execute(QUERIES.lock_timeout, {"lock_timeout": f"{round(lock_seconds * 1000)}ms"})
    return await work(connection, items)
