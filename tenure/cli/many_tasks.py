"""Acts on many tasks, for `tenure cancel` and `tenure admin requeue`, `wait` and `continue`: by ids, or by a filter."""

from __future__ import annotations

import asyncio
import sys
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
from tenure.cli.task_filter import filter_options, is_empty
from tenure.client import Client
from tenure.domain.errors import TryLater
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_pb2
from tenure.wire.common import state_name

Callback = Callable[..., Any]
_SHOWN_SECONDS: Final = 90.0
"""The least duration that the question tells."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command acts on, and how: the options that `many_tasks` adds."""

    tasks: Sequence[str]
    task_filter: task_pb2.TaskFilter
    per_second: int
    operation_id: str
    is_confirmed: bool

    @property
    def single(self) -> str:
        """The task, if the command names one task only; else ""."""
        return self.tasks[0] if len(self.tasks) == 1 and is_empty(self.task_filter) else ""


def many_tasks(command: Callback) -> Callback:
    """Adds the argument TASK…, the filter and the options of an operation. Passes them as `selection`."""

    @wraps(command)
    def selecting(
        *arguments: Any, tasks: tuple[str, ...], per_second: int, operation_id: str, yes: bool, **options: Any
    ) -> Any:
        selection = Selection(tasks, options.pop("task_filter"), per_second, operation_id, yes)
        if not tasks and is_empty(selection.task_filter):
            raise click.UsageError("name tasks, or select them with --state, --label, --since …")
        return command(*arguments, selection=selection, **options)

    decorated: Callback = selecting
    for option in (
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


def act_on_many(context: Context, selection: Selection, did: str, reason: str, **act: Any) -> None:
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

    async def work(client: Client) -> Counter[int]:
        request.filter.task_ids.extend([await find_task(client, task) for task in selection.tasks])
        if not selection.is_confirmed:
            request.dry_run = True
            await _confirm(context, client, request, did)
            request.dry_run = False
        return await _act(context, client, request, did)

    results = context.run(work)
    if not context.as_json:
        echo(_summary(results, did))
    if results[admin_pb.ACT_RESULT_REFUSED]:
        raise SystemExit(Exit.REFUSED)


async def _confirm(context: Context, client: Client, request: admin_pb.ActOnTasksRequest, did: str) -> None:
    """Shows the groups of the selected tasks, and asks. Raises Abort, or UsageError where nobody can answer."""
    counted = await client.act_on_tasks(request)
    total = sum(group.count for group in counted.groups)
    if not total:
        return
    table = make_list("TASKS", "STATE", "SUCH AS")
    table.columns[0].justify = "right"
    for group in counted.groups:
        state = state_name(group.state)
        tasks = " ".join(map(short_id, group.task_ids))
        table.add_row(f"{group.count:,}", Text(harmless(why(group.state, group.reason, "")), state_style(state)), tasks)
    if not context.as_json:
        context.console.print(table)
    count = f"{count_text(total, 'task')}{' or more' if counted.more else ''}"
    seconds = total / request.tasks_per_second
    question = f"{count} will be {did}, {request.tasks_per_second} in a second{_long(seconds)}. Go on?"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{count} would be {did}: give --yes")
    click.confirm(question, abort=True, err=context.as_json)


def _long(seconds: float) -> str:
    return f": in about {seconds_text(seconds)}" if seconds >= _SHOWN_SECONDS else ""


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
