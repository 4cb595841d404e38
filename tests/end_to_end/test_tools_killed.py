"""The tool service dies in the middle of a call: what happens then is what the call's effect class says."""

from __future__ import annotations

import uuid

import pytest

from tenure.v1 import task_pb2, tool_pb2
from tests.end_to_end.installation import Installation


async def killed_in_mid_call(install: Installation, model: str, file: str, **fields: object) -> str:
    """The tool service marked the call STARTED and died before its outcome."""
    tools = install.stack.services["tools"]
    await tools.drain()
    tools.start({"TENURE_FAILPOINTS": "tools.before_effect=1#kill9"})
    await tools.wait_ready()
    task_id = await install.submit(model, file, **fields)
    await install.died(tools)
    await tools.restart()
    return task_id


@pytest.mark.faults
@pytest.mark.parametrize("model", ["sim-e2e-keyed", "sim-e2e-idempotent", "sim-e2e-pure"])
async def test_a_call_that_may_be_repeated_is_run_again(own_installation: Installation, model: str) -> None:
    file = uuid.uuid4().hex
    task_id = await killed_in_mid_call(own_installation, model, file)
    task = await own_installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    outcomes = [
        entry.body.tool_outcome.outcome
        for entry in await own_installation.entries(task_id)
        if entry.body.HasField("tool_outcome")
    ]
    assert {outcome.status for outcome in outcomes} == {tool_pb2.OUTCOME_STATUS_SUCCEEDED}
    assert max(outcome.call_attempt for outcome in outcomes) == 2
    if model == "sim-e2e-keyed":
        assert own_installation.effects(file) == ["once"]


@pytest.mark.faults
async def test_a_program_keeps_its_own_bound_after_a_kill(own_installation: Installation) -> None:
    """The agent gave the program one second; the second runner of the call stops it after that time, too."""
    task_id = await killed_in_mid_call(own_installation, "sim-e2e-python-bound", uuid.uuid4().hex)
    task = await own_installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    entry = await own_installation.until(task_id, "tool_outcome")
    outcome = entry.body.tool_outcome.outcome
    assert (outcome.status, outcome.call_attempt) == (tool_pb2.OUTCOME_STATUS_TIMED_OUT, 2)
    assert "ended after 1 s of wall time" in outcome.content


@pytest.mark.faults
async def test_an_unsafe_call_is_in_doubt_and_waits_for_a_person(own_installation: Installation) -> None:
    file = uuid.uuid4().hex
    task_id = await killed_in_mid_call(own_installation, "sim-e2e-unsafe", file)
    task = await own_installation.in_state(task_id, "WAITING_USER")
    assert task.reason == "TOOL_IN_DOUBT"
    assert own_installation.effects(file) == []
    await own_installation.client.cancel(task_id, "nobody knows")
    cancelled = await own_installation.ended(task_id)
    assert cancelled.state == task_pb2.TASK_STATE_CANCELLED
    outcomes = [
        entry.body.tool_outcome.outcome.status
        for entry in await own_installation.entries(task_id)
        if entry.body.HasField("tool_outcome")
    ]
    assert outcomes == [tool_pb2.OUTCOME_STATUS_IN_DOUBT]


@pytest.mark.faults
async def test_an_unsafe_call_in_doubt_is_reported_if_configured(own_installation: Installation) -> None:
    file = uuid.uuid4().hex
    policy = task_pb2.TaskPolicy(on_in_doubt=task_pb2.IN_DOUBT_POLICY_TELL_MODEL)
    task_id = await killed_in_mid_call(own_installation, "sim-e2e-unsafe", file, policy=policy)
    assert (await own_installation.ended(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED
    assert own_installation.effects(file) == []
