"""A cancel ends a task in every state, once, and nothing begins after it."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tenure.v1 import task_pb2, tool_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.support.patience import PATIENCE_SECONDS

CANCELLED = task_pb2.TASK_STATE_CANCELLED


async def check_cancelled(install: Installation, task_id: str) -> task_pb2.Task:
    await install.client.cancel(task_id, "no longer wanted")
    task = await install.ended(task_id)
    assert task.state == CANCELLED
    check_whole(await install.entries(task_id))
    again = await install.client.cancel(task_id, "once more")
    assert again.state == CANCELLED
    assert again.sequence == task.sequence
    return task


async def test_a_task_is_cancelled_while_the_model_speaks(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    await installation.speaking(task_id)
    await check_cancelled(installation, task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):  # the simulator writes the call down when it sees the connection end
        while not (calls := installation.model_calls(task_id)):
            await asyncio.sleep(0.05)
    assert [call["ending"] for call in calls] == ["abandoned"]


@pytest.mark.faults
async def test_a_task_is_cancelled_while_a_tool_runs(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-idempotent", uuid.uuid4().hex)
    await installation.until(task_id, "tool_intent")
    await check_cancelled(installation, task_id)
    outcomes = [
        entry.body.tool_outcome.outcome.status
        for entry in await installation.entries(task_id)
        if entry.body.HasField("tool_outcome")
    ]
    assert len(outcomes) == 1
    assert outcomes[0] != tool_pb2.OUTCOME_STATUS_SUCCEEDED


@pytest.mark.faults
async def test_a_task_is_cancelled_while_its_worker_is_frozen(own_installation: Installation) -> None:
    task_id = await own_installation.submit("sim-e2e-slow-answer")
    await own_installation.until(task_id, "model_attempt")
    frozen = own_installation.owner(await own_installation.client.get(task_id))
    frozen.freeze()
    try:
        await check_cancelled(own_installation, task_id)
    finally:
        frozen.wake()
