"""Schedules on a whole installation: the command as a stranger uses it, and a due time at which no ledger is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from devstack import Stack
from tenure.cli.exit_codes import Exit
from tenure.client import Client
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import moment
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS
from tests.support.shifted_clocks import Clocks

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

EVERY_MINUTE = "* * * * *"
A_DAY = 86_400.0


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path / "clocks")


@pytest.fixture
async def small(tmp_path: Path, clocks: Clocks) -> AsyncIterator[Installation]:
    """Two ledgers, one worker; every kind of service has a wall clock that can be set."""
    wanted = options(tmp_path, workers=1, replicas={"checkpoint": 2}, environment=clocks.environment())
    async with Stack(wanted) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


async def started(install: Installation, name: str, count: int) -> list[pb.ScheduleRun]:
    """Its runs that have tasks, oldest first, once there are so many."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            schedule = await install.client.schedules.GetSchedule(pb.GetScheduleRequest(schedule=name, run_count=100))
            runs = [run for run in reversed(schedule.runs) if run.task_id]
            if len(runs) >= count:
                return runs
            await asyncio.sleep(0.1)


async def brought_forward(install: Installation, schedule: pb.Schedule) -> datetime:
    """A due time that has passed while no ledger lived, without a minute of waiting: as if the schedule had been made
    a minute earlier. Its own, if a ledger was there for it after all.
    """
    forward = (
        "update ledger.schedules set next_due_at = date_trunc('minute', clock_timestamp()),"
        " look_at = date_trunc('minute', clock_timestamp()) where name = %s and next_due_at = %s returning next_due_at"
    )
    due = moment(schedule.next_due_time)
    async with await psycopg.AsyncConnection.connect(install.stack.postgres_dsn, autocommit=True) as postgres:
        row = await (await postgres.execute(forward, (schedule.name, due))).fetchone()
    return row[0] if row else due


@pytest.mark.faults
async def test_a_missed_due_time_is_made_up_for_once(small: Installation, clocks: Clocks) -> None:
    """Both ledgers are killed before it and come back after it; their own clocks are a day ahead, then a day behind."""
    clocks.shift("checkpoint", wall_seconds=A_DAY)
    request = pb.CreateScheduleRequest(
        name="watch",
        cron=EVERY_MINUTE,
        overlap_policy=pb.OVERLAP_POLICY_QUEUE,
        spec=task_pb2.TaskSpec(goal="say hello", agent=task_pb2.AgentSpec(model="sim-hello")),
    )
    schedule = (await small.client.schedules.CreateSchedule(request)).schedule
    for ledger in small.stack.replicas("checkpoint"):
        ledger.kill()
    due = await brought_forward(small, schedule)
    clocks.shift("checkpoint", wall_seconds=-A_DAY)
    await asyncio.gather(*(ledger.restart() for ledger in small.stack.replicas("checkpoint")))
    runs = await started(small, "watch", 1)
    assert moment(runs[0].due_time) == due
    task = await small.ended(runs[0].task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED
    assert (task.spec.source.source_id, task.spec.source.source_run_id) == (
        schedule.schedule_id,
        runs[0].source_run_id,
    )
    await small.client.schedules.DeleteSchedule(pb.DeleteScheduleRequest(schedule="watch"))
    tasks = [one async for one in small.client.list_tasks()]
    run_ids = [one.spec.source.source_run_id for one in tasks]
    assert len(set(run_ids)) == len(run_ids)
    assert set(run_ids) >= {run.source_run_id for run in runs}


async def test_the_command_creates_shows_pauses_triggers_and_deletes(installation: Installation) -> None:
    async def run(*arguments: str) -> Done:
        return await tenure(*arguments, address=installation.stack.gateway_address)

    create = ("schedules", "create", "yearly", "say hello", "--cron", "30 7 1 1 *", "--zone", "Europe/Berlin")
    done = await run(*create, "--model", "sim-hello", "--label", "team=night", "--overlap", "queue", "--catch-up", "2h")
    assert done.code == Exit.OK
    schedule_id = done.out.strip()
    assert "07:30 Europe/Berlin" in done.err
    assert (await run(*create)).code == Exit.REFUSED
    assert (await run("schedules", "create", "bad", "x", "--cron", "61 * * * *")).code == Exit.REFUSED

    [listed] = [one for one in (await run("--json", "schedules", "list")).values if one["name"] == "yearly"]
    assert (listed["schedule_id"], listed["overlap_policy"]) == (schedule_id, "QUEUE")
    assert listed["task"]["model"] == "sim-hello"
    assert (listed["task"]["labels"], listed["catch_up_seconds"]) == ({"team": "night"}, 7200.0)
    assert "yearly" in (await run("schedules", "list")).out

    task_id = (await run("schedules", "trigger", "yearly")).out.strip()
    assert (await run("tasks", "wait", task_id)).code == Exit.OK
    assert (await run("schedules", "pause", "yearly", "--reason", "moving house")).code == Exit.OK
    shown = (await run("schedules", "get", "yearly")).out
    assert "moving house" in shown
    assert task_id in shown
    assert "SUCCEEDED" in shown
    (item,) = (await run("--json", "schedules", "get", "yearly")).values
    assert (item["schedule"]["paused"], item["runs"][0]["task_id"]) == (True, task_id)
    assert "07:30 Europe/Berlin" in (await run("schedules", "resume", "yearly")).out

    update = ("schedules", "update", "yearly", "--goal", "say goodbye", "--zone", "UTC", "--label", "team=day")
    assert "07:30 UTC" in (await run(*update, "--max-steps", "7")).out
    (changed,) = (await run("--json", "schedules", "get", "yearly")).values
    task = changed["schedule"]["task"]
    assert (task["goal"], task["labels"], task["limits"]["max_steps"]) == ("say goodbye", {"team": "day"}, 7)
    assert (task["model"], changed["schedule"]["revision"]) == ("sim-hello", 2)
    assert (await run("schedules", "update", "yearly", "--cron", "61 * * * *")).code == Exit.REFUSED
    second = (await run("schedules", "trigger", "yearly")).out.strip()
    assert (await installation.ended(second)).spec.goal == "say goodbye"

    assert (await run("schedules", "delete", "yearly")).code == Exit.OK
    assert (await run("schedules", "delete", "yearly")).code == Exit.REFUSED
    assert (await run("get", task_id)).code == Exit.OK
