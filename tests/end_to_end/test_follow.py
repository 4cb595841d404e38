"""`tenure tasks follow` and the Python client: every task's changes, through the gateway of a whole installation."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

import pytest

from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2
from tests.end_to_end.command import next_value, started, tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server


async def changes(process: Any, count: int) -> Any:
    """The next lines that tell of changes."""
    results: list[Any] = []
    while len(results) < count:
        value = await next_value(process)
        if value["kind"] == "change":
            results.append(value)
    return results


async def test_each_change_is_a_line_and_a_cursor_resumes_behind_it(installation: Installation) -> None:
    address = installation.stack.gateway_address
    label = ("--label", f"run={uuid.uuid4().hex}")
    async with started("--json", "tasks", "follow", *label, address=address) as process:
        assert (await next_value(process))["kind"] == "heartbeat"
        done = await tenure("submit", "find out", "--model", "sim-hello", *label, address=address)
        task_id = done.out.strip()
        queued, running, ended = await changes(process, 3)
    assert [each["state"] for each in (queued, running, ended)] == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert {each["task_id"] for each in (queued, running, ended)} == {task_id}
    assert ended["task"]["goal"] == "find out"
    async with started("--json", "tasks", "follow", "--after", queued["cursor"], *label, address=address) as process:
        assert await changes(process, 2) == [
            running | {"task": ended["task"]},  # as a later event shows it: with the task as it is by then
            ended,
        ]


@pytest.mark.faults
async def test_for_people_a_line_says_which_task_did_what(installation: Installation) -> None:
    address = installation.stack.gateway_address
    label = ("--label", f"run={uuid.uuid4().hex}")
    async with started("tasks", "follow", "--state", "succeeded", *label, address=address) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert (await process.stderr.readline()).startswith(b"following all tasks")
        await tenure("submit", "say hello to all of them", "--model", "sim-hello", *label, address=address)
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = (await process.stdout.readline()).decode()
    assert "SUCCEEDED" in line
    assert line.rstrip().endswith("say hello to all of them")


@pytest.mark.faults
async def test_the_tasks_of_a_source_are_followed(installation: Installation) -> None:
    address = installation.stack.gateway_address
    desk = f"manual/{uuid.uuid4().hex}"
    async with started("--json", "tasks", "follow", "--source", desk, address=address) as process:
        assert (await next_value(process))["kind"] == "heartbeat"
        for source in ("manual/other", desk):
            await tenure("submit", "find out", "--model", "sim-hello", "--source", source, address=address)
        [queued] = await changes(process, 1)
    assert queued["task"]["source"]["source_id"] == desk.removeprefix("manual/")


@pytest.mark.faults
async def test_a_cursor_of_another_installation_is_3_with_what_to_do(installation: Installation) -> None:
    foreign = "MSA4YjA3NzY1Mi0wMDAwLTAwMDAtMDAwMC0wMDAwMDAwMDAwMDAgNSA1"
    done = await tenure("tasks", "follow", "--after", foreign, address=installation.stack.gateway_address)
    assert done.code == Exit.REFUSED
    assert "list the tasks" in done.err


@pytest.mark.faults
async def test_a_follower_survives_restarts_of_ledger_and_gateway(own_installation: Installation) -> None:
    """Without a gap or a repeat, while a task runs."""
    stack = own_installation.stack
    seen: list[tuple[str, int]] = []

    async def watch() -> None:
        async with aclosing(own_installation.client.watch_tasks()) as events:
            async for event in events:
                begun.set()
                if event.HasField("change"):
                    seen.append((event.change.task_id, event.change.sequence))
                    if event.change.state == task_pb2.TASK_STATE_SUCCEEDED:
                        return

    begun = asyncio.Event()
    watching = asyncio.create_task(watch())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await begun.wait()
    task_id = await own_installation.submit("sim-e2e-paced", uuid.uuid4().hex)
    await own_installation.until(task_id, "tool_outcome")
    for name in ("checkpoint", "gateway"):
        stack.services[name].kill()
        await stack.services[name].restart()
    await own_installation.ended(task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await watching
    entries = await own_installation.entries(task_id)
    moved = [entry.sequence for entry in entries if entry.body.HasField("transition")]
    results = [sequence for changed, sequence in seen if changed == task_id]
    assert results == sorted(set(results))
    assert set(moved) >= set(results) >= {moved[0], moved[-1]}
