"""`tenure admin verify`: whether what must always be true of tasks is true of these."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Final

import click
from rich.console import Console

from checker.check import INVARIANTS
from checker.collect import COLLECTED, collect_each
from checker.history import split
from checker.verify import Examination, Report, Violation
from tenure.cli.context import Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import count_text, make_table
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, find_task
from tenure.client import Client
from tenure.wire.common import unix_seconds

CLOCK_SLACK_SECONDS: Final = 5.0
"""By how much the clocks of services may differ from their databases' before it is taken for a fault."""

TASKS_AT_ONCE: Final = 500
_NOT_SEEN: Final = {
    "effects": "what tools did outside",
    "generations": "etcd's history",
    "grants": "etcd's history",
    "model_calls": "the provider's bill",
    "operations": "what clients were answered",
    "subscriptions": "what watchers were told",
    "settled": "whether faults are over",
    "healthy": "what watchers were told",
    "unix_minus_monotonic_seconds": "what watchers were told",
}


@click.command(short_help="Check that no rule was broken in TASKs.")
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--since", type=DURATION, help="Only tasks submitted in the last 90s, 10m, 2h, …")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many, the newest first."
)
@click.option("--explain", is_flag=True, help="Say what the rules are, and check nothing.")
@pass_context
def verify(context: Context, tasks: tuple[str, ...], since: float | None, limit: int, explain: bool) -> None:
    """Read the ledger and the tools' records of TASKs, or of the newest tasks, and check what must always be true.

    Nothing is changed, and tasks may run meanwhile. One line for each broken rule, then what was looked at and what
    could not be seen from here. The exit code is 7 when a rule was broken.
    """
    if explain:
        _explain(context)
        return
    report = context.run(
        lambda client: _examine(context, client, _chosen(client, tasks, since, limit), skip_pruned=not tasks)
    )
    _tell(context, report)
    if report.violations:
        click.get_current_context().exit(Exit.BROKEN_RULE)


async def _examine(context: Context, client: Client, task_ids: AsyncGenerator[str], *, skip_pruned: bool) -> Report:
    """Task by task, each violation told as it is found: a long check is read while it goes on."""
    examination = Examination(COLLECTED)
    shown: set[Violation] = set()
    console = Console(quiet=True) if context.as_json else context.console
    with console.status("reading tasks") as status:  # for people at a terminal; a pipe never sees it
        async with aclosing(task_ids):
            async for some in _portions(task_ids, TASKS_AT_ONCE):
                async with aclosing(collect_each(client, some, skip_pruned=skip_pruned)) as histories:
                    async for history in histories:
                        for task in split(replace(history, clock_slack_seconds=CLOCK_SLACK_SECONDS)):
                            violations = examination.add(task)
                            shown.update(violations)
                            _show(context, violations)
                        status.update(f"checked {count_text(examination.tasks, 'task')}")
    report = examination.report()
    _show(context, [violation for violation in report.violations if violation not in shown])
    return report


async def _chosen(client: Client, named: Sequence[str], since: float | None, limit: int) -> AsyncGenerator[str]:
    """The tasks that were named, or the newest."""
    for prefix in named:
        yield await find_task(client, prefix)
    if named:
        return
    oldest = 0.0 if since is None else time.time() - since
    async with aclosing(client.list_tasks(limit=limit)) as listed:
        async for task in listed:
            if unix_seconds(task.create_time) < oldest:
                return
            yield task.task_id


async def _portions(task_ids: AsyncIterator[str], size: int) -> AsyncIterator[list[str]]:
    portion: list[str] = []
    async for task_id in task_ids:
        portion.append(task_id)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion


def _show(context: Context, violations: Iterable[Violation]) -> None:
    for violation in violations:
        if context.as_json:
            context.emit(asdict(violation))
        else:
            line = f"{violation.invariant:<4} {violation.task_id}  {violation.message}"
            context.console.print(line, markup=False, soft_wrap=True)


def _tell(context: Context, report: Report) -> None:
    """The summary: on standard output too, because what was not looked at belongs to the answer."""
    if context.as_json:
        numbers = {"tasks": report.tasks, "entries": report.entries, "calls": report.calls, "unread": report.unread}
        checks = [asdict(run) for run in report.runs]
        context.emit({**numbers, "violations": len(report.violations), "checks": checks})
        return
    for name, text in _summary(report):
        echo(f"{name:<8} {text}")


def _summary(report: Report) -> Iterator[tuple[str, str]]:
    if not report.tasks:
        yield "checked", "nothing: there is no such task"
        return
    entries = count_text(report.entries, "entry", "entries")
    yield "checked", f"{count_text(report.tasks, 'task')}, {entries}, {count_text(report.calls, 'tool call')}"
    if report.violations:
        tasks = len({violation.task_id for violation in report.violations})
        rules = _numbers(violation.invariant for violation in report.violations)
        yield "found", f"{count_text(len(report.violations), 'violation')} of {rules} in {count_text(tasks, 'task')}"
        yield "", "`tenure entries TASK` and `tenure refusals TASK` show what happened"
    else:
        yield "found", "no rule is broken"
    yield "rules", f"{_numbers(run.invariant for run in report.runs if not run.why_not)} were checked"
    if report.unread:
        yield "unread", f"{count_text(report.unread, 'entry', 'entries')} of kinds that only a newer version knows"
    for what, numbers in _unseen(report).items():
        yield "unseen", f"{what}, which {numbers} would need as well"
    yield "", "`tenure admin verify --explain` says what each rule is"


def _unseen(report: Report) -> dict[str, str]:
    """What could not be seen from here, and the rules that are therefore checked in part or not at all."""
    rules: defaultdict[str, set[str]] = defaultdict(set)
    for run in report.not_run:
        for source in run.missing:
            rules[_NOT_SEEN.get(source, source)].add(run.invariant)
    return {what: _numbers(numbers) for what, numbers in sorted(rules.items())}


def _numbers(invariants: Iterable[str]) -> str:
    return " ".join(sorted(set(invariants), key=lambda invariant: int(invariant[1:])))


def _explain(context: Context) -> None:
    if context.as_json:
        for number, invariant in INVARIANTS.items():
            context.emit({"invariant": number, **asdict(invariant)})
        return
    table = make_table("RULE", "WHAT MUST BE TRUE", "IF NOT HERE: WHO CHECKS IT")
    for number, invariant in INVARIANTS.items():
        table.add_row(number, invariant.says, invariant.elsewhere)
    context.console.print(table)
