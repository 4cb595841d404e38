"""`tenure wait` and `tenure cancel`: about a task's end."""

from __future__ import annotations

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.exits import Exit, exit_of_task
from tenure.cli.output import echo, echo_result
from tenure.cli.parameters import DURATION, find_task, task_argument
from tenure.cli.results import result_of
from tenure.cli.words import short_id, summary, why
from tenure.client import Client
from tenure.v1 import task_pb2


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
        asked = await client.cancel(await find_task(client, task), reason)
        if context.as_json:
            context.emit(asked)
        elif asked.state == task_pb2.TASK_STATE_CANCELLED:
            echo(f"{short_id(asked.task_id)} is cancelled")
        else:
            echo(f"{short_id(asked.task_id)} will be cancelled; it is {why(asked.state, '', '')} now")

    context.run(work)


def _say_ended(task: task_pb2.Task) -> None:
    """The result alone on standard output; how it ended beside it."""
    echo(f"{why(task.state, task.reason, task.message)} · {summary(task)}", err=True)
    if task.result:
        echo_result(result_of(task))
