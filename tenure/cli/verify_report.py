"""The work of `tenure admin verify`: chooses tasks, checks them, and prints violations and the summary."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Final

from rich.console import Console

from checker.check import INVARIANTS
from checker.collect import COLLECTED, collect_each
from checker.history import split
from checker.verify import Examination, Report, Violation
from tenure.cli.context import Context
from tenure.cli.formatting import count_text, make_table
from tenure.cli.output import echo
from tenure.cli.parameters import find_task
from tenure.client import Client
from tenure.wire.common import unix_seconds

CLOCK_SLACK_SECONDS: Final = 5.0
"""How much the clocks of services and databases may differ before the checker reports a violation."""

TASKS_AT_ONCE: Final = 500
_MISSING_SOURCES: Final = {
    "effects": "the effects of tools outside",
    "generations": "the history of etcd",
    "grants": "the history of etcd",
    "model_calls": "the bill of the model provider",
    "operations": "the answers that clients got",
    "subscriptions": "the events that watchers got",
    "settled": "whether all faults are over",
    "healthy": "the events that watchers got",
    "unix_minus_monotonic_seconds": "the events that watchers got",
}


async def examine(context: Context, client: Client, task_ids: AsyncGenerator[str], *, skip_pruned: bool) -> Report:
    """Checks task by task and prints each violation at once, because a long check takes time."""
    examination = Examination(COLLECTED)
    shown: set[Violation] = set()
    console = Console(quiet=True) if context.as_json else context.console
    with console.status("reading tasks") as status:  # shown on a terminal only
        async with aclosing(task_ids):
            async for batch in _batches(task_ids, TASKS_AT_ONCE):
                async with aclosing(collect_each(client, batch, skip_pruned=skip_pruned)) as histories:
                    async for history in histories:
                        for task in split(replace(history, clock_slack_seconds=CLOCK_SLACK_SECONDS)):
                            violations = examination.add(task)
                            shown.update(violations)
                            _show(context, violations)
                        status.update(f"checked {count_text(examination.tasks, 'task')}")
    report = examination.report()
    _show(context, [violation for violation in report.violations if violation not in shown])
    return report


async def chosen(client: Client, named: Sequence[str], since: float | None, limit: int) -> AsyncGenerator[str]:
    """Yields the given tasks, or else the newest."""
    for prefix in named:
        yield await find_task(client, prefix)
    if named:
        return
    oldest = 0.0 if since is None else time.time() - since
    async with aclosing(client.list_tasks(limit=limit, fresh=True)) as listed:
        async for task in listed:
            if unix_seconds(task.create_time) < oldest:
                return
            yield task.task_id


async def _batches(task_ids: AsyncIterator[str], size: int) -> AsyncIterator[list[str]]:
    batch: list[str] = []
    async for task_id in task_ids:
        batch.append(task_id)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _show(context: Context, violations: Iterable[Violation]) -> None:
    for violation in violations:
        if context.as_json:
            context.emit(asdict(violation))
        else:
            line = f"{violation.invariant:<4} {violation.task_id}  {violation.message}"
            context.console.print(line, markup=False, soft_wrap=True)


def print_summary(context: Context, report: Report, *, invariants: bool) -> None:
    """Prints the summary, on standard output too: what was not checked is a part of the answer.

    `invariants`: names those that were checked, and the data that others need.
    """
    if context.as_json:
        numbers = {"tasks": report.tasks, "entries": report.entries, "calls": report.calls, "unread": report.unread}
        checks = [asdict(run) for run in report.runs]
        context.emit({**numbers, "violations": len(report.violations), "checks": checks})
        return
    for name, text in _summary(report, invariants=invariants):
        echo(f"{name:<10} {text}")


def _summary(report: Report, *, invariants: bool) -> Iterator[tuple[str, str]]:
    if not report.tasks:
        yield "checked", "nothing: no task was found"
        return
    entries = count_text(report.entries, "entry", "entries")
    yield "checked", f"{count_text(report.tasks, 'task')}, {entries}, {count_text(report.calls, 'tool call')}"
    if report.violations:
        tasks = len({violation.task_id for violation in report.violations})
        violated = _numbers(violation.invariant for violation in report.violations)
        yield "found", f"{count_text(len(report.violations), 'violation')} of {violated} in {count_text(tasks, 'task')}"
        yield "", "`tenure tasks entries TASK` and `tenure tasks refusals TASK` show what happened"
    else:
        yield "found", "no violation"
    if report.unread:
        yield "unread", f"{count_text(report.unread, 'entry', 'entries')} of kinds that this version does not know"
    if not invariants:
        yield "", "not all invariants can be checked from here: --invariants shows which, and what is missing"
        return
    yield "invariants", f"{_numbers(run.invariant for run in report.runs if not run.why_not)} were checked"
    for source, numbers in _missing(report).items():
        yield "missing", f"{source}, which {numbers} also need"
    yield "", "`tenure admin verify --explain` lists the invariants"


def _missing(report: Report) -> dict[str, str]:
    """Returns the data that this command cannot read, each with the invariants that also need it.

    These invariants are checked in part, or not at all.
    """
    invariants: defaultdict[str, set[str]] = defaultdict(set)
    for run in report.not_run:
        for source in run.missing:
            invariants[_MISSING_SOURCES.get(source, source)].add(run.invariant)
    return {source: _numbers(numbers) for source, numbers in sorted(invariants.items())}


def _numbers(invariants: Iterable[str]) -> str:
    return " ".join(sorted(set(invariants), key=lambda invariant: int(invariant[1:])))


def explain(context: Context) -> None:
    if context.as_json:
        for number, invariant in INVARIANTS.items():
            context.emit({"invariant": number, **asdict(invariant)})
        return
    table = make_table("INVARIANT", "STATEMENT", "CHECKED ELSEWHERE BY")
    for number, invariant in INVARIANTS.items():
        table.add_row(number, invariant.says, invariant.elsewhere)
    context.console.print(table)
