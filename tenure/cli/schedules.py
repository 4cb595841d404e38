"""`tenure schedules`: tasks that come due again and again."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click
import uuid_utils

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION
from tenure.cli.schedules_shown import OVERLAPS, show_all, show_schedule, when_text
from tenure.cli.schedules_typed import MOMENT, spec_of, timestamp_in
from tenure.cli.schedules_updated import update
from tenure.cli.submit import request_of, submit
from tenure.cli.words import one_line, short_id
from tenure.client import Client
from tenure.domain.errors import NotFound
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.schedules import OVERLAP_POLICIES
from tenure.wire.times import duration

_NOT_OF_A_SCHEDULE: Final = frozenset({"goal", "watched", "request_id"})

_schedule = click.argument("schedule", metavar="SCHEDULE")


@click.group()
def schedules() -> None:
    """Submit tasks again and again, when a cron expression says so. SCHEDULE is a name or an id."""


@schedules.command(short_help="Create a schedule.")
@click.argument("name")
@click.argument("goal", required=False, default="")
@click.option("--cron", required=True, help='Minute, hour, day of month, month, day of week: "0 7 * * MON-FRI".')
@click.option("--zone", default="UTC", show_default=True, help="Where it is read, for example Europe/Berlin.")
@click.option(
    "--overlap",
    type=click.Choice(list(OVERLAPS)),
    default="skip",
    show_default=True,
    help="When a task of it has not ended: skip this one, let it wait, or cancel the one before.",
)
@click.option("--catch-up", type=DURATION, default=None, help="How late one may be, 1m to 744h. Default: 1h.")
@click.option("--from", "start", type=MOMENT, default=None, help="Not before, in the schedule's zone.")
@click.option("--until", "end", type=MOMENT, default=None, help="Not after, in the schedule's zone.")
@pass_context
def create(
    context: Context,
    /,
    name: str,
    goal: str,
    cron: str,
    zone: str,
    overlap: str,
    catch_up: float | None,
    start: datetime | None,
    end: datetime | None,
    **options: Any,
) -> None:
    """Submit GOAL whenever CRON says so; `-` reads it from standard input. The options of `tenure submit` say how."""
    asked = pb.CreateScheduleRequest(
        name=name,
        spec=spec_of(request_of(goal, **options)),
        cron=cron,
        time_zone=zone,
        overlap_policy=OVERLAP_POLICIES.to_wire(OVERLAPS[overlap]),
        catch_up_window=None if catch_up is None else duration(catch_up),
        start_time=timestamp_in(zone, start),
        end_time=timestamp_in(zone, end),
    )

    async def work(client: Client) -> None:
        made = await client.create_schedule(asked)
        if context.as_json:
            context.emit(made)
            return
        echo(made.schedule_id)
        echo(f"{made.name} comes due {when_text(made.next_due_time, made.time_zone)}", err=True)

    context.run(work)


schedules.add_command(update)
create.params.extend(option for option in submit.params if option.name not in _NOT_OF_A_SCHEDULE)


@schedules.command("list")
@pass_context
def list_schedules(context: Context) -> None:
    """Show all schedules, by name."""

    async def work(client: Client) -> None:
        found = [schedule async for schedule in client.list_schedules()]
        if context.as_json:
            for schedule in found:
                context.emit(schedule)
        elif not found:
            echo('no schedules; create one: tenure schedules create NAME "GOAL" --cron "0 7 * * *"', err=True)
        else:
            show_all(context, found)

    context.run(work)


@schedules.command(short_help="Show SCHEDULE and what became of its due times.")
@_schedule
@click.option("--runs", type=click.IntRange(1, 100), default=10, show_default=True, help="How many of its runs.")
@pass_context
def get(context: Context, schedule: str, runs: int) -> None:
    """Show SCHEDULE, when it comes due next, and what became of its due times."""

    async def work(client: Client) -> None:
        found = await client.get_schedule(schedule, runs)
        if context.as_json:
            context.emit(found)
        else:
            show_schedule(context, found)

    context.run(work)


@schedules.command()
@_schedule
@click.option("--reason", required=True, help="Why; it is shown to others.")
@pass_context
def pause(context: Context, schedule: str, reason: str) -> None:
    """Let nothing of SCHEDULE come due. Tasks that run go on."""

    async def work(client: Client) -> None:
        asked = pb.PauseScheduleRequest(schedule=schedule, reason=reason)
        paused = (await client.schedules.PauseSchedule(asked)).schedule
        _tell(context, paused, f"{paused.name} is paused: {one_line(paused.pause_reason, 200)}")

    context.run(work)


@schedules.command(short_help="Go on with SCHEDULE.")
@_schedule
@pass_context
def resume(context: Context, schedule: str) -> None:
    """Go on with SCHEDULE from now. What came due meanwhile is not made up for."""

    async def work(client: Client) -> None:
        resumed = (await client.schedules.ResumeSchedule(pb.ResumeScheduleRequest(schedule=schedule))).schedule
        _tell(context, resumed, f"{resumed.name} comes due {when_text(resumed.next_due_time, resumed.time_zone)}")

    context.run(work)


@schedules.command(short_help="Create a task of SCHEDULE now.")
@_schedule
@click.option("--request-id", default="", help="The same id is the same task, however often sent.")
@pass_context
def trigger(context: Context, schedule: str, request_id: str) -> None:
    """Create a task of SCHEDULE now, also when it is paused, and print the task's id."""

    async def work(client: Client) -> None:
        asked = pb.TriggerScheduleRequest(schedule=schedule, request_id=request_id or str(uuid_utils.uuid7()))
        task = (await client.schedules.TriggerSchedule(asked)).task
        if context.as_json:
            context.emit(task)
            return
        echo(task.task_id)
        echo(f"Accepted. See it work: tenure watch {short_id(task.task_id)}", err=True)

    context.run(work)


@schedules.command()
@_schedule
@pass_context
def delete(context: Context, schedule: str) -> None:
    """Delete SCHEDULE and the record of its runs. Its tasks go on."""

    async def work(client: Client) -> None:
        if not (await client.schedules.DeleteSchedule(pb.DeleteScheduleRequest(schedule=schedule))).deleted:
            raise NotFound(f"there is no schedule {schedule}", reason="SCHEDULE_NOT_FOUND")
        if context.as_json:
            context.emit({"schedule": schedule, "deleted": True})
        else:
            echo(f"{schedule} is deleted")

    context.run(work)


def _tell(context: Context, schedule: pb.Schedule, words: str) -> None:
    if context.as_json:
        context.emit(schedule)
    else:
        echo(words)
