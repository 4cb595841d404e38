"""`tenure get`, `list` and `entries`: how tasks stand, and what their ledger says."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from rich.console import RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from tenure.cli.context import Context, pass_context
from tenure.cli.entry_lines import (
    describe,
    goal_text,
    kind_name,
    style_of,
)
from tenure.cli.exit_codes import Exit, exit_of_task
from tenure.cli.formatting import (
    ago,
    budget_text,
    clock,
    count_text,
    distinct_ids,
    harmless,
    lasted,
    make_grid,
    make_table,
    model_text,
    money_cap_text,
    one_line,
    seconds_text,
    short_id,
    start_text,
    state_style,
    summary,
    tokens_total,
    usage_text,
    why,
)
from tenure.cli.output import echo, echo_result
from tenure.cli.parameters import DURATION, LABEL, find_task, task_argument
from tenure.cli.tools import in_doubt_text
from tenure.cli.waits import wait_rows
from tenure.client import Client
from tenure.domain.budget import money_text, usd
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import TaskState
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES, state_name
from tenure.wire.task import held_back_seconds

# Results on the screen and on standard output.

F = TypeVar("F", bound=Callable[..., Any])


def result_schema_option(message: str) -> Callable[[F], F]:
    """`--result-schema FILE`: the parameter is what the file says, None when it is not given."""
    return click.option(
        "--result-schema",
        type=click.File(encoding="utf-8"),
        default=None,
        callback=lambda _context, _option, file: None if file is None else file.read(),
        help=message,
    )


def result_of(task: task_pb2.Task) -> str:
    """The result for whoever reads it by program: the JSON alone when the task has a schema, else the words."""
    return task.result_json or task.result


def result_shown(task: task_pb2.Task, *, is_plain: bool) -> RenderableType:
    """The same for people; `is_plain`: not on a terminal."""
    if task.result_json:
        pretty = json.dumps(json.loads(task.result_json), indent=2, ensure_ascii=False)
        return Text(pretty) if is_plain else Padding(Text(harmless(pretty)), (0, 2))
    return Text(task.result) if is_plain else Padding(Markdown(harmless(task.result)), (0, 2))


SHOWN_FORKS: Final = 5


@click.command(short_help="Show how TASK stands.")
@task_argument
@pass_context
def get(context: Context, task: str) -> None:
    """Show how TASK stands. The exit code is 0 in whatever state it is."""

    async def work(client: Client) -> None:
        shown_task = await client.get(await find_task(client, task))
        if context.as_json:
            context.emit(shown_task)
        else:
            forks = client.list_tasks(task_pb2.TaskFilter(forked_from_task_id=shown_task.task_id), limit=SHOWN_FORKS)
            _show_task(context, shown_task, [fork.task_id async for fork in forks])

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
        entry_stream = client.entries(await find_task(client, task), after)
        if context.as_json:
            async for entry in entry_stream:
                context.emit(entry)
        else:
            await _show_entries(context, entry_stream)

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
        ("in doubt", in_doubt_text(task)),
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


async def _show_entries(context: Context, entries: AsyncIterator[ledger_pb2.Entry]) -> None:
    """Line by line as they come: a long ledger is shown from its beginning at once."""
    async for entry in entries:
        head = (
            f"{entry.sequence:>5} {clock(entry.record_time)} {describe_epoch(entry.epoch):>7} "
            f"{f'step {entry.step}' if entry.step else '':<8} {kind_name(entry):<17} "
        )
        width = max(20, context.console.width - len(head) - 1)
        # Half a tool's name would look like another tool.
        text = harmless(describe(entry)) if kind_name(entry) == "tools_defined" else one_line(describe(entry), width)
        context.console.print(Text.assemble((head, "dim"), (text, style_of(entry))), no_wrap=True, soft_wrap=True)


# `tenure tree`: a task, what spawned it, and its sub-agents.

MOST_TASKS: Final = 10_000

Children = dict[str, list[task_pb2.Task]]


@click.command(short_help="Show the whole tree of agents that TASK is in.")
@task_argument
@pass_context
def tree(context: Context, task: str) -> None:
    """Show the whole tree of agents that TASK is in: a line for each, with its state and the tokens it used itself.

    Sub-agents stand below the one that spawned them, in the order of its calls. With --json parents come first.
    """

    async def work(client: Client) -> None:
        asked_task = await client.get(await find_task(client, task))
        wanted = task_pb2.TaskFilter(root_task_id=asked_task.root_task_id)
        tasks = [one async for one in client.list_tasks(wanted, limit=MOST_TASKS)]
        tasks.sort(key=lambda one: (one.depth, _place(one)))
        if context.as_json:
            for one in tasks:
                context.emit(one)
        else:
            _show(context, tasks, asked_task.task_id)

    context.run(work)


def _place(task: task_pb2.Task) -> tuple[int, int, int]:
    """Calls by their numbers, sub-agents of a call in the order of its goals."""
    step, _, index = task.spawn_call_id.partition(".")
    return int(step or 0), int(index or 0), task.spawn_index


@dataclass(frozen=True, slots=True)
class _Look:
    """How tasks are shown."""

    ids: dict[str, str]
    asked_id: str
    width: int

    def line(self, task: task_pb2.Task) -> Text:
        """`0193f2a1-4c1b  RUNNING  1,204 tokens  find out what …`."""
        state = state_name(task.state)
        name = (self.ids[task.task_id], "bold" if task.task_id == self.asked_id else "dim")
        tokens = f"  {tokens_total(task.usage):,} tokens  "
        left = self.width - len(name[0]) - len(state) - len(tokens) - 4 * task.depth
        goal = one_line(goal_text(task.spec), max(20, left))
        return Text.assemble(name, "  ", (state, state_style(state)), (tokens, "dim"), goal)


def _show(context: Context, tasks: list[task_pb2.Task], asked_id: str) -> None:
    look = _Look(distinct_ids(one.task_id for one in tasks), asked_id, max(40, context.console.width))
    children: Children = defaultdict(list)
    for one in tasks:
        children[one.parent_task_id].append(one)
    for root in children[""]:
        shown = Tree(look.line(root), guide_style="dim")
        _grow(shown, root, children, look)
        context.console.print(shown, soft_wrap=True)
    used, most = tasks[0].budget.used_tokens, tasks[0].budget.max_tokens
    context.console.print(Text(f"{count_text(len(tasks), 'task')}, {used:,} of {most:,} tokens used", "dim"))


def _grow(branch: Tree, task: task_pb2.Task, children: Children, look: _Look) -> None:
    for child in children[task.task_id]:
        _grow(branch.add(look.line(child)), child, children, look)


# `tenure wait` and `tenure cancel`: about a task's end.


@click.command(short_help="Wait until TASK ends, print its result.")
@task_argument
@click.option("--timeout", type=DURATION, default=None, help="At most this long, for example 60s. Default: for ever.")
@pass_context
def wait(context: Context, task: str, timeout: float | None) -> None:
    """Wait until TASK ends, then print its result.

    The exit code is 0 when it succeeded, 1 when it ended otherwise, 5 when it has not ended in time.
    """

    async def work(client: Client) -> Exit:
        ended = await client.wait(await find_task(client, task), timeout)
        if context.as_json:
            context.emit(ended)
        else:
            _say_ended(ended)
        return exit_of_task(ended)

    raise SystemExit(context.run(work))


@click.command()
@task_argument
@click.option("--reason", default="", help="Why; it is recorded.")
@pass_context
def cancel(context: Context, task: str, reason: str) -> None:
    """Ask for TASK's end. Once this returns the request is recorded and will be carried out."""

    async def work(client: Client) -> None:
        response = await client.cancel(await find_task(client, task), reason)
        if context.as_json:
            context.emit(response)
        elif response.state == task_pb2.TASK_STATE_CANCELLED:
            echo(f"{short_id(response.task_id)} is cancelled")
        else:
            echo(f"{short_id(response.task_id)} will be cancelled; it is {why(response.state, '', '')} now")

    context.run(work)


def _say_ended(task: task_pb2.Task) -> None:
    """The result alone on standard output; how it ended beside it."""
    echo(f"{why(task.state, task.reason, task.message)} · {summary(task)}", err=True)
    if task.result:
        echo_result(result_of(task))


# `tenure explain`: why a task is where it is.


@click.command(short_help="Say why a task is where it is.")
@task_argument
@pass_context
def explain(context: Context, task: str) -> None:
    """Say in ten lines why TASK is where it is, and what would move it."""

    async def work(client: Client) -> None:
        explained = await client.explain(await find_task(client, task))
        if context.as_json:
            context.emit(explained)
        else:
            echo("\n".join(explained.lines))

    context.run(work)
