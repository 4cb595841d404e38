"""Model calls of control functions through the gateway: what people see of them, their price, forks and the checker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from checker.verify import verify
from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, answers, check_whole
from tests.end_to_end.test_control import Workers, steps
from tests.end_to_end.test_verify import recorded

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
PRICE_OF_TOKEN = 10**6
"""In nano USD: of an output token of sim-e2e-priced."""


@pytest.fixture
def workers(installation: Installation, tmp_path: Path) -> Iterator[Workers]:
    ours = Workers(installation.stack, tmp_path)
    yield ours
    for worker in ours.started:
        worker.kill()


async def submit(installation: Installation, workers: Workers, model: str, max_nano_usd: int = 0) -> str:
    request = api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(
            queue=workers.queue,
            agent=task_pb2.AgentSpec(model=model),
            limits=task_pb2.Limits(max_nano_usd=max_nano_usd, no_money_cap=not max_nano_usd),
            control=task_pb2.ControlWork(
                function="conversing", input_json=workers.given(model=model, max_output_tokens=300)
            ),
        )
    )
    return (await installation.client.submit("the goal", request=request)).task_id


@pytest.mark.faults
async def test_people_see_the_calls_and_the_checker_agrees(installation: Installation, workers: Workers) -> None:
    """A fork between answer and result is refused; one after the first call makes only the second."""
    address = installation.stack.gateway_address
    await workers.start()
    task_id = await submit(installation, workers, "sim-hello")
    watched = await tenure("watch", task_id, address=address)
    assert watched.code == Exit.OK, watched.out
    lines = [line.strip() for line in watched.out.splitlines()]
    assert any(line.startswith("Step 2  ") and "final answer" not in line for line in lines), watched.out
    assert not any(line.startswith("✓ step 2") for line in lines), watched.out  # the answer is shown once
    exact = await tenure("watch", task_id, "-v", address=address)
    assert "✓ step 2: first" in exact.out
    assert watched.out.count("Hello! I am a simulated model.") >= 2
    assert (await tenure("explain", task_id, address=address)).code == Exit.OK

    entries = await installation.entries(task_id)
    check_whole(entries)
    assert answers(entries) == [2, 4]
    assert steps(entries) == ["prepare", "first", "second"]
    answer = next(entry.sequence for entry in entries if entry.body.HasField("assistant_message"))
    assert (await tenure("fork", task_id, "--at", str(answer), address=address)).code == Exit.REFUSED
    forked = (await tenure("fork", task_id, "--at", str(answer + 1), address=address)).out.split()[0]
    fork = await installation.ended(forked)
    assert fork.state == SUCCEEDED, fork.message
    assert len(installation.model_calls(task_id)) == 2
    assert [call["attempt"] for call in installation.model_calls(forked)] == [f"{forked}/4/1"]
    assert verify(await recorded(installation, task_id, forked)) == []


@pytest.mark.faults
async def test_a_cap_in_money_holds_for_the_calls_of_a_function(installation: Installation, workers: Workers) -> None:
    """The cap covers one call: the function gets less output than it asked for, and no second call."""
    await workers.start()
    task_id = await submit(installation, workers, "sim-e2e-priced", max_nano_usd=256 * PRICE_OF_TOKEN)
    task = await installation.ended(task_id)
    assert (task.state, task.reason) == (task_pb2.TASK_STATE_COST_EXCEEDED, "MONEY_LIMIT"), task.message
    (call,) = installation.model_calls(task_id)
    assert task.budget.used_nano_usd == call["output_tokens"] * PRICE_OF_TOKEN
    entries = await installation.entries(task_id)
    attempt = next(entry.body.model_attempt for entry in entries if entry.body.HasField("model_attempt"))
    assert (attempt.max_output_tokens, attempt.reserved_nano_usd) == (256, 256 * PRICE_OF_TOKEN)
    assert task.result, "the newest text is the result"
    assert verify(await recorded(installation, task_id)) == []


@pytest.mark.faults
async def test_a_killed_worker_leaves_a_history_without_violation(installation: Installation, workers: Workers) -> None:
    killed = await workers.start()
    control = task_pb2.ControlWork(function="conversing", input_json=workers.given(model="sim-hello", waits=True))
    request = api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(queue=workers.queue, control=control, limits=task_pb2.Limits(no_money_cap=True))
    )
    task_id = (await installation.client.submit("the goal", request=request)).task_id
    await installation.until(task_id, "control_step", lambda entry: entry.body.control_step.name == "second")
    killed.kill()
    await workers.start()
    workers.open_gate()
    task = await installation.ended(task_id)
    assert (task.state, task.claim_count) == (SUCCEEDED, 2), task.message
    assert json.loads(task.result)["goal"] == "the goal"
    assert len(installation.model_calls(task_id)) == 2, "recorded results need no call"
    assert verify(await recorded(installation, task_id)) == []
