"""One task's part of a history, in the order in which checks read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from tenure.audit import history as seen

SOURCES: Final = tuple(
    field.name for field in fields(seen.History) if field.name not in {"settled", "healthy", "clock_slack_seconds"}
)
FLAGS: Final = ("settled", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """What is known of one task; task_id "" has the records that name none.

    `collected`: the sources that were, and the flags that are set. `entries` are by sequence, `bills` and `model_calls`
    by step and attempt, `grants`, `effects`, `operations` and `subscriptions` as they came, `calls` by their ids.
    `lost_request_ids`: of submits whose answer nobody got.
    """

    task_id: str
    collected: frozenset[str]
    row: seen.TaskRow | None = None
    entries: tuple[seen.LedgerEntry, ...] = ()
    budget: seen.BudgetRow | None = None
    bills: tuple[seen.Bill, ...] = ()
    grants: tuple[seen.Grant, ...] = ()
    generations: tuple[seen.GenerationChange, ...] = ()
    refusals: tuple[seen.Refusal, ...] = ()
    fence: seen.ToolFence | None = None
    calls: tuple[seen.Call, ...] = ()
    effects: tuple[seen.Effect, ...] = ()
    model_calls: tuple[seen.ModelCall, ...] = ()
    operations: tuple[seen.Operation, ...] = ()
    subscriptions: tuple[seen.Subscription, ...] = ()
    lost_request_ids: frozenset[str] = frozenset()
    clock_slack_seconds: float = 0.0
    unix_minus_monotonic_seconds: float | None = None


def collected_in(history: seen.History) -> frozenset[str]:
    """Which sources there are, and which flags are set."""
    sources = {name for name in SOURCES if getattr(history, name) is not None}
    return frozenset(sources | {name for name in FLAGS if getattr(history, name)})


def split(history: seen.History) -> Iterator[TaskHistory]:
    """By task, in the order of their ids; first what names no task."""
    parts: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for name in SOURCES:
        records = getattr(history, name)
        if isinstance(records, tuple):
            for record in records:
                parts[_task_of(record)][name].append(record)
    collected = collected_in(history)
    lost = _lost_request_ids(history)
    for task_id in sorted(parts):
        yield _assemble(task_id, collected, parts[task_id], history, lost)


def _lost_request_ids(history: seen.History) -> frozenset[str]:
    submits = (op for op in history.operations or () if op.method is seen.Method.SUBMIT and not op.task_id)
    return frozenset(op.request_id for op in submits if op.answer is seen.Answer.UNKNOWN)


def _task_of(record: object) -> str:
    if isinstance(record, seen.BudgetRow):
        return record.root_task_id
    return getattr(record, "task_id", "")


def _assemble(
    task_id: str, collected: frozenset[str], part: dict[str, list[Any]], whole: seen.History, lost: frozenset[str]
) -> TaskHistory:
    return TaskHistory(
        task_id=task_id,
        collected=collected,
        row=_newest(part["tasks"]),
        entries=tuple(sorted(part["entries"], key=lambda entry: entry.sequence)),
        budget=_newest(part["budgets"]),
        bills=tuple(sorted(part["bills"], key=lambda bill: (bill.step, bill.attempt_number))),
        grants=tuple(part["grants"]),
        generations=tuple(part["generations"]),
        refusals=tuple(part["refusals"]),
        fence=_newest(part["fences"]),
        calls=tuple(sorted(part["calls"], key=lambda call: call.call_id)),
        effects=tuple(part["effects"]),
        model_calls=tuple(sorted(part["model_calls"], key=lambda call: (call.step, call.attempt_number))),
        operations=tuple(part["operations"]),
        subscriptions=tuple(part["subscriptions"]),
        lost_request_ids=lost,
        clock_slack_seconds=whole.clock_slack_seconds,
        unix_minus_monotonic_seconds=whole.unix_minus_monotonic_seconds,
    )


def _newest(records: Iterable[Any]) -> Any:
    return next(reversed(list(records)), None)
