"""Compares the ledger's model attempts with the records of the model runners after a restore of either.

The model runner's command `list-calls` writes a line of JSON for each task, in the order of the ids: its newest call.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.comparing import PAGE, RESTORE
from services.checkpoint.queries import fetch_all, ledger_connection
from tenure.runtime.postgres import Pool

_FIRST: Final = str(UUID(int=0))
_LAST: Final = str(UUID(int=(1 << 128) - 1))


class ModelCallFindingKind(StrEnum):
    """The kinds of findings about a model call."""

    LOST_MODEL_CALL = "LOST_MODEL_CALL"
    """The ledger's attempt is open, and the runners do not have its call. It may have been sent, and is sent again."""
    UNKNOWN_MODEL_CALL = "UNKNOWN_MODEL_CALL"
    """The runners sent a call of which the ledger has no attempt: the ledger is the older one, and does not bill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallFinding:
    """One line of the comparison."""

    finding: ModelCallFindingKind
    task_id: str
    tenant: str
    step: int
    attempt_number: int
    sent_at: str = ""


class RecordedGeneration(NamedTuple):
    """The newest call of a task as the model runners know it. `sent_at` "": it was not sent."""

    task_id: str
    tenant: str
    attempt: tuple[int, int]
    sent_at: str

    @classmethod
    def read(cls, line: str) -> RecordedGeneration:
        """Reads a line of `list-calls`. Raises ValueError for any other text."""
        try:
            value = json.loads(line)
            attempt = int(value["step"]), int(value["attempt_number"])
            return cls(str(UUID(value["task_id"])), str(value["tenant"]), attempt, str(value["sent_at"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a line of `tenure serve models list-calls`: {line.strip()[:80]!r}") from error

    def unknown(self) -> ModelCallFinding:
        """Returns the finding of a call that the ledger does not know."""
        step, number = self.attempt
        return ModelCallFinding(
            finding=ModelCallFindingKind.UNKNOWN_MODEL_CALL,
            task_id=self.task_id,
            tenant=self.tenant,
            step=step,
            attempt_number=number,
            sent_at=self.sent_at,
        )


class _NewestAttempt(NamedTuple):
    """The newest model attempt of a task in the ledger. `is_open`: it is open, and a model runner makes its call."""

    task_id: str
    tenant: str
    step: int
    number: int
    is_open: bool


async def compare_model_calls(pool: Pool, lines: Iterable[str]) -> AsyncIterator[ModelCallFinding]:
    """Yields the findings by task. `lines`: those of `list-calls`. Raises ValueError for other lines."""
    recorded, after = map(RecordedGeneration.read, filter(str.strip, lines)), _FIRST
    while after != _LAST:
        lines_read = list(islice(recorded, PAGE))
        page = {call.task_id: call for call in lines_read}
        if page and (min(page) <= after or [call.task_id for call in lines_read] != sorted(page)):
            raise ValueError("the lines are not those of one `tenure serve models list-calls`, in its order")
        until = max(page) if len(page) == PAGE else _LAST
        async for finding in _compare_range(pool, page, after, until):
            yield finding
        after = until


async def _compare_range(
    pool: Pool, page: dict[str, RecordedGeneration], after: str, until: str
) -> AsyncIterator[ModelCallFinding]:
    unknown = dict(page)
    while True:
        rows = await _rows(pool, RESTORE.page_of_attempts, {"after": after, "until": until, "limit": PAGE})
        for task in map(_NewestAttempt._make, rows):
            for finding in _findings(task, unknown.pop(task.task_id, None)):
                yield finding
        if len(rows) < PAGE:
            break
        after = rows[-1][0]
    pruned = {row[0] for row in await _rows(pool, RESTORE.known_by_prunings, {"task_ids": list(unknown)})}
    for call in unknown.values():
        if call.sent_at and call.task_id not in pruned:
            yield call.unknown()


def _findings(task: _NewestAttempt, recorded: RecordedGeneration | None) -> Iterator[ModelCallFinding]:
    newest = task.step, task.number
    if recorded is not None and recorded.attempt > newest and recorded.sent_at:
        yield recorded.unknown()
    if task.is_open and (recorded is None or recorded.attempt != newest):
        yield ModelCallFinding(
            finding=ModelCallFindingKind.LOST_MODEL_CALL,
            task_id=task.task_id,
            tenant=task.tenant,
            step=task.step,
            attempt_number=task.number,
        )


async def _rows(pool: Pool, statement: Any, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    async with ledger_connection(pool) as connection:
        return await fetch_all(connection, statement, parameters)
