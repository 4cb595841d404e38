"""`tenure explain`: why a task is where it is."""

from __future__ import annotations

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client


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
