"""Compares the ledger with the records of the tool service or of the model runners after a restore, when both may be of
different moments.

The commands `list-records` and `list-calls` write a line of JSON for each task, in the order of the ids. `compare`
walks through the ledger in the same order, so that it holds one page of either in memory.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from services.checkpoint.queries import fetch_all
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.runtime.store.sql import Queries

RESTORE: Final = Queries.load("services.checkpoint", "sql/restore.sql")
PAGE: Final = 500
_FIRST: Final = str(UUID(int=0))
_LAST: Final = str(UUID(int=(1 << 128) - 1))


class _OfTask(Protocol):
    @property
    def task_id(self) -> str: ...


TaskT = TypeVar("TaskT", bound=_OfTask)
RecordT = TypeVar("RecordT", bound=_OfTask)
FindingT = TypeVar("FindingT")


class Comparison(NamedTuple, Generic[TaskT, RecordT, FindingT]):
    """How one kind of records is compared with the ledger.

    - `command`: writes the lines of the records. `kinds`: of findings
    - `record`: returns the record of a line. Raises KeyError, TypeError or ValueError for another value
    - `tasks`: returns a page of the ledger's tasks, in the order of the ids
    - `findings`: of a task that the ledger has. `unknown`: of a task that it does not have
    """

    command: str
    kinds: Iterable[str]
    record: Callable[[Any], RecordT]
    tasks: Callable[[Pool, dict[str, Any]], Awaitable[Sequence[TaskT]]]
    findings: Callable[[TaskT, RecordT | None], Iterable[FindingT]]
    unknown: Callable[[RecordT], Iterable[FindingT]]


async def compare(
    comparison: Comparison[TaskT, RecordT, FindingT], pool: Pool, lines: Iterable[str]
) -> AsyncIterator[FindingT]:
    """Yields the findings, task by task. `lines`: of the command. Raises ValueError for other lines."""
    records, after = (_read(comparison, line) for line in lines if line.strip()), _FIRST
    while after != _LAST:
        recorded = list(islice(records, PAGE))
        page = {record.task_id: record for record in recorded}
        if page and (min(page) <= after or [record.task_id for record in recorded] != sorted(page)):
            raise ValueError(f"the lines are not those of one `{comparison.command}`, in its order")
        until = max(page) if len(page) == PAGE else _LAST
        async for finding in _compare_range(comparison, pool, page, after, until):
            yield finding
        after = until


async def _compare_range(
    comparison: Comparison[TaskT, RecordT, FindingT], pool: Pool, page: dict[str, RecordT], after: str, until: str
) -> AsyncIterator[FindingT]:
    unknown, is_full = dict(page), True
    while is_full:
        tasks = await comparison.tasks(pool, {"after": after, "until": until, "limit": PAGE})
        for task in tasks:
            for finding in comparison.findings(task, unknown.pop(task.task_id, None)):
                yield finding
        is_full = len(tasks) == PAGE
        after = tasks[-1].task_id if tasks else after
    pruned = {task_id for (task_id,) in await rows_of(pool, RESTORE.known_by_prunings, {"task_ids": list(unknown)})}
    for record in unknown.values():
        if record.task_id not in pruned:
            for finding in comparison.unknown(record):
                yield finding


def _read(comparison: Comparison[TaskT, RecordT, FindingT], line: str) -> RecordT:
    try:
        return comparison.record(json.loads(line))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a line of `{comparison.command}`: {line.strip()[:80]!r}") from error


async def rows_of(pool: Pool, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement."""
    async with pool_connection(pool) as connection:
        return await fetch_all(connection, statement, parameters)
