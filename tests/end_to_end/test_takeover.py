"""Workers are killed, frozen and drained; the task goes on, and nothing happens twice."""

from __future__ import annotations

import uuid

import pytest

from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, answers, check_whole

EFFECTS = sorted([f"keyed {n}" for n in range(1, 9)] + [f"unsafe {n}" for n in range(1, 9)])


async def check_done(install: Installation, task_id: str, file: str, *, takeovers: int) -> None:
    """Succeeded, every effect exactly once, at most one model call repeated for each takeover."""
    task = await install.ended(task_id)
    entries = await install.entries(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, task.message
    assert task.claim_count == takeovers + 1
    check_whole(entries)
    assert sorted(install.effects(file)) == EFFECTS
    assert len(install.model_calls(task_id)) <= len(answers(entries)) + takeovers


async def test_a_killed_worker_is_replaced(own_installation: Installation) -> None:
    file = uuid.uuid4().hex
    task_id = await own_installation.submit("sim-e2e-paced", file)
    await own_installation.until(task_id, "tool_intent", lambda entry: entry.step == 3)
    own_installation.owner(await own_installation.client.get(task_id)).kill()
    await check_done(own_installation, task_id, file, takeovers=1)


@pytest.mark.faults
async def test_a_frozen_worker_is_replaced_and_refused_when_it_wakes(own_installation: Installation) -> None:
    file = uuid.uuid4().hex
    task_id = await own_installation.submit("sim-e2e-paced", file)
    await own_installation.until(task_id, "tool_intent", lambda entry: entry.step == 3)
    frozen = own_installation.owner(await own_installation.client.get(task_id))
    frozen.freeze()
    try:
        await check_done(own_installation, task_id, file, takeovers=1)
    finally:
        frozen.wake()
    later = await own_installation.submit("sim-hello")
    assert (await own_installation.ended(later)).state == task_pb2.TASK_STATE_SUCCEEDED
    assert frozen.exit_code is None, frozen.log_tail()
    assert sorted(own_installation.effects(file)) == EFFECTS


@pytest.mark.faults
async def test_a_drained_worker_gives_its_task_back_at_once(own_installation: Installation) -> None:
    file = uuid.uuid4().hex
    task_id = await own_installation.submit("sim-e2e-paced", file)
    await own_installation.until(task_id, "tool_intent", lambda entry: entry.step == 3)
    drained = own_installation.owner(await own_installation.client.get(task_id))
    assert await drained.drain() == 0
    moved = await own_installation.until(
        task_id, "transition", lambda entry: entry.body.transition.reason == "WORKER_DRAINED"
    )
    assert moved.actor == drained.name
    await check_done(own_installation, task_id, file, takeovers=1)
