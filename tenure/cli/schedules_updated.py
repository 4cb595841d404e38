"""`tenure schedules update`: what it takes, and which part of a schedule each of its options changes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click
from click.core import ParameterSource
from google.protobuf.field_mask_pb2 import FieldMask

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION
from tenure.cli.schedules_shown import OVERLAPS, when_text
from tenure.cli.schedules_typed import MOMENT, spec_of, timestamp_in
from tenure.cli.submit import request_of, submit
from tenure.client import Client
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.schedules import OVERLAP_POLICIES
from tenure.wire.times import duration

PARTS: Final = {
    "goal": "goal",
    "function": "control.function",
    "given": "control.input_json",
    "model": "agent.model",
    "system": "agent.system",
    "tools": "agent.tools",
    "no_tools": "agent.tools",
    "approve_tools": "agent.approve_tools",
    "max_output_tokens": "agent.max_output_tokens",
    "loop": "agent.loop",
    "max_tokens": "limits.max_tokens",
    "max_cost": "limits.max_nano_usd",
    "no_max_cost": "limits.no_money_cap",
    "max_steps": "limits.max_steps",
    "timeout": "limits.timeout",
    "priority": "priority",
    "queue": "queue",
    "labels": "labels",
    "retries": "policy.retry",
    "phase_timeouts": "policy.timeouts",
    "on_in_doubt": "policy.on_in_doubt",
    "on_lease_lost": "policy.on_lease_lost",
    "result_schema": "result_schema_json",
    "result_corrections": "policy.max_result_corrections",
}
"""Of the options that say what a task is, and of the spec."""

CAPS: Final = frozenset({PARTS["max_cost"], PARTS["no_max_cost"]})


@click.command(short_help="Change SCHEDULE.")
@click.argument("schedule", metavar="SCHEDULE")
@click.option("--goal", default=None, help="Another goal.")
@click.option("--cron", default=None, help="When it comes due.")
@click.option("--zone", default=None, help="Where that is read, for example Europe/Berlin.")
@click.option("--overlap", type=click.Choice(list(OVERLAPS)), default=None, help="When a task of it has not ended.")
@click.option("--catch-up", type=DURATION, default=None, help="How late one may be, 1m to 744h.")
@click.option("--from", "start", type=MOMENT, default=None, help="Not before, in the schedule's zone.")
@click.option("--until", "end", type=MOMENT, default=None, help="Not after, in the schedule's zone.")
@click.option("--no-from", is_flag=True, help="No bound at its beginning any more.")
@click.option("--no-until", is_flag=True, help="No bound at its end any more.")
@pass_context
@click.pass_context
def update(command: click.Context, context: Context, /, schedule: str, **options: Any) -> None:
    """Change SCHEDULE from now on. What is not given stays as it is.

    The options of `tenure submit` say what its tasks are. When somebody else changes it at the same moment, one of the
    two is told so and changes nothing.
    """
    given = {name for name in options if command.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if not given:
        raise click.UsageError("say what is to be otherwise")
    told = {name: options[name] for name in given}

    async def work(client: Client) -> None:
        found = (await client.get_schedule(schedule, 1)).schedule
        updated = await client.update_schedule(update_request(found, told))
        if context.as_json:
            context.emit(updated)
        else:
            due = "is paused" if updated.paused else f"comes due {when_text(updated.next_due_time, updated.time_zone)}"
            echo(f"{updated.name} {due}")

    context.run(work)


update.params.extend(option for option in submit.params if option.name in PARTS and option.name != "goal")


def update_request(found: pb.Schedule, told: dict[str, Any]) -> pb.UpdateScheduleRequest:
    """What was told, of the schedule as it was found. UsageError for what cannot be said together."""
    zone = told.get("zone") or found.time_zone
    request = pb.UpdateScheduleRequest(
        schedule=found.schedule_id,
        expected_revision=found.revision,
        cron=told.get("cron"),
        time_zone=told.get("zone"),
        catch_up_window=duration(told["catch_up"]) if "catch_up" in told else None,
        start_time=timestamp_in(zone, _bound(told, "start", "no_from")),
        end_time=timestamp_in(zone, _bound(told, "end", "no_until")),
        clear_start_time="no_from" in told,
        clear_end_time="no_until" in told,
    )
    if "overlap" in told:
        request.overlap_policy = OVERLAP_POLICIES.to_wire(OVERLAPS[told["overlap"]])
    parts = told.keys() & PARTS.keys()
    if parts:
        request.spec.CopyFrom(_spec(found.spec, {name: told[name] for name in parts}))
    return request


def _bound(told: dict[str, Any], name: str, none: str) -> datetime | None:
    if name in told and none in told:
        raise click.UsageError("a bound cannot be set and taken away")
    bound: datetime | None = told.get(name)
    return bound


def _spec(found: task_pb2.TaskSpec, told: dict[str, Any]) -> task_pb2.TaskSpec:
    """As it was found, with the parts that were told; these are replaced, not merged."""
    spec, options = task_pb2.TaskSpec(), dict(told)
    spec.CopyFrom(found)
    if found.HasField("control"):
        options.setdefault("function", found.control.function)
    asked = spec_of(request_of(options.pop("goal", found.goal), **options))
    paths = {PARTS[name] for name in told}
    paths |= CAPS if paths & CAPS else set()  # setting one of them unsets the other
    FieldMask(paths=sorted(paths)).MergeMessage(asked, spec, replace_message_field=True, replace_repeated_field=True)
    return spec
