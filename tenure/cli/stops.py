"""`tenure admin stop`, `resume` and `stops`: what an operator stops does nothing new until it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, make_table, short_id
from tenure.cli.group import SectionedCommand
from tenure.cli.output import echo
from tenure.client import Client
from tenure.domain.stops import Certainty
from tenure.v1 import admin_service_pb2 as pb
from tenure.wire.common import EFFECT_CLASSES
from tenure.wire.stops import CERTAINTIES, stop_to_domain

F = TypeVar("F", bound=Callable[..., Any])
EXIT_PARTIAL: Final = 1
_CERTAIN: Final = {
    Certainty.ENDED: "ran to its end",
    Certainty.NOT_BEGUN: "stopped before it began: nothing was done",
    Certainty.MAY_HAVE_HAPPENED: "may have happened",
    Certainty.STILL_RUNS: "still runs; it may finish",
    Certainty.MODEL_CALL: "its answer is paid for and kept",
}


def _selectors(command: F) -> F:
    """Adds the options that select what is stopped."""
    for option in (
        click.option("--reason", required=True, help="Why; it is recorded."),
        click.option("--all", "is_all", is_flag=True, help="The whole installation."),
        click.option("--tenant", "of_tenant", default="", metavar="NAME", help="Tasks of this tenant."),
        click.option("--queue", default="", metavar="NAME", help="Tasks of this queue."),
        click.option("--tool", default="", metavar="PATTERN", help="Calls of these tools; * stands for any text."),
        click.option("--agent", default="", metavar="NAME", help="Tasks of this agent."),
    ):
        command = option(command)
    return command


@click.command(cls=SectionedCommand, short_help="Stop an agent, a tool, a tenant, a queue or everything.")
@_selectors
@with_client
async def stop(
    context: Context, client: Client, agent: str, tool: str, queue: str, of_tenant: str, is_all: bool, reason: str
) -> None:
    """Stop what the options name: no task of it begins, calls its model or calls a tool, until it is resumed.

    With several options, what all of them name. Running calls that may run again are cancelled, and run again after the
    stop; UNSAFE calls may finish. The list shows every call that was in flight. A task of a stopped tool waits at
    its call.
    """
    request = pb.BeginStopRequest(agent=agent, tool=tool, queue=queue, tenant=of_tenant, all=is_all, reason=reason)
    begun = await client.admin.BeginStop(request)
    context.show(begun, _show_begun)
    warn_of(begun.unconfirmed, "calls may still begin there: repeat the command")


def _show_begun(context: Context, begun: pb.BeginStopResponse) -> None:
    stopped = stop_to_domain(begun.stop)
    echo(f"stopped: {stopped.describe()}")
    if begun.calls:
        table = make_table("TASK", "CALL", "TOOL", "EFFECT", "CERTAIN")
        for call in begun.calls:
            effect = EFFECT_CLASSES.to_domain(call.effect_class).value if call.call_id else ""
            certain = _CERTAIN[CERTAINTIES.to_domain(call.certainty)]
            table.add_row(short_id(call.task_id), call.call_id or "model call", call.tool, effect, certain)
        context.console.print(table)
    elif not begun.more:
        echo("no call was in flight")
    if begun.more:
        echo("more calls were in flight, or may have been: tenure list shows the tasks")
    echo(f"to resume it: {stopped.end_command} --reason TEXT")


@click.command(cls=SectionedCommand, short_help="End a stop.")
@_selectors
@with_client
async def resume(
    context: Context, client: Client, agent: str, tool: str, queue: str, of_tenant: str, is_all: bool, reason: str
) -> None:
    """End the stop with exactly these options. Its tasks continue within seconds."""
    request = pb.EndStopRequest(agent=agent, tool=tool, queue=queue, tenant=of_tenant, all=is_all, reason=reason)
    ended = await client.admin.EndStop(request)
    context.say(ended, f"resumed: {stop_to_domain(ended.stop).describe()}")
    warn_of(ended.unconfirmed, "they follow within seconds once they are back")


@click.command(short_help="List the stops in force.")
@with_client
async def stops(context: Context, client: Client) -> None:
    """List the stops in force, the oldest first."""
    listed = await client.admin.ListStops(pb.ListStopsRequest())
    context.show_all(listed.stops, _show_stops, none="nothing is stopped")


def _show_stops(context: Context, listed: Sequence[pb.Stop]) -> None:
    table = make_table("STOPPED", "SINCE", "BY", "REASON")
    for each in listed:
        table.add_row(stop_to_domain(each).describe(), ago(each.stop_time), each.stopped_by, each.reason)
    context.console.print(table)


def warn_of(unconfirmed: Sequence[str], consequence: str) -> None:
    """Says loudly which services did not confirm. Ends the command with EXIT_PARTIAL then."""
    if unconfirmed:
        echo(f"NOT CONFIRMED by {', '.join(unconfirmed)}: {consequence}", err=True)
        raise SystemExit(EXIT_PARTIAL)
