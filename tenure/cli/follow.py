"""`tenure tasks follow`: one line for each change of all tasks of a tenant, as the changes happen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.error_texts import lost_text
from tenure.cli.formatting import budget_text, clock, goal_text, one_line, short_id, state_style, summary
from tenure.cli.group import SectionedCommand
from tenure.cli.output import echo
from tenure.cli.task_filter import filter_options
from tenure.client import Client
from tenure.domain.states import Reason, TaskState
from tenure.v1 import task_pb2
from tenure.wire.common import state_name

_STATE_WIDTH = max(len(state) for state in TaskState)
_SILENCE_SECONDS: Final = 3.0


@click.command(cls=SectionedCommand, short_help="Show the changes of all tasks, until Ctrl-C.")
@filter_options()
@click.option(
    "--after",
    "after_cursor",
    default="",
    help="Continue after the cursor of an earlier --json line. Default: from now.",
)
@pass_context
def follow(
    context: Context,
    task_filter: task_pb2.TaskFilter,
    after_cursor: str,
) -> None:
    """Show one line for each change of a task's state, until Ctrl-C. No change is left out.

    With --json each line has a cursor: --after continues from there, also days later.
    """

    async def work(client: Client) -> None:
        def report_lost() -> None:
            silence.cancel()
            echo(lost_text(context.address), err=True)

        silence, is_following = asyncio.get_running_loop().call_later(_SILENCE_SECONDS, report_lost), False
        async with aclosing(client.watch_tasks(task_filter, after_cursor=after_cursor, on_lost=report_lost)) as events:
            async for event in events:
                if context.as_json:
                    context.emit(event)
                elif event.HasField("change"):
                    context.console.print(_line(context, event.change), no_wrap=True, soft_wrap=True)
                elif not is_following:
                    echo("following all tasks; Ctrl-C stops only this command", err=True)
                is_following = True
                silence.cancel()

    context.run(work)


def _line(context: Context, change: task_pb2.TaskChange) -> Text:
    """Returns the line of a change: `12:03:04  0193f2a1-4c1b  RUNNING  on worker-1 · find out what …`."""
    state = state_name(change.state)
    head = f"{clock(change.change_time)}  {short_id(change.task_id)}  "
    shown = f"{state:<{_STATE_WIDTH}}  "
    text = one_line(describe(change), max(20, context.console.width - len(head) - len(shown) - 1))
    return Text.assemble((head, "dim"), (shown, state_style(state)), text)


def describe(change: task_pb2.TaskChange) -> str:
    """Returns the details of a change, then the goal of its task."""
    task = change.task
    state = TaskState(state_name(change.state))
    if change.reason == Reason.BUDGET_WARNING:
        text = f"budget warning: {budget_text(task.budget)}"
    elif change.reason == Reason.QUOTA_WARNING:
        text = "its tenant has nearly used a quota: tenure tenants get"
    elif change.reason == Reason.WAIT_ESCALATED:
        text = f"its wait is escalated{f' to {task.wait.assignee}' if task.wait.assignee else ''}"
    elif change.cancel_requested:
        text = f"has a pending ending ({change.reason})"
    elif state is TaskState.RUNNING:
        text = f"on {task.owner}" if task.owner else "on a worker"
    elif state is TaskState.SUCCEEDED:
        text = summary(task)
    else:
        # The snapshot of the task may be newer than the change: its message then belongs to a later change.
        message = task.message if task.sequence == change.sequence else ""
        text = f"{change.reason}{f': {message}' if message else ''}"
    return f"{text} · {goal_text(task.spec)}"
