"""`tenure schedules`: rules that submit a task at each due time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.formatting import (
    ago,
    count_text,
    cut_text,
    goal_text,
    make_grid,
    make_list,
    make_table,
    one_line,
    seconds_text,
    short_id,
    state_style,
)
from tenure.cli.group import SectionedCommand
from tenure.cli.parameters import DURATION
from tenure.cli.submit import spec_of
from tenure.cli.task_options import SCHEDULE_OPTIONS, typed_names
from tenure.client import Client
from tenure.domain.agents import reference
from tenure.domain.errors import NotFound
from tenure.domain.schedules import OverlapPolicy, RunOutcome
from tenure.sdk.errors import named_arguments
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import duration, moment, seconds, state_name, timestamp
from tenure.wire.schedule_service import OVERLAP_POLICIES, RUN_OUTCOMES

# Requests: the spec of a schedule's tasks, and times in the schedule's zone.

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


def timestamp_in(zone: str, moment: datetime | None) -> Timestamp | None:
    """Returns the moment at which clocks of the zone show this time. Raises BadParameter for an unknown zone."""
    if moment is None:
        return None
    try:
        return timestamp(moment.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))
    except OverflowError:
        raise click.BadParameter(f"{moment:%Y-%m-%d} is out of range", param_hint="--from or --until") from None
    except (LookupError, ValueError, OSError):
        raise click.BadParameter(
            f"{zone} is not an IANA time zone; write for example Europe/Berlin", param_hint="--zone"
        ) from None


# Schedules as text.

OVERLAPS: Final = {policy.value.lower().replace("_", "-"): policy for policy in OverlapPolicy}


def when_text(due: Timestamp, zone: str) -> str:
    """Returns `Mon 2026-11-23 07:00 Europe/Berlin`, in the schedule's zone; `never` without a due time."""
    if not due.seconds:
        return "never"
    try:
        local = moment(due).astimezone(ZoneInfo(zone))
    except (LookupError, ValueError, OSError):  # this machine's time zone data may lack the zone
        local, zone = moment(due), "UTC"
    return f"{local:%a %Y-%m-%d %H:%M} {zone}"


def _overlap(schedule: pb.Schedule) -> str:
    policy = OVERLAP_POLICIES.to_domain(schedule.overlap_policy)
    return next(name for name, known in OVERLAPS.items() if known is policy)


def _next(schedule: pb.Schedule) -> Text:
    if schedule.paused:
        return Text("paused", "yellow")
    return Text(when_text(schedule.next_due_time, schedule.time_zone), "red" if schedule.problem else "")


def show_all(context: Context, schedules: Iterable[pb.Schedule]) -> None:
    """Prints a table of schedules."""
    table = make_list("NAME", "CRON", "NEXT", "OVERLAP", "RUNS", "SKIPPED", "GOAL", right=(4, 5))
    for one in schedules:
        counts = f"{one.started_runs:,}", f"{one.skipped_runs + one.failed_runs:,}"
        table.add_row(one.name, one.cron, _next(one), _overlap(one), *counts, cut_text(goal_text(one.spec), 120))
    context.console.print(table)


def show_schedule(context: Context, response: pb.GetScheduleResponse) -> None:
    """Prints one schedule and its newest runs."""
    schedule = response.schedule
    paused = f"{one_line(schedule.pause_reason, 200)} ({schedule.pause_actor})" if schedule.paused else ""
    failed = f", {schedule.failed_runs:,} failed" if schedule.failed_runs else ""
    waiting = f", {schedule.waiting_runs:,} waiting" if schedule.waiting_runs else ""
    rows: list[tuple[str, str | Text]] = [
        ("schedule", f"{schedule.name} · {schedule.schedule_id} · revision {schedule.revision}"),
        ("cron", f"{schedule.cron} · {schedule.time_zone}"),
        ("next", _next(schedule)),
        ("paused", paused),
        ("problem", Text(schedule.problem, "red") if schedule.problem else ""),
        ("from", when_text(schedule.start_time, schedule.time_zone) if schedule.HasField("start_time") else ""),
        ("until", when_text(schedule.end_time, schedule.time_zone) if schedule.HasField("end_time") else ""),
        ("overlap", _overlap(schedule)),
        ("catch up", f"due times at most {seconds_text(seconds(schedule.catch_up_window))} late"),
        ("runs", f"{count_text(schedule.started_runs, 'task')}, {schedule.skipped_runs:,} skipped{failed}{waiting}"),
        ("goal", one_line(goal_text(schedule.spec), 4 * context.console.width)),
        ("revision", _revision(schedule.spec)),
        ("model", schedule.spec.agent.model),
    ]
    context.console.print(make_grid(rows))
    if response.runs:
        context.console.print()
        _show_runs(context, response)


def _revision(spec: task_pb2.TaskSpec) -> str:
    """Returns the revision that all runs have; "" for the one that a submit gets at the time of the run."""
    return reference(spec.control.function, spec.agent_pin.revision) if spec.agent_pin.revision else ""


def _show_runs(context: Context, response: pb.GetScheduleResponse) -> None:
    table = make_table("DUE", "OUTCOME", "TASK", "STATE", "DECIDED", "REASON")
    for run in response.runs:
        outcome = RUN_OUTCOMES.to_domain(run.outcome)
        manual = run.source_run_id.startswith("trigger/")
        due = "triggered" if manual else when_text(run.due_time, response.schedule.time_zone).rpartition(" ")[0]
        outcome_text = f"{outcome}, {run.due_times:,} due times" if run.due_times > 1 else outcome.value
        state = state_name(run.task_state)
        style = "default" if outcome is RunOutcome.STARTED else "red" if outcome is RunOutcome.FAILED else "yellow"
        reason = f"{run.reason}: {run.message}" if run.message else run.reason
        table.add_row(
            due,
            Text(outcome_text, style),
            run.task_id or "-",
            Text(state or "-", state_style(state)),
            ago(run.record_time),
            one_line(reason, 200),
        )
    context.console.print(table)


# `tenure schedules update`.

PARTS: Final = {"goal": "goal"} | {option.name or "": option.path for option in SCHEDULE_OPTIONS}
"""The options that describe a task, each with the path of the spec's field that it changes."""

CAPS: Final = frozenset({PARTS["max_cost"], PARTS["no_max_cost"]})


@click.command(cls=SectionedCommand, short_help="Change SCHEDULE.")
@click.argument("schedule", metavar="SCHEDULE")
@click.option("--goal", default=None, help="The goal of its tasks.")
@click.option("--cron", default=None, help="The cron expression of its due times.")
@click.option("--zone", default=None, help="The time zone of its due times, for example Europe/Berlin.")
@click.option(
    "--overlap",
    type=click.Choice(list(OVERLAPS)),
    default=None,
    help="What to do at a due time while an earlier run is active.",
)
@click.option("--catch-up", type=DURATION, default=None, help="How late a due time may still start a task, 1m to 744h.")
@click.option(
    "--from", "start", type=MOMENT, default=None, help="No due times before this time, in the schedule's zone."
)
@click.option("--until", "end", type=MOMENT, default=None, help="No due times after this time, in the schedule's zone.")
@click.option("--no-from", is_flag=True, help="Remove the bound of --from.")
@click.option("--no-until", is_flag=True, help="Remove the bound of --until.")
@pass_context
@click.pass_context
def update(command: click.Context, context: Context, /, schedule: str, **options: Any) -> None:
    """Change SCHEDULE from now on. Options that are not given keep their values.

    The options of `tenure submit` change its tasks. If another client changes the schedule at the same time, one of the
    two changes is refused.
    """
    given = {name for name in options if command.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if not given:
        raise click.UsageError("give at least one option to change")
    changed = {name: options[name] for name in given}

    async def work(client: Client) -> None:
        schedule_value = (
            await client.schedules.GetSchedule(pb.GetScheduleRequest(schedule=schedule, run_count=1))
        ).schedule
        with named_arguments(typed_names(changed, goal="--goal")):
            updated = (await client.schedules.UpdateSchedule(update_request(schedule_value, changed))).schedule
        context.say(updated, f"{updated.name} is paused" if updated.paused else _next_due_text(updated))

    context.run(work)


update.params.extend(SCHEDULE_OPTIONS)


def update_request(schedule: pb.Schedule, changed: dict[str, Any]) -> pb.UpdateScheduleRequest:
    """Returns the update that the options describe, of the schedule in the revision that was read.

    Raises UsageError for options that exclude each other.
    """
    zone = changed.get("zone") or schedule.time_zone
    request = pb.UpdateScheduleRequest(
        schedule=schedule.schedule_id,
        expected_revision=schedule.revision,
        cron=changed.get("cron"),
        time_zone=changed.get("zone"),
        catch_up_window=duration(changed["catch_up"]) if "catch_up" in changed else None,
        start_time=timestamp_in(zone, _bound(changed, "start", "no_from")),
        end_time=timestamp_in(zone, _bound(changed, "end", "no_until")),
        clear_start_time="no_from" in changed,
        clear_end_time="no_until" in changed,
    )
    if "overlap" in changed:
        request.overlap_policy = OVERLAP_POLICIES.to_wire(OVERLAPS[changed["overlap"]])
    spec_options = changed.keys() & PARTS.keys()
    if spec_options:
        request.spec.CopyFrom(_spec(schedule.spec, {name: changed[name] for name in spec_options}))
    return request


def _bound(changed: dict[str, Any], name: str, none: str) -> datetime | None:
    if name in changed and none in changed:
        raise click.UsageError("a bound cannot be set and removed in one command")
    bound: datetime | None = changed.get(name)
    return bound


def _spec(present: task_pb2.TaskSpec, changed: dict[str, Any]) -> task_pb2.TaskSpec:
    """Returns the present spec with the changed fields, which are replaced and not merged."""
    spec, options = task_pb2.TaskSpec(), dict(changed)
    spec.CopyFrom(present)
    if present.HasField("control") and "agent" not in options:
        options.setdefault("function", present.control.function)
    new_spec = spec_of(options.pop("goal", present.goal), **options)
    paths = {PARTS[name] for name in changed}
    paths |= {"agent_pin"} if paths & {"control.function"} else set()
    paths |= CAPS if paths & CAPS else set()  # setting one of them unsets the other
    FieldMask(paths=sorted(paths)).MergeMessage(new_spec, spec, replace_message_field=True, replace_repeated_field=True)
    return spec


_schedule = click.argument("schedule", metavar="SCHEDULE")


@click.group()
def schedules() -> None:
    """Submit a task at each due time of a cron expression. SCHEDULE is a name or an id."""


@schedules.command(cls=SectionedCommand, short_help="Create a schedule.")
@click.argument("name")
@click.argument("goal", required=False, default="")
@click.option(
    "--cron", required=True, help='The due times: minute, hour, day of month, month, day of week: "0 7 * * MON-FRI".'
)
@click.option(
    "--zone", default="UTC", show_default=True, help="The time zone of the due times, for example Europe/Berlin."
)
@click.option(
    "--overlap",
    type=click.Choice(list(OVERLAPS)),
    default="skip",
    show_default=True,
    help="At a due time while an earlier run is active: skip this run, let it wait, or cancel the earlier one.",
)
@click.option(
    "--catch-up",
    type=DURATION,
    default=None,
    help="How late a due time may still start a task, 1m to 744h. Default: 1h.",
)
@click.option(
    "--from", "start", type=MOMENT, default=None, help="No due times before this time, in the schedule's zone."
)
@click.option("--until", "end", type=MOMENT, default=None, help="No due times after this time, in the schedule's zone.")
@with_client
async def create(
    context: Context,
    client: Client,
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
    """Create the schedule NAME, which submits GOAL at each due time of --cron.

    `-` reads GOAL from standard input. The options of `tenure submit` describe the tasks.
    """
    request = pb.CreateScheduleRequest(
        name=name,
        spec=spec_of(goal, **options),
        cron=cron,
        time_zone=zone,
        overlap_policy=OVERLAP_POLICIES.to_wire(OVERLAPS[overlap]),
        catch_up_window=None if catch_up is None else duration(catch_up),
        start_time=timestamp_in(zone, start),
        end_time=timestamp_in(zone, end),
    )

    with named_arguments(typed_names(options)):
        created = (await client.schedules.CreateSchedule(request)).schedule
    context.say(created, created.schedule_id, note=_next_due_text(created))


schedules.add_command(update)
create.params.extend(SCHEDULE_OPTIONS)


@schedules.command("list")
@with_client
async def list_schedules(context: Context, client: Client) -> None:
    """List all schedules, by name."""
    schedules = client.items(client.schedules.ListSchedules, pb.ListSchedulesRequest(), lambda page: page.schedules)
    await context.show_each(
        schedules, show_all, none='no schedules; create one: tenure schedules create NAME "GOAL" --cron "0 7 * * *"'
    )


@schedules.command(short_help="Show SCHEDULE and its newest runs.")
@_schedule
@click.option("--runs", type=click.IntRange(1, 100), default=10, show_default=True, help="Show this many of its runs.")
@with_client
async def get(context: Context, client: Client, schedule: str, runs: int) -> None:
    """Show SCHEDULE, its next due time, and its newest runs."""
    request = pb.GetScheduleRequest(schedule=schedule, run_count=runs)
    result = await client.schedules.GetSchedule(request)
    context.show(result, show_schedule)


@schedules.command()
@_schedule
@click.option("--reason", required=True, help="Why; recorded and shown to others.")
@with_client
async def pause(context: Context, client: Client, schedule: str, reason: str) -> None:
    """Pause SCHEDULE: it has no due times until it is resumed. Its running tasks continue."""
    request = pb.PauseScheduleRequest(schedule=schedule, reason=reason)
    paused = (await client.schedules.PauseSchedule(request)).schedule
    context.say(paused, f"{paused.name} is paused: {one_line(paused.pause_reason, 200)}")


@schedules.command(short_help="Resume SCHEDULE after a pause.")
@_schedule
@with_client
async def resume(context: Context, client: Client, schedule: str) -> None:
    """Resume SCHEDULE from now. Due times during the pause are not made up for."""
    resumed = (await client.schedules.ResumeSchedule(pb.ResumeScheduleRequest(schedule=schedule))).schedule
    context.say(resumed, _next_due_text(resumed))


@schedules.command(short_help="Submit a task of SCHEDULE now.")
@_schedule
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id creates no second task.",
)
@with_client
async def trigger(context: Context, client: Client, schedule: str, request_id: str) -> None:
    """Submit a task of SCHEDULE now, also while it is paused, and print the task's id."""
    request = pb.TriggerScheduleRequest(schedule=schedule, request_id=request_id)
    task = (await client.schedules.TriggerSchedule(request)).task
    context.say(task, task.task_id, note=f"Submitted. Watch it: tenure watch {short_id(task.task_id)}")


@schedules.command()
@_schedule
@with_client
async def delete(context: Context, client: Client, schedule: str) -> None:
    """Delete SCHEDULE and the records of its runs. Its tasks continue."""
    if not (await client.schedules.DeleteSchedule(pb.DeleteScheduleRequest(schedule=schedule))).deleted:
        raise NotFound(f"schedule {schedule} not found", reason="SCHEDULE_NOT_FOUND")
    context.say({"deleted": True}, f"{schedule} is deleted")


def _next_due_text(schedule: pb.Schedule) -> str:
    return f"{schedule.name}: next due {when_text(schedule.next_due_time, schedule.time_zone)}"
