"""One living task per source: what a unique index decides, told in words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from services.checkpoint.queries import QUERIES, fetch_one
from tenure.domain.errors import AlreadyExists, TenureError, Unavailable
from tenure.runtime.postgres_errors import TransactionConflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenure.domain.task import Source
    from tenure.runtime.postgres import Connection


def exclusive_source(source: Source) -> str | None:
    """What the index compares; None: any number of tasks may live."""
    return f"{source.kind.value}/{source.source_id}" if source.exclusive else None


async def refusal_of_source(connection: Connection, tenant: str, source: Source) -> TenureError:
    """Why a task of this source was not created: another one lives, or did a moment ago."""
    parameters = {"tenant": tenant, "exclusive_source": exclusive_source(source) or ""}
    found = await fetch_one(connection, QUERIES.find_exclusive, parameters)
    if found is None:
        return Unavailable("another task of this source has just ended", reason="SOURCE_CHANGED")
    return busy(found[0])


async def check_no_rival(connection: Connection, task_id: str) -> None:
    """Raises AlreadyExists when an ended task cannot live again because another of its source does."""
    found = await fetch_one(connection, QUERIES.find_rival, {"task_id": task_id})
    if found is not None:
        raise busy(found[0])


@contextmanager
def yielding_to_rivals() -> Iterator[None]:
    """Around what lets a task live again. A rival that came meanwhile is met when the transaction is run again."""
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != "tasks_one_per_source":
            raise
        raise TransactionConflict("another task of this source came first") from error


def busy(task_id: str) -> AlreadyExists:
    """What to do instead is said with it."""
    told = f"the task {task_id} of this source has not ended"
    return AlreadyExists(
        f"{told}: speak to it with SendMessage, or cancel it", reason="SOURCE_BUSY", metadata={"task_id": task_id}
    )
