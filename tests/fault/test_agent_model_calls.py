"""Model calls of agents in Python at model runners: their workers have no key, and die without a second request."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, TaskSpec
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.fault.test_model_calls import (
    TEXT,
    StreamedUpdates,
    check_budget,
    check_history,
    check_redirected,
    check_text,
    sent,
    usage_of,
    watching,
    worker_stack,
)
from tests.fault.test_zombies import logged
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.sweeps import first

pytestmark = pytest.mark.server
__all__ = ("worker_stack",)

AGENTS = first(
    [
        "pydantic-messages",
        "sdk-responses",
        "pydantic-messages-whole",
        "pydantic-chat",
        "pydantic-responses",
        "pydantic-responses-whole",
        "sdk-chat",
        "sdk-chat-whole",
        "own-client",
    ]
)
WORKER = {"loops": "control", "control_modules": "tests.support.runner_agents"}


@pytest.fixture
def bench(bench: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    """A bench whose workers have no key, unless they call directly."""
    add = bench.stack.add_worker

    def without_keys(environment: dict[str, str]) -> ServiceProcess:
        direct = environment.get("TENURE_WORKER_FUNCTIONS_USE_RUNNER") == "false"
        kept = {name: value for name, value in environment.items() if direct or not name.endswith("_API_KEY")}
        keys = {"OPENAI_API_KEY": "sk-test"} if direct else {}
        return add({**kept, **keys, "PYTHONPATH": str(REPOSITORY)})

    monkeypatch.setattr(bench.stack, "add_worker", without_keys)
    return bench


async def begun(
    bench: WorkerBench, agent: str, *, failpoints: str = "", workers: int = 2
) -> tuple[str, ServiceProcess]:
    """A task of the agent whose request is at the provider, and its owner."""
    started = [await bench.start_worker(failpoints=failpoints, **WORKER) for _ in range(workers)]
    task_id = await submitted(bench, agent)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not sent(bench, task_id):
            await asyncio.sleep(0.05)
    owner = (await bench.task(task_id)).owner
    return task_id, next(worker for worker in started if worker.name == owner)


async def submitted(bench: WorkerBench, agent: str) -> str:
    spec = TaskSpec(
        goal="Write",
        agent=AgentSpec(loop="control", model="sim-python"),  # sets no default cap for a model without a price
        queue=bench.queue,
        control=ControlWork(agent, "null"),
    )
    request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
    return str((await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)


@asynccontextmanager
async def under_way(
    bench: WorkerBench, agent: str, **options: Any
) -> AsyncIterator[tuple[str, ServiceProcess, StreamedUpdates]]:
    """A task in the middle of its answer, and what its watcher has read, unless the answer comes as a whole."""
    task_id, owner = await begun(bench, agent, **options)
    async with watching(bench, task_id) as updates:
        if not agent.endswith(("-whole", "-client", "-clock")):
            await updates.has(50)
        yield task_id, owner, updates


async def check_paid_once(bench: WorkerBench, task_id: str, *, claims: int) -> None:
    """The provider got one request, and the ledger has its answer and its bill; the checker agrees."""
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert (json.loads(task.result), task.claim_count) == (TEXT, claims)
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1}
    (answer,) = await bench.bodies(task_id, facts.AssistantMessage)
    (call,) = bench.model_calls(task_id)
    assert answer.usage == usage_of(call)
    assert not await bench.bodies(task_id, facts.AttemptLost)
    assert not await bench.bodies(task_id, facts.ModelFailure)
    await check_budget(bench, task_id, [answer.usage])
    await check_history(bench, task_id)


@pytest.mark.parametrize("agent", AGENTS)
async def test_agents_next_worker_joins_its_call(bench: WorkerBench, agent: str) -> None:
    async with under_way(bench, agent) as (task_id, owner, updates):
        before = len(updates.text)
        owner.kill()
        await bench.reached(task_id, facts.AssistantMessage)
        if before:
            check_text(updates, more_than=before)
    await check_paid_once(bench, task_id, claims=2)


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["pydantic-messages", "sdk-chat"])
async def test_drain_costs_an_agent_nothing(bench: WorkerBench, agent: str) -> None:
    async with under_way(bench, agent) as (task_id, owner, updates):
        before = len(updates.text)
        assert await owner.drain() == 0
        await bench.reached(task_id, facts.AssistantMessage)
        check_text(updates, more_than=before)
    await check_paid_once(bench, task_id, claims=2)


@pytest.mark.faults
async def test_frozen_agent_wakes_and_pays_nothing(bench: WorkerBench) -> None:
    """It is deaf to the loss of its claim: the runner and the ledger refuse what it sends."""
    async with under_way(bench, "pydantic-messages", failpoints="worker.ignore_trust_window") as (task_id, sleeper, _):
        sleeper.freeze()
        asleep = asyncio.create_task(asyncio.sleep(2 * SHORT_LIFE_SECONDS))
        await bench.reached(task_id, facts.AssistantMessage)
    await check_paid_once(bench, task_id, claims=2)
    whole = await bench.entries(task_id)
    await asleep
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await bench.entries(task_id) == whole
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1}


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["sdk-responses", "pydantic-messages"])
async def test_cancel_stops_an_agents_call_at_the_provider(bench: WorkerBench, agent: str) -> None:
    async with under_way(bench, agent) as (task_id, _, _):
        await bench.cancel(task_id)
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert failure.error_class == "INTERRUPTED"
    assert failure.usage.output_tokens > 0
    await check_budget(bench, task_id, [failure.usage])
    await check_history(bench, task_id)
    (call,) = bench.model_calls(task_id)
    assert call["ending"] == "abandoned"


@pytest.mark.parametrize(
    ("agent", "how"),
    first([("pydantic-redirected", "running"), ("sdk-redirected", "running"), ("sdk-redirected", "killed")]),
)
async def test_a_message_interrupts_an_agents_call(bench: WorkerBench, agent: str, how: str) -> None:
    """Also if the owner died between the record of the message and the stop: the next owner does not join the call."""
    bench.simulator.order_fault(drip_ms=600, count=1)
    async with under_way(bench, agent) as (task_id, owner, _):
        if how == "killed":
            owner.freeze()
        await bench.tell(task_id, "in French", interrupt=True)
        if how == "killed":
            owner.kill()
        await check_redirected(bench, task_id, attempts=["1/1", "3/1"], claims=2 if how == "killed" else 1)


@pytest.mark.parametrize("agent", first(["pydantic-messages", "sdk-chat"]))
async def test_unusable_answer_is_bought_three_times(bench: WorkerBench, agent: str) -> None:
    """The client sees a broken connection, which the policy repeated up to twenty times."""
    bench.simulator.order_answer(b"data: {no JSON\n\n", count=20)
    await bench.start_worker(**WORKER)
    task_id = await submitted(bench, agent)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "MODEL_ANSWER_UNUSABLE"), task.message
    assert sent(bench, task_id) == {f"{task_id}/1/{number}": 1 for number in (1, 2, 3)}
    failures = await bench.bodies(task_id, facts.ModelFailure)
    assert [failure.error_class for failure in failures] == ["UNUSABLE_ANSWER"] * 3
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_another_request_of_a_function_is_another_attempt(bench: WorkerBench) -> None:
    """Its prompt has the time, so the next owner cannot join: the call is stopped and billed, as the record says."""
    async with under_way(bench, "by-the-clock") as (task_id, owner, _):
        owner.kill()
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert "another request" in failure.message
    assert "in a step" in failure.message
    (answer,) = await bench.bodies(task_id, facts.AssistantMessage)
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/1/2": 1}
    await check_budget(bench, task_id, [failure.usage, answer.usage])
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_call_that_its_function_cancels_is_stopped_and_billed(bench: WorkerBench) -> None:
    async with under_way(bench, "impatient-client") as (task_id, _, _):
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    (answer,) = await bench.bodies(task_id, facts.AssistantMessage)
    assert failure.error_class == "INTERRUPTED"
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/2/1": 1}
    await check_budget(bench, task_id, [failure.usage, answer.usage])
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_worker_that_calls_directly_stops_and_repeats_the_call(bench: WorkerBench) -> None:
    async with under_way(bench, "pydantic-messages", workers=1) as (task_id, owner, _):
        owner.kill()
        await bench.in_state(task_id, TaskState.QUEUED)
        await bench.start_worker(functions_use_runner="false", **WORKER)
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/1/2": 1}
    ways = [each.outlives_worker for each in await bench.bodies(task_id, facts.ModelAttempt)]
    assert (failure.error_class, ways) == ("INTERRUPTED", [True, False])
    await check_history(bench, task_id)
