"""Acts on many tasks, for `tenure cancel` and `tenure admin requeue`, `wait` and `continue`: by ids, or by a filter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final
from uuid import uuid4

import click
from rich.text import Text

from tenure.cli.context import Context
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import count_text, harmless, make_list, seconds_text, short_id, state_style, why
from tenure.cli.output import echo
from tenure.cli.parameters import find_task
from tenure.cli.questions import confirm, is_interactive
from tenure.cli.task_filter import filter_options, is_empty
from tenure.client import Client
from tenure.domain.errors import TryLater
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_pb2
from tenure.wire.common import state_name

Callback = Callable[..., Any]
_SHOWN_SECONDS: Final = 90.0
"""The question names a longer duration."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command acts on, and how: the options that `many_tasks` adds."""

    tasks: Sequence[str]
    task_filter: task_pb2.TaskFilter
    per_second: int
    operation_id: str
    is_confirmed: bool = False
    only_shows: bool = False

    @property
    def single(self) -> str:
        """The task, if the command names one task only; else "", also if it continues an operation."""
        is_one = len(self.tasks) == 1 and is_empty(self.task_filter)
        return self.tasks[0] if is_one and not self.only_shows and not self.operation_id else ""


def many_tasks(command: Callback) -> Callback:
    """Adds the argument TASK…, the filter and the options of an operation. Passes them as `selection`."""

    @wraps(command)
    def selecting(
        *arguments: Any,
        tasks: tuple[str, ...],
        task_filter: task_pb2.TaskFilter,
        per_second: int,
        operation_id: str,
        yes: bool,
        dry_run: bool,
        **options: Any,
    ) -> Any:
        selection = Selection(tasks, task_filter, per_second, operation_id, yes, dry_run)
        if not tasks and is_empty(selection.task_filter):
            raise click.UsageError("name tasks, or select them with --state, --label, --since …")
        return command(*arguments, selection=selection, **options)

    decorated: Callback = selecting
    for option in (
        click.option("--dry-run", is_flag=True, help="Only show which tasks match."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option(
            "--operation",
            "operation_id",
            default="",
            metavar="ID",
            help="Continue an operation on many tasks that was interrupted: it acts on no task twice.",
        ),
        click.option(
            "--rate",
            "per_second",
            type=click.IntRange(1, 1000),
            default=20,
            show_default=True,
            help="Of many tasks, act on at most this many in a second.",
        ),
        filter_options(reasons="--state-reason"),
        click.argument("tasks", metavar="[TASK]...", nargs=-1),
    ):
        decorated = option(decorated)
    return decorated


async def act_on_many(
    context: Context, client: Client, selection: Selection, did: str, reason: str, **act: Any
) -> None:
    """Shows what is selected, asks, acts, and prints the outcomes. Exits with REFUSED if a task refused the act.

    `did`: the participle of the verb. `act`: a field of ActOnTasksRequest.
    """
    request = admin_pb.ActOnTasksRequest(
        operation_id=selection.operation_id or uuid4().hex[:12],
        filter=selection.task_filter,
        reason=reason,
        tasks_per_second=selection.per_second,
        **act,
    )
    if not selection.is_confirmed and not selection.only_shows and not is_interactive():
        raise click.UsageError("outside of a terminal give --yes; --dry-run shows what would be done")
    request.filter.task_ids.extend([await find_task(client, task) for task in selection.tasks])
    if selection.only_shows or not selection.is_confirmed:
        tasks = await _preview(context, client, request)
        if not tasks or selection.only_shows:
            return
        await confirm(f"{did.capitalize()}: {tasks}. Go on?")
    results = await _act(context, client, request, did)
    if not context.as_json:
        echo(_summary(results, did))
    if results[admin_pb.ACT_RESULT_REFUSED]:
        raise SystemExit(Exit.REFUSED)


async def _preview(context: Context, client: Client, request: admin_pb.ActOnTasksRequest) -> str:
    """Shows the selected tasks, by state and reason. Returns their number in words; "" for none."""
    wanted = admin_pb.ActOnTasksRequest()
    wanted.CopyFrom(request)
    wanted.dry_run = True
    counted = await client.act_on_tasks(wanted)
    table = make_list("TASKS", "STATE", "SUCH AS")
    table.columns[0].justify = "right"
    for group in counted.groups:
        if context.as_json:
            context.emit(group)
        state = Text(harmless(why(group.state, group.reason, "")), state_style(state_name(group.state)))
        table.add_row(f"{group.count:,}", state, " ".join(map(short_id, group.task_ids)))
    if not counted.groups:
        beyond = "no task matches of those that a preview reads, the newest 100,000; others may match"
        echo(beyond if counted.more else "no task matches", err=True)
        return "the tasks that match" if counted.more else ""
    if not context.as_json:
        context.console.print(table)
    total = sum(group.count for group in counted.groups)
    seconds = total / request.tasks_per_second
    long = f" in about {seconds_text(seconds)}" if seconds >= _SHOWN_SECONDS else ""
    return f"{count_text(total, 'task')}{' or more' if counted.more else ''}{long}"


async def _act(context: Context, client: Client, request: admin_pb.ActOnTasksRequest, did: str) -> Counter[int]:
    """Acts page by page. Says how to continue when it cannot."""
    results = Counter[int]()
    try:
        while True:
            page = await client.act_on_tasks(request)
            for outcome in page.outcomes:
                results[outcome.result] += 1
                _show(context, outcome, did)
            request.page_token = page.next_page_token
            if not request.page_token:
                return results
    except (TryLater, asyncio.CancelledError):  # the latter: Ctrl-C
        again = f"the same command with --operation {request.operation_id}"
        echo(f"{_summary(results, did)}; to continue: {again}", err=True)
        raise


def _show(context: Context, outcome: admin_pb.ActOnTasksResponse.Outcome, did: str) -> None:
    if context.as_json:
        context.emit(outcome)
    elif outcome.result == admin_pb.ACT_RESULT_REFUSED:
        echo(f"{short_id(outcome.task_id)} refused: {outcome.message or outcome.reason}")
    elif outcome.result == admin_pb.ACT_RESULT_ALREADY:
        echo(f"{short_id(outcome.task_id)} already {did}")
    elif outcome.state == task_pb2.TASK_STATE_RUNNING:
        echo(f"{short_id(outcome.task_id)} will be {did}; now it is RUNNING")
    else:
        echo(f"{short_id(outcome.task_id)} {did}")


def _summary(results: Counter[int], did: str) -> str:
    done = f"{count_text(results[admin_pb.ACT_RESULT_DONE], 'task')} {did}"
    rest = ((admin_pb.ACT_RESULT_ALREADY, "already"), (admin_pb.ACT_RESULT_REFUSED, "refused"))
    return ", ".join([done, *(f"{results[result]:,} {word}" for result, word in rest if results[result])])
