"""`tenure tree`: a task, what spawned it, and its sub-agents."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import click
from rich.text import Text
from rich.tree import Tree

from tenure.cli.context import Context, pass_context
from tenure.cli.facts import goal_text
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.words import count_text, distinct_ids, one_line, state_style, tokens_total
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.wire.enums import state_name

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
        asked = await client.get(await find_task(client, task))
        wanted = task_pb2.TaskFilter(root_task_id=asked.root_task_id)
        found = [one async for one in client.list_tasks(wanted, limit=MOST_TASKS)]
        found.sort(key=lambda one: (one.depth, _place(one)))
        if context.as_json:
            for one in found:
                context.emit(one)
        else:
            _show(context, found, asked.task_id)

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


def _show(context: Context, found: list[task_pb2.Task], asked_id: str) -> None:
    look = _Look(distinct_ids(one.task_id for one in found), asked_id, max(40, context.console.width))
    children: Children = defaultdict(list)
    for one in found:
        children[one.parent_task_id].append(one)
    for root in children[""]:
        shown = Tree(look.line(root), guide_style="dim")
        _grow(shown, root, children, look)
        context.console.print(shown, soft_wrap=True)
    used, most = found[0].budget.used_tokens, found[0].budget.max_tokens
    context.console.print(Text(f"{count_text(len(found), 'task')}, {used:,} of {most:,} tokens used", "dim"))


def _grow(branch: Tree, task: task_pb2.Task, children: Children, look: _Look) -> None:
    for child in children[task.task_id]:
        _grow(branch.add(look.line(child)), child, children, look)
