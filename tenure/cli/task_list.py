"""`tenure list`. It imports little, because people run it all the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import (
    ListColumn,
    ago,
    cut_text,
    distinct_ids,
    fitted_list,
    goal_text,
    harmless,
    lasted,
    make_list,
    seconds_text,
    state_style,
    tokens_total,
)
from tenure.cli.group import SectionedCommand
from tenure.cli.output import echo
from tenure.cli.parameters import find_task
from tenure.cli.task_filter import filter_options, is_empty
from tenure.client import Client
from tenure.domain.budget import money_text
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import held_back_seconds, state_name

GOAL_CHARACTERS: Final = 120


@click.command("list", cls=SectionedCommand)
@filter_options()
@click.option("--forks-of", metavar="TASK", default="", help="Only forks of this task.")
@click.option("--output-kind", metavar="KIND", default="", help="Only tasks with an output of this kind.")
@click.option(
    "--output-uri", metavar="PREFIX", default="", help="Only tasks with an output whose URI begins like this."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Show at most this many.")
@click.option("--count", is_flag=True, help="Show the numbers of the tasks by state instead, up to 10,000 of each.")
@with_client
async def list_tasks(
    context: Context,
    client: Client,
    task_filter: task_pb2.TaskFilter,
    forks_of: str,
    output_kind: str,
    output_uri: str,
    limit: int,
    count: bool,
) -> None:
    """List tasks, the newest first."""
    if output_kind or output_uri:
        task_filter.output.kind, task_filter.output.uri_prefix = output_kind, output_uri

    if forks_of:
        task_filter.forked_from_task_id = await find_task(client, forks_of)
    if count:
        context.show(await client.tasks.CountTasks(api.CountTasksRequest(filter=task_filter)), _show_counts)
        return
    listed = client.list_tasks(task_filter, limit=limit, fresh=True)
    if context.as_json:
        async for task in listed:
            context.emit(task)
    else:
        _show_tasks(context, [task async for task in listed], is_filtered=not is_empty(task_filter))


def _show_counts(context: Context, counted: api.CountTasksResponse) -> None:
    table = make_list("TASKS", "STATE", right=(0,))
    for one in counted.counts:
        state = state_name(one.state)
        table.add_row(f"{one.count:,}{'+' * one.at_least}", Text(state, state_style(state)))
    context.console.print(table)


def _show_tasks(context: Context, tasks: list[task_pb2.Task], *, is_filtered: bool) -> None:
    if not tasks:
        echo("no task matches" if is_filtered else 'no tasks; submit one: tenure submit "…" --watch', err=True)
        return
    context.console.print(task_table(context.console.width, tasks))


def task_table(width: int, tasks: Sequence[task_pb2.Task]) -> Table:
    """Returns the tasks as a table, without the columns for which the width has no place."""
    ids = distinct_ids(task.task_id for task in tasks)
    return fitted_list(
        width,
        ListColumn("TASK", [ids[task.task_id] for task in tasks]),
        ListColumn("STATE", [_state_text(task) for task in tasks]),
        ListColumn("AGENT", [harmless(_agent_text(task.spec)) for task in tasks], rank=4),
        ListColumn("STEPS", [f"{task.step:,}" for task in tasks], rank=5, is_right=True),
        ListColumn("TOKENS", [f"{tokens_total(task.usage):,}" for task in tasks], rank=6, is_right=True),
        ListColumn("COST", [_cost_text(task) for task in tasks], rank=3, is_right=True),
        ListColumn("SUBMITTED", [ago(task.create_time) for task in tasks], rank=1),
        ListColumn("TOOK", [lasted(task) for task in tasks], rank=2),
        ListColumn("GOAL", [cut_text(goal_text(task.spec), GOAL_CHARACTERS) for task in tasks]),
    )


def _agent_text(spec: task_pb2.TaskSpec) -> str:
    """Returns the agent, or else the function or the model."""
    return spec.agent_pin.agent or spec.control.function or spec.agent.model


def _cost_text(task: task_pb2.Task) -> str:
    return money_text(task.used_nano_usd).replace("less than ", "<") if task.used_nano_usd else ""


def _state_text(task: task_pb2.Task) -> Text:
    """Returns the state with what holds the task back, else with the reason if it adds anything."""
    state = state_name(task.state)
    left_seconds = held_back_seconds(task, time.time())
    is_plain_state = not task.reason or state in {"SUCCEEDED", "RUNNING", "QUEUED"}
    text = state if is_plain_state else harmless(f"{state} {task.reason}")
    if left_seconds is not None:
        text = f"{state}, starts in {seconds_text(left_seconds)}"
    elif task.in_line:
        text = f"{state}, in line"
    return Text(text, state_style(state))
