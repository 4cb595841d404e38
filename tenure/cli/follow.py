"""`tenure follow`: what happens to all tasks, as it happens."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.entry_lines import goal_text
from tenure.cli.formatting import (
    budget_text,
    clock,
    one_line,
    short_id,
    state_style,
    summary,
)
from tenure.cli.output import echo
from tenure.cli.parameters import LABEL
from tenure.client import Client
from tenure.domain.states import Reason, TaskState
from tenure.v1 import task_pb2
from tenure.wire.common import STATES, state_name

_STATE_WIDTH = max(len(state) for state in TaskState)
_SILENCE_SECONDS: Final = 3.0


@click.command(short_help="Show what happens to all tasks, until Ctrl-C.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([state.value for state in TaskState], case_sensitive=False)
)
@click.option("--label", "labels", type=LABEL, multiple=True, help="key=value; all that are given must match.")
@click.option("--queue", default="", help="Only this queue.")
@click.option("--after", "after_cursor", default="", help="The cursor of an earlier line of --json; default: from now.")
@pass_context
def follow(
    context: Context, states: tuple[str, ...], labels: tuple[tuple[str, str], ...], queue: str, after_cursor: str
) -> None:
    """Show what happens to all tasks, a line for each change of a task's state, until Ctrl-C. Nothing is left out.

    With --json each line has a cursor: with --after it is gone on from there, also days later.
    """
    wanted = task_pb2.TaskFilter(
        states=[STATES.to_wire(TaskState(state)) for state in states], labels=dict(labels), queue=queue
    )

    def tell_silence() -> None:
        if not begun.is_set():
            echo(f"nothing answers at {context.address} yet; trying again for a minute", err=True)

    async def work(client: Client) -> None:
        asyncio.get_running_loop().call_later(_SILENCE_SECONDS, tell_silence)
        async with aclosing(client.watch_tasks(wanted, after_cursor=after_cursor)) as events:
            async for event in events:
                if context.as_json:
                    context.emit(event)
                elif event.HasField("change"):
                    context.console.print(_line(context, event.change), no_wrap=True, soft_wrap=True)
                elif not begun.is_set():
                    echo("following all tasks; Ctrl-C stops, the tasks go on", err=True)
                begun.set()

    begun = asyncio.Event()
    context.run(work)


def _line(context: Context, change: task_pb2.TaskChange) -> Text:
    """`12:03:04  0193f2a1-4c1b  RUNNING  worker-1  find out what …`."""
    state = state_name(change.state)
    head = f"{clock(change.change_time)}  {short_id(change.task_id)}  "
    shown = f"{state:<{_STATE_WIDTH}}  "
    text = one_line(_describe(change), max(20, context.console.width - len(head) - len(shown) - 1))
    return Text.assemble((head, "dim"), (shown, state_style(state)), text)


def _describe(change: task_pb2.TaskChange) -> str:
    """What is worth saying of this change; the goal tells the tasks apart."""
    task = change.task
    state = TaskState(state_name(change.state))
    if change.reason == Reason.BUDGET_WARNING:
        text = f"most of its budget is used: {budget_text(task.budget)}"
    elif change.reason == Reason.QUOTA_WARNING:
        text = "its tenant is near one of its caps: tenure tenants get"
    elif change.cancel_requested:
        text = f"is to end ({change.reason})"
    elif state is TaskState.RUNNING:
        text = f"on {task.owner}" if task.owner else "on a worker"
    elif state is TaskState.SUCCEEDED:
        text = summary(task)
    else:
        message = task.message if task.sequence == change.sequence else ""  # else they are of a later change
        text = f"{change.reason}{f': {message}' if message else ''}"
    return f"{text} · {goal_text(task.spec)}"
