"""`tenure get`, `list`, `cancel` and `explain`; `tenure tasks entries`, `tree` and `wait`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from tenure.cli.context import Context, with_client
from tenure.cli.entry_lines import describe, kind_name, lease_end_text, style_of
from tenure.cli.error_texts import exit_of_task
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import (
    ago,
    budget_text,
    clock,
    count_text,
    distinct_ids,
    goal_text,
    harmless,
    lasted,
    make_grid,
    model_text,
    money_cap_text,
    one_line,
    output_text,
    short_id,
    source_text,
    start_text,
    state_style,
    summary,
    tokens_total,
    usage_text,
    why,
)
from tenure.cli.group import SectionedCommand
from tenure.cli.many_tasks import Selection, act_on_many, many_tasks
from tenure.cli.output import echo, echo_result
from tenure.cli.parameters import DURATION, find_task, task_argument
from tenure.cli.tools import in_doubt_text
from tenure.cli.waits import wait_rows
from tenure.client import Client
from tenure.domain.agents import reference
from tenure.domain.budget import money_text, usd
from tenure.domain.fencing import describe_epoch
from tenure.domain.task import result_text
from tenure.sdk.from_wire import task_info
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import state_name

# The result of a task, for programs and for people.


def _content(ctx: click.Context, option: click.Parameter, file: TextIO | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read()
    except UnicodeDecodeError as error:
        file.close()
        raise click.BadParameter(f"{file.name} is not text in UTF-8: {error.reason}", ctx, option) from error


RESULT_SCHEMA: Final[dict[str, Any]] = {"type": click.File(encoding="utf-8"), "callback": _content}
"""Of the option `--result-schema FILE`. Its value is the content of the file, or None without the option."""


def result_of(task: task_pb2.Task) -> str:
    """Returns the result for programs: the JSON if the task has a result schema, else the text."""
    return task.result_json or result_text(task.result, task.reason)


def result_shown(task: task_pb2.Task, *, is_plain: bool) -> RenderableType:
    """Returns the result for people: indented JSON, or Markdown. `is_plain` is for output without a terminal."""
    if task.result_json:
        pretty = json.dumps(json.loads(task.result_json), indent=2, ensure_ascii=False)
        return Text(pretty) if is_plain else Padding(Text(harmless(pretty)), (0, 2))
    text = result_text(task.result, task.reason)
    if is_plain:
        return Text(text)
    from rich.markdown import Markdown  # which takes a fifth of the start of a command

    return Padding(Markdown(harmless(text)), (0, 2))


SHOWN_FORKS: Final = 5
NEWEST_ENTRIES: Final = 500
"""The entries among which the newest lost claim is searched."""


@click.command(short_help="Show TASK: state, goal, tokens, budget, wait.")
@task_argument
@with_client
async def get(context: Context, client: Client, task: str) -> None:
    """Show TASK: its state, goal, tokens, budget, wait and result. The exit code is 0 in every state."""
    shown_task = await client.get(await find_task(client, task))
    if context.as_json:
        context.emit(shown_task)
    else:
        forks = client.list_tasks(task_pb2.TaskFilter(forked_from_task_id=shown_task.task_id), limit=SHOWN_FORKS)
        tools = await _tools_of_code(client, shown_task)
        lost = await _lost_lease(client, shown_task)
        _show_task(context, shown_task, [fork.task_id async for fork in forks], tools, lost)


@click.command(short_help="Show TASK's ledger, entry by entry.")
@task_argument
@click.option("--after", type=click.IntRange(min=0), default=0, help="Show only entries after this sequence.")
@with_client
async def entries(context: Context, client: Client, task: str, after: int) -> None:
    """Show TASK's ledger: all entries in order, each with its sequence, time, step and kind; with -v its epoch."""
    entry_stream = client.entries(await find_task(client, task), after)
    if context.as_json:
        async for entry in entry_stream:
            context.emit(entry)
    else:
        await _show_entries(context, entry_stream)


async def _tools_of_code(client: Client, task: task_pb2.Task) -> str:
    """Returns the tools of a function or an agent in Python: those that a model was offered, or that it called."""
    tools = ""
    if task.spec.HasField("control"):
        async for entry in client.entries(task.task_id, kinds=("tools_defined",)):
            tools = describe(entry)
    return tools


async def _lost_lease(client: Client, task: task_pb2.Task) -> str:
    """Returns the newest lost claim among the task's newest entries: its reason and the last renewals; "": none."""
    if not task.claim_count:
        return ""
    lost = ""
    after = max(0, task.sequence - NEWEST_ENTRIES)
    async for entry in client.entries(task.task_id, after, kinds=("transition",)):
        if entry.body.transition.HasField("lease_end"):
            lost = f"{entry.body.transition.reason}: {lease_end_text(entry.body.transition)}"
    return lost


def _show_task(context: Context, task: task_pb2.Task, forks: list[str], tools: str = "", lost_lease: str = "") -> None:
    state = state_name(task.state)
    money = usd if context.is_verbose else money_text
    epoch = describe_epoch(task.epoch) if context.is_verbose and task.epoch else ""
    rows: list[tuple[str, str | Text]] = [
        ("task", task.task_id),
        ("state", Text(why(task.state, task.reason, task.message), state_style(state))),
        ("goal", one_line(goal_text(task.spec), 4 * context.console.width)),
        ("agent", _agent(task.spec)),
        ("tools", tools),
        ("revision", _revision(task)),
        ("held by", task.owner),
        ("epoch" if task.owner else "last epoch", epoch),
        ("lost lease", lost_lease),
        ("work", f"{count_text(task.step, 'step')}, opened {count_text(task.claim_count, 'time')}"),
        ("tokens", usage_text(task.usage)),
        ("cost", money(task.used_nano_usd) if task.used_nano_usd else ""),
        ("budget", budget_text(task.budget, is_verbose=context.is_verbose)),
        ("", money_cap_text(task.spec)),
        ("submitted", f"{ago(task.create_time)}, {'took' if task.HasField('end_time') else 'for'} {lasted(task)}"),
        ("starts", start_text(task)),
        ("retry", f"at {clock(task.next_retry_time)}" if task.HasField("next_retry_time") else ""),
        *wait_rows(task),
        ("in doubt", in_doubt_text(task)),
        (
            "result",
            f"must fit the schema {one_line(task.spec.result_schema_json, 200)}"
            if task.spec.result_schema_json
            else "",
        ),
        ("source", source_text(task.spec.source)),
        *(("output", output_text(output)) for output in task.outputs),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(task.spec.labels.items()))),
        ("cancel", "requested" if task.cancel_requested else ""),
        ("spawned by", _parent(task)),
        ("undo of", task.undo_of),
        ("forked from", _origin(task)),
        ("forks", _forks(forks)),
    ]
    shown = ((name, value if isinstance(value, Text) else Text(harmless(value))) for name, value in rows)
    context.console.print(make_grid(shown))
    if task.result:
        context.console.print()
        is_plain = not context.console.is_terminal
        context.console.print(result_shown(task, is_plain=is_plain), soft_wrap=is_plain)


def _revision(task: task_pb2.Task) -> str:
    """Returns the revision that the task is pinned to."""
    pin = task.spec.agent_pin
    ramped = ", by its ramp" if pin.ramped else ""
    return f"{reference(pin.agent, pin.revision)}{ramped}" if pin.revision else ""


def _parent(task: task_pb2.Task) -> str:
    """Returns the parent's call that created a sub-agent. `tenure tasks tree` shows the whole tree."""
    if not task.parent_task_id:
        return ""
    return f"{task.parent_task_id}, call {task.spawn_call_id} · depth {task.depth} in the tree of {task.root_task_id}"


def _origin(task: task_pb2.Task) -> str:
    if not task.HasField("forked_from"):
        return ""
    return f"{task.forked_from.task_id} after entry {task.forked_from.sequence}"


def _forks(task_ids: list[str]) -> str:
    """Returns the ids of the newest forks, with an ellipsis if there may be more."""
    return " ".join(task_ids) + (" …" if len(task_ids) == SHOWN_FORKS else "")


def _agent(spec: task_pb2.TaskSpec) -> str:
    if spec.HasField("control"):
        return f"{spec.control.function} · in Python: its code names the models"
    tools = (", ".join(spec.agent.tools.names) or "no tools") if spec.agent.HasField("tools") else "all tools"
    return f"{model_text(spec)} · {tools}"


async def _show_entries(context: Context, entries: AsyncIterator[ledger_pb2.Entry]) -> None:
    """Prints each entry as it arrives, so that a long ledger does not have to be read whole before the first line."""
    async for entry in entries:
        epoch = f"{describe_epoch(entry.epoch):>7} " if context.is_verbose else ""
        head = (
            f"{entry.sequence:>5} {clock(entry.record_time)} {epoch}"
            f"{f'step {entry.step}' if entry.step else '':<8} {kind_name(entry):<17} "
        )
        width = max(20, context.console.width - len(head) - 1)
        # A tool's name that is cut in the middle could be read as the name of another tool.
        described = describe(entry, is_verbose=context.is_verbose)
        text = harmless(described) if kind_name(entry) == "tools_defined" else one_line(described, width)
        context.console.print(Text.assemble((head, "dim"), (text, style_of(entry))), no_wrap=True, soft_wrap=True)


# `tenure tasks tree`: a root task and all its sub-agents.

MAX_TASKS: Final = 10_000

Children = dict[str, list[task_pb2.Task]]


@click.command(short_help="Show the tree of a root task and its sub-agents.")
@task_argument
@with_client
async def tree(context: Context, client: Client, task: str) -> None:
    """Show the whole tree that TASK belongs to: each task with its state and the tokens that it used itself.

    Sub-agents are below their parent, in the order of its calls. With --json parents come first.
    """
    given_task = await client.get(await find_task(client, task))
    task_filter = task_pb2.TaskFilter(root_task_id=given_task.root_task_id)
    tasks = [one async for one in client.list_tasks(task_filter, limit=MAX_TASKS, fresh=True)]
    tasks.sort(key=lambda one: (one.depth, call_order(one)))
    context.show_all(tasks, lambda context, tasks: _show(context, tasks, given_task.task_id))


def call_order(task: task_pb2.Task) -> tuple[int, int, int]:
    """Returns the sort key of a sub-agent: step and index of its call, then its index among the call's goals."""
    step, _, index = task.spawn_call_id.partition(".")
    return int(step or 0), int(index or 0), task.spawn_index


@dataclass(frozen=True, slots=True)
class _TreeLines:
    """Makes the lines of a tree. `given_id` is the task of the command line, shown in bold; `width` is in columns."""

    ids: dict[str, str]
    given_id: str
    width: int

    def line(self, task: task_pb2.Task) -> Text:
        """Returns `0193f2a1-4c1b  RUNNING  1,204 tokens  find out what …`."""
        state = state_name(task.state)
        name = (self.ids[task.task_id], "bold" if task.task_id == self.given_id else "dim")
        tokens = f"  {tokens_total(task.usage):,} tokens  "
        left = self.width - len(name[0]) - len(state) - len(tokens) - 4 * task.depth
        goal = one_line(goal_text(task.spec), max(20, left))
        return Text.assemble(name, "  ", (state, state_style(state)), (tokens, "dim"), goal)


def _show(context: Context, tasks: Sequence[task_pb2.Task], given_id: str) -> None:
    lines = _TreeLines(distinct_ids(one.task_id for one in tasks), given_id, max(40, context.console.width))
    children: Children = defaultdict(list)
    for one in tasks:
        children[one.parent_task_id].append(one)
    for root in children[""]:
        branch = Tree(lines.line(root), guide_style="dim")
        _add_children(branch, root, children, lines)
        context.console.print(branch, soft_wrap=True)
    used, cap = tasks[0].budget.used_tokens, tasks[0].budget.max_tokens
    context.console.print(Text(f"{count_text(len(tasks), 'task')}, {used:,} of {cap:,} tokens used", "dim"))


def _add_children(branch: Tree, task: task_pb2.Task, children: Children, lines: _TreeLines) -> None:
    for child in children[task.task_id]:
        _add_children(branch.add(lines.line(child)), child, children, lines)


# `tenure tasks wait` and `tenure cancel`.


@click.command(short_help="Wait until TASK ends, print its result.")
@task_argument
@click.option(
    "--timeout", type=DURATION, default=None, help="Wait at most this long, for example 60s. Default: without limit."
)
@with_client
async def wait(context: Context, client: Client, task: str, timeout: float | None) -> Exit:
    """Wait until TASK ends, then print its result.

    The exit code is 0 if it SUCCEEDED, 1 if it ended in another state, 5 if it did not end within --timeout.
    """
    ended = await client.wait(await find_task(client, task), timeout)
    if context.as_json:
        context.emit(ended)
    else:
        _say_ended(ended)
    return exit_of_task(ended)


@click.command(cls=SectionedCommand)
@many_tasks
@click.option("--reason", default="", help="Why; recorded in the ledger.")
@with_client
async def cancel(context: Context, client: Client, selection: Selection, reason: str) -> None:
    """Cancel TASK. When this command returns, the request is recorded and will be carried out.

    With several tasks, or a filter: shows what would be cancelled, and asks. Without --state: all that are live.
    """
    if not selection.single:
        cancelling = admin_pb.ActOnTasksRequest.Cancel()
        await act_on_many(context, client, selection, "cancelled", reason, cancel=cancelling)
        return
    response = await client.cancel(await find_task(client, selection.single), reason)
    is_cancelled = response.state == task_pb2.TASK_STATE_CANCELLED
    how = "is cancelled" if is_cancelled else f"will be cancelled; now it is {why(response.state, '', '')}"
    context.say(response, f"{short_id(response.task_id)} {how}")


def _say_ended(task: task_pb2.Task) -> None:
    """Prints the result on standard output, alone, for scripts; the state and the work on standard error."""
    echo(f"{why(task.state, task.reason, task.message)} · {summary(task)}", err=True)
    if task.result:
        echo_result(result_of(task))


# `tenure explain`.


@click.command(short_help="Explain why TASK is in its state, and what helps.")
@task_argument
@with_client
async def explain(context: Context, client: Client, task: str) -> None:
    """Explain in at most ten lines why TASK is in its state, and what would change it."""
    explained = await client.explain(await find_task(client, task))
    if context.as_json:
        parts = {"lines": list(explained.lines), "task": task_info(explained.task).to_json()}
        context.emit({**parts, "obstacle": explained.obstacle})
    else:
        echo("\n".join(explained.lines))
        if context.is_verbose:
            echo(f"Epoch {describe_epoch(explained.task.epoch)}; {_reserved(explained.task.budget)}")


def _reserved(budget: task_pb2.BudgetStatus) -> str:
    """Returns what the calls in flight of the tree have reserved."""
    money = f" and {usd(budget.reserved_nano_usd)}" if budget.reserved_nano_usd else ""
    return f"{count_text(budget.reserved_tokens, 'token')}{money} reserved for calls in flight"
