"""Schedules on the screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context
from tenure.cli.facts import goal_text
from tenure.cli.tables import make_table
from tenure.cli.words import ago, count_text, one_line, seconds_text, state_style
from tenure.domain.schedules import OverlapPolicy, RunOutcome
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.enums import state_name
from tenure.wire.schedules import OVERLAP_POLICIES, RUN_OUTCOMES
from tenure.wire.times import moment, seconds

OVERLAPS: Final = {policy.value.lower().replace("_", "-"): policy for policy in OverlapPolicy}


def when_text(due: Timestamp, zone: str) -> str:
    """`Mon 2026-11-23 07:00 Europe/Berlin`, as the schedule reads it."""
    if not due.seconds:
        return "never again"
    try:
        local = moment(due).astimezone(ZoneInfo(zone))
    except (LookupError, ValueError, OSError):  # data of time zones differ between machines
        local, zone = moment(due), "UTC"
    return f"{local:%a %Y-%m-%d %H:%M} {zone}"


def _overlap(schedule: pb.Schedule) -> str:
    policy = OVERLAP_POLICIES.to_domain(schedule.overlap_policy)
    return next(word for word, known in OVERLAPS.items() if known is policy)


def _next(schedule: pb.Schedule) -> Text:
    if schedule.paused:
        return Text("paused", "yellow")
    return Text(when_text(schedule.next_due_time, schedule.time_zone), "red" if schedule.problem else "")


def show_all(context: Context, found: Iterable[pb.Schedule]) -> None:
    """A line each."""
    table = make_table("NAME", "CRON", "NEXT", "OVERLAP", "RAN", "SKIPPED", "GOAL")
    for column in (4, 5):
        table.columns[column].justify = "right"
    table.columns[6].no_wrap, table.columns[6].overflow = True, "ellipsis"
    for one in found:
        counts = f"{one.started_runs:,}", f"{one.skipped_runs + one.failed_runs:,}"
        table.add_row(one.name, one.cron, _next(one), _overlap(one), *counts, one_line(goal_text(one.spec), 120))
    context.console.print(table)


def show_schedule(context: Context, found: pb.GetScheduleResponse) -> None:
    """One, and what became of its due times."""
    schedule = found.schedule
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
        ("catch up", f"what is at most {seconds_text(seconds(schedule.catch_up_window))} late"),
        ("runs", f"{count_text(schedule.started_runs, 'task')}, {schedule.skipped_runs:,} skipped{failed}{waiting}"),
        ("goal", one_line(goal_text(schedule.spec), 4 * context.console.width)),
        ("model", schedule.spec.agent.model),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value:
            grid.add_row(name, value)
    context.console.print(grid)
    if found.runs:
        context.console.print()
        _show_runs(context, found)


def _show_runs(context: Context, found: pb.GetScheduleResponse) -> None:
    table = make_table("DUE", "OUTCOME", "TASK", "STATE", "DECIDED", "WHY")
    for run in found.runs:
        outcome = RUN_OUTCOMES.to_domain(run.outcome)
        manual = run.source_run_id.startswith("trigger/")
        due = "triggered" if manual else when_text(run.due_time, found.schedule.time_zone).rpartition(" ")[0]
        told = f"{outcome}, {run.due_times:,} of them" if run.due_times > 1 else outcome.value
        state = state_name(run.task_state)
        style = "default" if outcome is RunOutcome.STARTED else "red" if outcome is RunOutcome.FAILED else "yellow"
        why = f"{run.reason}: {run.message}" if run.message else run.reason
        table.add_row(
            due,
            Text(told, style),
            run.task_id or "-",
            Text(state or "-", state_style(state)),
            ago(run.record_time),
            one_line(why, 200),
        )
    context.console.print(table)
