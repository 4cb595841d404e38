"""`tenure send`: words for an agent that is at work."""

from __future__ import annotations

import sys

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.words import short_id, why
from tenure.client import Client


@click.command(short_help="Say TEXT to the agent of TASK.")
@task_argument
@click.argument("text")
@click.option(
    "--request-id", default="", help="The same id and the same text are the same message, however often sent."
)
@pass_context
def send(context: Context, task: str, text: str, request_id: str) -> None:
    """Say TEXT to the agent of TASK; `-` reads it from standard input.

    The agent reads it at its next model call: once this returns, the task does not succeed without that.
    """
    said = sys.stdin.read().strip() if text == "-" else text

    async def work(client: Client) -> None:
        told = await client.send(await find_task(client, task), said, request_id=request_id)
        if context.as_json:
            context.emit(told)
        else:
            click.echo(f"{short_id(told.task_id)} will read it; it is {why(told.state, told.reason, '')} now")

    context.run(work)
