"""Compares the ledger's model attempts with the records of the model runners after a restore of either.

The model runner's command `list-calls` writes a line of JSON for each task, in the order of the ids: its newest call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.comparing import RESTORE, Comparison, rows_of
from tenure.runtime.store.postgres import Pool


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


def _record(value: Any) -> RecordedGeneration:
    attempt = int(value["step"]), int(value["attempt_number"])
    return RecordedGeneration(str(UUID(value["task_id"])), str(value["tenant"]), attempt, str(value["sent_at"]))


async def _tasks(pool: Pool, page: dict[str, Any]) -> list[_NewestAttempt]:
    return [_NewestAttempt(*row) for row in await rows_of(pool, RESTORE.page_of_attempts, page)]


def _findings(task: _NewestAttempt, record: RecordedGeneration | None) -> Iterator[ModelCallFinding]:
    newest = task.step, task.number
    if record is not None and record.attempt > newest and record.sent_at:
        yield record.unknown()
    if task.is_open and (record is None or record.attempt != newest):
        yield ModelCallFinding(
            finding=ModelCallFindingKind.LOST_MODEL_CALL,
            task_id=task.task_id,
            tenant=task.tenant,
            step=task.step,
            attempt_number=task.number,
        )


def _unknown(record: RecordedGeneration) -> Iterator[ModelCallFinding]:
    return iter([record.unknown()] if record.sent_at else [])


MODEL_CALLS: Final = Comparison(
    "tenure serve models list-calls", ModelCallFindingKind, _record, _tasks, _findings, _unknown
)
