"""`tenure admin aging`: tasks that have not ended, and what they stand on."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION
from tenure.cli.tables import make_table
from tenure.cli.words import ago, distinct_ids, seconds_text
from tenure.client import Client
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.wire.enums import STATES, state_name
from tenure.wire.times import duration, seconds

_LIVING: Final = [state.value for state in TaskState if state not in TERMINAL]


@click.command(short_help="Show the oldest tasks, and those whose worker or lease is in trouble.")
@click.option("--state", "states", multiple=True, type=click.Choice(_LIVING), help="Only these; may be repeated.")
@click.option(
    "--idle", type=DURATION, default=None, help="Held tasks only, of which nothing was committed for so long."
)
@click.option(
    "--lease-below", type=DURATION, default=None, help="Held tasks only, whose lease is gone or ends so soon."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@pass_context
def aging(context: Context, states: tuple[str, ...], idle: float | None, lease_below: float | None, limit: int) -> None:
    """Show tasks that have not ended, the oldest first.

    With --idle or --lease-below: those that a worker holds, by their ids. A lease that nobody renews lives 5 s.
    """
    held = idle is not None or lease_below is not None
    if held and states:
        raise click.UsageError("--state does not go with --idle and --lease-below: what is held is RUNNING")
    request = admin.ListAgingTasksRequest(
        view=task_pb2.AGING_VIEW_HELD if held else task_pb2.AGING_VIEW_OLDEST,
        states=[STATES.to_wire(TaskState(state)) for state in states],
        idle=None if idle is None else duration(idle),
        lease_below=None if lease_below is None else duration(lease_below),
        page_size=min(limit, 500),
    )

    async def work(client: Client) -> None:
        found, unknown = await _collect(client, request, limit)
        if unknown:
            echo("no coordinator answers: nothing is known of leases", err=True)
        if context.as_json:
            for one in found:
                context.emit(one)
        elif not found:
            echo("there is none", err=True)
        else:
            _show(context, found, leases_unknown=unknown)

    context.run(work)


async def _collect(
    client: Client, request: admin.ListAgingTasksRequest, limit: int
) -> tuple[list[admin.ListAgingTasksResponse.Aging], bool]:
    found: list[admin.ListAgingTasksResponse.Aging] = []
    unknown = False
    async with aclosing(client.aging(request)) as pages:
        async for page in pages:
            found += page.tasks
            unknown |= page.leases_unknown
            if len(found) >= limit:
                break
    return found[:limit], unknown


def _show(context: Context, found: list[admin.ListAgingTasksResponse.Aging], *, leases_unknown: bool) -> None:
    ids = distinct_ids(one.task.task_id for one in found)
    table = make_table("TASK", "STATE", "REASON", "SUBMITTED", "CHANGED", "STEP", "QUEUE", "WORKER", "LEASE LEFT")
    for one in found:
        task = one.task
        table.add_row(
            ids[task.task_id],
            f"{state_name(task.state)}{', to end' if task.cancel_requested else ''}",
            task.reason,
            ago(task.create_time),
            ago(task.update_time),
            str(task.step),
            task.queue,
            task.owner,
            _lease(one, leases_unknown=leases_unknown),
        )
    context.console.print(table)


def _lease(one: admin.ListAgingTasksResponse.Aging, *, leases_unknown: bool) -> str:
    if not one.task.owner:
        return ""
    if leases_unknown:
        return "?"
    return seconds_text(seconds(one.lease_remaining)) if one.HasField("lease_remaining") else "gone"
