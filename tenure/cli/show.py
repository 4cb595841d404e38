"""`tenure get`, `list` and `entries`: how tasks stand, and what their ledger says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.doubts_shown import doubts_text
from tenure.cli.facts import describe, goal_text, kind_name, style_of
from tenure.cli.output import echo
from tenure.cli.parameters import LABEL, find_task, task_argument
from tenure.cli.results import result_shown
from tenure.cli.tables import make_grid, make_table
from tenure.cli.waits import wait_rows
from tenure.cli.words import (
    ago,
    budget_text,
    clock,
    count_text,
    distinct_ids,
    harmless,
    lasted,
    model_text,
    money_cap_text,
    one_line,
    seconds_text,
    start_text,
    state_style,
    tokens_total,
    usage_text,
    why,
)
from tenure.client import Client
from tenure.domain.epochs import describe_epoch
from tenure.domain.money import money_text, usd
from tenure.domain.states import TaskState
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.enums import STATES, state_name
from tenure.wire.task import held_back_seconds

SHOWN_FORKS: Final = 5


@click.command(short_help="Show how TASK stands.")
@task_argument
@pass_context
def get(context: Context, task: str) -> None:
    """Show how TASK stands. The exit code is 0 in whatever state it is."""

    async def work(client: Client) -> None:
        found = await client.get(await find_task(client, task))
        if context.as_json:
            context.emit(found)
        else:
            forks = client.list_tasks(task_pb2.TaskFilter(forked_from_task_id=found.task_id), limit=SHOWN_FORKS)
            _show_task(context, found, [fork.task_id async for fork in forks])

    context.run(work)


@click.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([state.value for state in TaskState], case_sensitive=False)
)
@click.option("--label", "labels", type=LABEL, multiple=True, help="key=value; all that are given must match.")
@click.option("--queue", default="", help="Only this queue.")
@click.option("--forks-of", metavar="TASK", default="", help="Only tasks that were forked from this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@pass_context
def list_tasks(
    context: Context,
    states: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    queue: str,
    forks_of: str,
    limit: int,
) -> None:
    """List tasks, newest first."""
    wanted = task_pb2.TaskFilter(
        states=[STATES.to_wire(TaskState(state)) for state in states], labels=dict(labels), queue=queue
    )

    async def work(client: Client) -> None:
        if forks_of:
            wanted.forked_from_task_id = await find_task(client, forks_of)
        listed = client.list_tasks(wanted, limit=limit)
        if context.as_json:
            async for task in listed:
                context.emit(task)
        else:
            _show_tasks(context, [task async for task in listed])

    context.run(work)


@click.command(short_help="Show TASK's ledger, entry by entry.")
@task_argument
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only entries after this one.")
@pass_context
def entries(context: Context, task: str, after: int) -> None:
    """Show TASK's ledger: every fact, in order, with the epoch it was written under."""

    async def work(client: Client) -> None:
        found = client.entries(await find_task(client, task), after)
        if context.as_json:
            async for entry in found:
                context.emit(entry)
        else:
            await _show_entries(context, found)

    context.run(work)


def _show_task(context: Context, task: task_pb2.Task, forks: list[str]) -> None:
    state = state_name(task.state)
    money = usd if context.is_verbose else money_text
    epoch = describe_epoch(task.epoch) if context.is_verbose and task.epoch else ""
    rows: list[tuple[str, str | Text]] = [
        ("task", task.task_id),
        ("state", Text(why(task.state, task.reason, task.message), state_style(state))),
        ("goal", one_line(goal_text(task.spec), 4 * context.console.width)),
        ("agent", " · ".join(part for part in (model_text(task.spec), _tools(task)) if part)),
        ("held by", task.owner),
        ("epoch" if task.owner else "last epoch", epoch),
        ("work", f"{count_text(task.step, 'step')}, opened {count_text(task.claim_count, 'time')}"),
        ("tokens", usage_text(task.usage)),
        ("cost", money(task.used_nano_usd) if task.used_nano_usd else ""),
        ("budget", budget_text(task.budget, is_exact=context.is_verbose)),
        ("", money_cap_text(task.spec)),
        ("submitted", f"{ago(task.create_time)}, {'took' if task.HasField('end_time') else 'for'} {lasted(task)}"),
        ("starts", start_text(task)),
        ("retry", f"at {clock(task.next_retry_time)}" if task.HasField("next_retry_time") else ""),
        *wait_rows(task),
        ("in doubt", doubts_text(task)),
        ("result", f"must fit {one_line(task.spec.result_schema_json, 200)}" if task.spec.result_schema_json else ""),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(task.spec.labels.items()))),
        ("cancel", "requested" if task.cancel_requested else ""),
        ("spawned by", _parent(task)),
        ("forked from", _origin(task)),
        ("forks", _forks(forks)),
    ]
    table = make_grid()
    for name, value in rows:
        if value:
            table.add_row(name, value if isinstance(value, Text) else Text(harmless(value)))
    context.console.print(table)
    if task.result:
        context.console.print()
        is_plain = not context.console.is_terminal
        context.console.print(result_shown(task, is_plain=is_plain), soft_wrap=is_plain)


def _parent(task: task_pb2.Task) -> str:
    """The call that a sub-agent comes from; the tree is another command."""
    if not task.parent_task_id:
        return ""
    return f"{task.parent_task_id}, call {task.spawn_call_id} · depth {task.depth} in the tree of {task.root_task_id}"


def _origin(task: task_pb2.Task) -> str:
    if not task.HasField("forked_from"):
        return ""
    return f"{task.forked_from.task_id} after entry {task.forked_from.sequence}"


def _forks(task_ids: list[str]) -> str:
    """The newest first."""
    return " ".join(task_ids) + (" …" if len(task_ids) == SHOWN_FORKS else "")


def _tools(task: task_pb2.Task) -> str:
    if not task.spec.agent.HasField("tools"):
        return "all tools"
    return ", ".join(task.spec.agent.tools.names) or "no tools"


def _show_tasks(context: Context, tasks: list[task_pb2.Task]) -> None:
    if not tasks:
        echo('no tasks; submit one: tenure submit "…" --watch', err=True)
        return
    ids = distinct_ids(task.task_id for task in tasks)
    table = make_table("TASK", "STATE", "STEPS", "TOKENS", "SUBMITTED", "TOOK", "GOAL")
    for column in (2, 3):
        table.columns[column].justify = "right"
    table.columns[6].no_wrap, table.columns[6].overflow = True, "ellipsis"
    for task in tasks:
        state = state_name(task.state)
        table.add_row(
            ids[task.task_id],
            Text(_standing(task, state), state_style(state)),
            f"{task.step:,}",
            f"{tokens_total(task.usage):,}",
            ago(task.create_time),
            lasted(task),
            one_line(goal_text(task.spec), 120),
        )
    context.console.print(table)


def _standing(task: task_pb2.Task, state: str) -> str:
    """Its state, with what says most about it."""
    left_seconds = held_back_seconds(task, time.time())
    if left_seconds is not None:
        return f"{state}, starts in {seconds_text(left_seconds)}"
    says_it_all = not task.reason or state in {"SUCCEEDED", "RUNNING", "QUEUED"}
    return state if says_it_all else harmless(f"{state} {task.reason}")


async def _show_entries(context: Context, found: AsyncIterator[ledger_pb2.Entry]) -> None:
    """Line by line as they come: a long ledger is shown from its beginning at once."""
    async for entry in found:
        head = (
            f"{entry.sequence:>5} {clock(entry.record_time)} {describe_epoch(entry.epoch):>7} "
            f"{f'step {entry.step}' if entry.step else '':<8} {kind_name(entry):<17} "
        )
        width = max(20, context.console.width - len(head) - 1)
        # Half a tool's name would look like another tool.
        told = harmless(describe(entry)) if kind_name(entry) == "tools_defined" else one_line(describe(entry), width)
        context.console.print(Text.assemble((head, "dim"), (told, style_of(entry))), no_wrap=True, soft_wrap=True)
