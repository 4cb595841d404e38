"""An operator's stop, from the command to the last call, and its end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import effects_of_turns
from tests.support.patience import PATIENCE_SECONDS

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
REASON = ("--reason", "ticket 7")


@asynccontextmanager
async def stopped(installation: Installation, *selectors: str) -> AsyncIterator[Done]:
    """Stops inside it, and resumes at its end."""
    address = installation.stack.gateway_address
    begun = await tenure("--json", "admin", "stop", *selectors, *REASON, address=address)
    assert begun.code == 0, begun.err
    try:
        yield begun
    finally:
        ended = await tenure("admin", "resume", *selectors, *REASON, address=address)
    assert ended.code == 0, ended.err


def is_stopped(entry: ledger_pb2.Entry) -> bool:
    return entry.body.transition.reason == "STOPPED"


def check_no_new_calls(installation: Installation, before: dict[str, int], in_flight: set[str]) -> None:
    """A call in flight was reserved before the stop, and the model may see it a moment after the answer."""
    for task_id, count in before.items():
        assert len(installation.model_calls(task_id)) - count <= (task_id in in_flight)


async def test_stopped_tasks_finish_after_the_resume(installation: Installation) -> None:
    """Each effect happens once, and nothing begins between the answer to the stop and the resume."""
    files = [uuid.uuid4().hex for _ in range(3)]
    made = [await installation.submit("sim-e2e-paced", file) for file in files]
    for task_id in made:
        await installation.until(task_id, "tool_outcome")
    address = installation.stack.gateway_address
    async with stopped(installation, "--all") as begun:
        (answer,) = begun.values
        assert answer["unconfirmed"] == []
        in_flight = {(call["task_id"], call["call_id"]): call["certainty"] for call in answer["calls"]}
        assert {task_id for task_id, _ in in_flight} <= set(made)
        asked = {task_id: len(installation.model_calls(task_id)) for task_id in made}
        for task_id in made:
            await installation.until(task_id, "transition", is_stopped)
        late = await installation.submit("sim-hello")
        effects = [installation.effects(file) for file in files]
        explained = await tenure("explain", made[0], address=address)
        assert "by tenant/default (everything): ticket 7" in explained.out
        assert "tenure admin resume --all" in explained.out
        listed = await tenure("admin", "stops", address=address)
        assert "everything" in listed.out
        open_calls = {call["task_id"] for call in answer["calls"] if call["certainty"] == "MODEL_CALL"}
        check_no_new_calls(installation, asked, open_calls)
        for task_id, file, before in zip(made, files, effects, strict=True):
            # The calls that were in flight may have come; nothing else.
            running = sum(name == task_id and certainty == "STILL_RUNS" for (name, _), certainty in in_flight.items())
            assert len(installation.effects(file)) - len(before) <= running
        assert (await installation.client.get(late)).state == task_pb2.TASK_STATE_QUEUED
    for task_id, file in zip(made, files, strict=True):
        assert (await installation.ended(task_id)).state == SUCCEEDED
        check_whole(await installation.entries(task_id))
        assert sorted(installation.effects(file)) == effects_of_turns(8)
    assert (await installation.ended(late)).state == SUCCEEDED


async def test_a_call_of_a_stopped_tool_waits(installation: Installation) -> None:
    """The task leaves its worker at the call, and makes it after the stop."""
    file = uuid.uuid4().hex
    async with stopped(installation, "--tool", "append_*"):
        task_id = await installation.submit("sim-e2e-keyed-paced", file)
        moved = await installation.until(task_id, "transition", is_stopped)
        assert "stopped tool append_*: ticket 7" in moved.body.transition.message
        other = await installation.submit("sim-hello")
        assert (await installation.ended(other)).state == SUCCEEDED
        assert installation.effects(file) == []
        explained = await tenure("explain", task_id, address=installation.stack.gateway_address)
        assert "tenure admin resume --tool 'append_*'" in explained.out
    assert (await installation.ended(task_id)).state == SUCCEEDED
    assert sorted(installation.effects(file)) == [f"keyed {number}" for number in range(1, 6)]


@pytest.mark.faults
async def test_no_call_begins_after_the_answer_under_load(installation: Installation) -> None:
    """Forty tasks at once, five stops: the seconds until the answer are in its log."""
    admin, loop = installation.client.admin, asyncio.get_running_loop()
    made = [await installation.submit("sim-e2e-paced", uuid.uuid4().hex) for _ in range(40)]
    seconds = list[float]()
    for _ in range(5):
        await asyncio.sleep(1.0)  # the load comes back between two stops
        asked_at = loop.time()
        begun = await admin.BeginStop(admin_pb.BeginStopRequest(all=True, reason="ticket 7"))
        seconds.append(loop.time() - asked_at)
        calls = {task_id: len(installation.model_calls(task_id)) for task_id in made}
        assert not begun.unconfirmed
        await asyncio.sleep(1.0)  # what could still begin would begin now
        model_calls = {call.task_id for call in begun.calls if call.certainty == admin_pb.CALL_CERTAINTY_MODEL_CALL}
        check_no_new_calls(installation, calls, model_calls)
        await admin.EndStop(admin_pb.EndStopRequest(all=True, reason="ticket 7"))
    logging.getLogger(__name__).info("seconds until the answer to a stop: %s", sorted(seconds))
    assert max(seconds) < PATIENCE_SECONDS
    for task_id in made:
        assert (await installation.ended(task_id)).state == SUCCEEDED
