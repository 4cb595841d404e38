"""`tenure admin prune`: ended tasks go before their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.intervene import reason_option
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, find_task
from tenure.cli.words import short_id
from tenure.client import Client


@click.command(short_help="Delete ended tasks for good, before their time.")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--older-than", type=DURATION, default=None, help="All that ended so long ago: 30d, 12h.")
@click.option("--dry-run", is_flag=True, help="Only say which would go.")
@reason_option
@pass_context
def prune(context: Context, task: str | None, older_than: float | None, dry_run: bool, reason: str) -> None:
    """Delete TASK, or all tasks that ended so long ago: with their history, files and calls. Their bills stay.

    Who asks for such a task is told who pruned it, and why. With --older-than, tasks with the label
    tenure.retention=keep stay.
    """
    if (task is None) == (older_than is None):
        raise click.UsageError("name one TASK, or say --older-than")

    async def work(client: Client) -> None:
        if task is not None:
            task_id = await find_task(client, task)
            await client.prune(task_id, reason, dry_run=dry_run)
            told = [task_id]
        else:
            before = datetime.now(UTC) - timedelta(seconds=older_than or 0.0)
            told = [one async for some in client.prune_before(before, reason, dry_run=dry_run) for one in some]
        _show(context, told, dry_run=dry_run)

    context.run(work)


def _show(context: Context, task_ids: list[str], *, dry_run: bool) -> None:
    if context.as_json:
        for task_id in task_ids:
            context.emit({"task_id": task_id, "pruned": not dry_run})
        return
    if dry_run:
        for task_id in task_ids:
            echo(task_id)
    count = f"{len(task_ids):,} tasks" if len(task_ids) != 1 else f"{short_id(task_ids[0])}"
    echo(f"{count} would go" if dry_run else f"{count} pruned; their bills stay")
