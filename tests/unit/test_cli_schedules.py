"""What `tenure schedules update` asks for: what was said, and nothing else."""

from __future__ import annotations

from datetime import datetime
from io import StringIO
from pathlib import Path

import click
import pytest
from rich.console import Console

from tenure.cli.context import Context
from tenure.cli.group import ANYWHERE
from tenure.cli.schedules import PARTS, create, show_schedule, update, update_request
from tenure.cli.submit import submit
from tenure.sdk.operations_info import READERS
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import task_pb2

NOT_OF_A_SCHEDULE = {
    "watched",
    "request_id",
    "files",
    "conversation",
    "source",
    "exclusive",
    "at_most",
    "debounce",
    "start_at",
    "start_in",
}
FOUND = pb.Schedule(
    schedule_id="018f0000-0000-7000-8000-000000000001",
    revision=4,
    time_zone="Europe/Berlin",
    spec=task_pb2.TaskSpec(
        goal="tidy up",
        agent=task_pb2.AgentSpec(model="m", tools=task_pb2.ToolAllowlist(names=["a", "b"])),
        priority=task_pb2.PRIORITY_HIGH,
        labels={"team": "night"},
        limits=task_pb2.Limits(max_tokens=1000),
    ),
)


def test_unset_options_are_not_sent() -> None:
    request = update_request(FOUND, {"cron": "0 7 * * *"})
    assert request == pb.UpdateScheduleRequest(schedule=FOUND.schedule_id, expected_revision=4, cron="0 7 * * *")


def test_an_update_replaces_only_the_named_part() -> None:
    spec = update_request(FOUND, {"tools": ("c",), "labels": (("team", "day"),), "max_steps": 7}).spec
    assert list(spec.agent.tools.names) == ["c"]
    assert dict(spec.labels) == {"team": "day"}
    assert spec.limits == task_pb2.Limits(max_tokens=1000, max_steps=7)
    assert (spec.goal, spec.agent.model, spec.priority) == ("tidy up", "m", task_pb2.PRIORITY_HIGH)


def test_input_of_a_function_is_replaced() -> None:
    schedule = pb.Schedule(spec=task_pb2.TaskSpec(control=task_pb2.ControlWork(function="month_end", input_json="{}")))
    spec = update_request(schedule, {"given": "[]", "queue": "night"}).spec
    assert (spec.control, spec.queue) == (task_pb2.ControlWork(function="month_end", input_json="[]"), "night")


def test_empty_values_and_defaults_can_be_set() -> None:
    spec = update_request(FOUND, {"no_tools": True, "model": "", "result_corrections": 0, "goal": "go"}).spec
    assert (spec.goal, spec.agent.model, len(spec.agent.tools.names)) == ("go", "", 0)
    assert spec.agent.HasField("tools")
    assert spec.policy.HasField("max_result_corrections")


def test_a_money_cap_and_no_money_cap_replace_each_other() -> None:
    none = update_request(FOUND, {"no_max_cost": True}).spec
    assert (none.limits.max_nano_usd, none.limits.no_money_cap) == (0, True)
    schedule = pb.Schedule()
    schedule.CopyFrom(FOUND)
    schedule.spec.CopyFrom(none)
    capped = update_request(schedule, {"max_cost": 5}).spec
    assert (capped.limits.max_nano_usd, capped.limits.no_money_cap) == (5, False)
    schedule.spec.CopyFrom(capped)
    assert update_request(schedule, {"no_max_cost": True}).spec == none


def test_bound_is_in_the_zone_of_the_schedule() -> None:
    noon = datetime(2027, 1, 1, 12)  # noqa: DTZ001  as it is typed
    assert update_request(FOUND, {"start": noon}).start_time.ToJsonString() == "2027-01-01T11:00:00Z"
    assert update_request(FOUND, {"start": noon, "zone": "UTC"}).start_time.ToJsonString() == "2027-01-01T12:00:00Z"
    assert update_request(FOUND, {"no_until": True}).clear_end_time
    with pytest.raises(click.UsageError):
        update_request(FOUND, {"start": noon, "no_from": True})


def test_every_option_of_a_task_can_be_changed() -> None:
    options = {option.name for option in submit.params} - NOT_OF_A_SCHEDULE
    assert options - set(ANYWHERE) == set(PARTS)  # every command has those of ANYWHERE
    assert set(PARTS) <= {option.name for option in update.params}


def test_create_has_no_option_that_would_have_no_effect() -> None:
    assert {option.name for option in create.params}.isdisjoint(NOT_OF_A_SCHEDULE)


@pytest.mark.parametrize(("revision", "expected"), [(7, True), (0, False)])
def test_pinned_schedule_shows_its_revision(revision: int, expected: bool, tmp_path: Path) -> None:
    """In the text and in the JSON: `support` gets the current revision at each run, `support@7` this one."""
    pin = task_pb2.AgentPin(revision=revision) if revision else None
    spec = task_pb2.TaskSpec(goal="x", control=task_pb2.ControlWork(function="support"), agent_pin=pin)
    console = Console(file=StringIO(), width=200)
    context = Context("127.0.0.1:1", None, as_json=False, data_dir=tmp_path, console=console, environment={})
    show_schedule(context, pb.GetScheduleResponse(schedule=pb.Schedule(name="night", spec=spec)))
    assert isinstance(console.file, StringIO)
    assert ("support@7" in console.file.getvalue()) is expected
    assert READERS[pb.Schedule](pb.Schedule(spec=spec)).task.agent_revision == (revision or None)
