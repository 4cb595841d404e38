"""`tenure queues`: how much waits for workers, and for how long."""

from __future__ import annotations

from collections.abc import Iterable

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.tables import make_table
from tenure.cli.words import ago
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.wire.enums import PRIORITIES


@click.command(short_help="Show how much waits for workers, by queue and priority.")
@click.option("--queue", "names", multiple=True, metavar="NAME", help="Only these; may be repeated.")
@pass_context
def queues(context: Context, names: tuple[str, ...]) -> None:
    """Show how many tasks wait for a worker, by queue and priority, and since when the first one does.

    All tenants' tasks count. Those HELD BACK belong to a tenant that has as many running as it may: more workers would
    not help them, and they do not count for WAITS SINCE.
    """

    async def work(client: Client) -> None:
        listed = [each for each in (await client.queues()).queues if not names or each.queue in names]
        if context.as_json:
            for each in listed:
                context.emit(each)
        elif not listed:
            echo("nothing is queued", err=True)
        else:
            _show(context, listed)

    context.run(work)


def _show(context: Context, listed: Iterable[task_pb2.QueueDepth]) -> None:
    table = make_table("QUEUE", "PRIORITY", "QUEUED", "HELD BACK", "WAITS SINCE")
    for each in listed:
        table.add_row(
            each.queue,
            PRIORITIES.to_domain(each.priority).name,
            f"{each.queued:,}",
            f"{each.held_back:,}",
            ago(each.oldest_queue_time) if each.HasField("oldest_queue_time") else "",
        )
    context.console.print(table)
