"""A worker goes on, waits or lets go in good order when the services it needs break."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from typing import Any

import pytest

from devstack.child_process import ServiceDied
from devstack.options import choose_address
from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.states import TaskState
from tenure.domain.task import InDoubtPolicy, TaskPolicy
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.ledger import operator_request_to_wire
from tests.support.fix_worker import WorkerBench
from tests.support.lives import SHORT_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS


@pytest.fixture(scope="module")
def worker_etcd() -> str:
    return ""  # an own one, to be paused


@pytest.fixture(scope="module")
def stack_life() -> dict[str, str]:
    return SHORT_LIFE


PACED_EFFECTS = sorted(str(number) for number in range(6))


@pytest.mark.faults
async def test_a_checkpoint_that_restarts_costs_no_step(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    await bench.restart("checkpoint")
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    assert len(bench.model_calls(task_id)) == 7


@pytest.mark.faults
async def test_a_commit_whose_answer_was_lost_is_not_written_twice(bench: WorkerBench) -> None:
    await bench.start_worker()
    checkpoint = await bench.restart("checkpoint", failpoints="checkpoint.after_commit=4#kill9")
    task_id = await bench.submit("sim-worker-paced")
    await bench.died(checkpoint)
    await bench.restart("checkpoint")
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    assert len(bench.model_calls(task_id)) == 7
    assert sorted(await bench.effects(task_id)) == PACED_EFFECTS


@pytest.mark.faults
async def test_a_ledger_without_commits_gets_its_task_released(bench: WorkerBench) -> None:
    worker = await bench.start_worker()
    await bench.restart("checkpoint", failpoints="checkpoint.before_commit=error(UNAVAILABLE)")
    task_id = await bench.submit("sim-hello")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "the claim is released" not in worker.log():
            await asyncio.sleep(0.1)
    assert bench.model_calls(task_id) == []
    await bench.restart("checkpoint")
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    assert worker.exit_code is None


@pytest.mark.faults
async def test_tools_that_restart_cost_no_effect(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.ToolOutcome, 2)
    await bench.restart("tools")
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    assert sorted(await bench.effects(task_id)) == PACED_EFFECTS


async def in_doubt(bench: Any, policy: Any, failpoint: str = "tools.after_effect=1#kill9") -> Any:
    """A task whose one unsafe call was begun by tools that died before they could say what came of it."""
    await bench.start_worker()
    tools = await bench.restart("tools", failpoints=failpoint)
    task_id = await bench.submit("sim-worker-unsafe", policy=TaskPolicy(on_in_doubt=policy))
    await bench.died(tools)
    await bench.restart("tools")
    return task_id


@pytest.mark.faults
async def test_a_call_in_doubt_waits_for_a_person_and_stays_open(bench: WorkerBench) -> None:
    task_id = await in_doubt(bench, InDoubtPolicy.WAIT_FOR_PERSON)
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert task.reason == "TOOL_IN_DOUBT"
    assert "1.0 (append_record_unsafe)" in task.message
    assert await bench.bodies(task_id, facts.ToolOutcome) == []
    assert await bench.effects(task_id) == ["once"]


@pytest.mark.faults
async def test_the_model_reads_of_a_call_in_doubt_if_configured(bench: WorkerBench) -> None:
    task_id = await in_doubt(bench, InDoubtPolicy.TELL_MODEL)
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    (outcome,) = await bench.bodies(task_id, facts.ToolOutcome)
    assert outcome.outcome.status is OutcomeStatus.IN_DOUBT
    assert await bench.effects(task_id) == ["once"]


@pytest.mark.faults
async def test_a_worker_keeps_its_claims_when_its_coordinator_restarts(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 1)
    await bench.restart("coordinator")
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)


@pytest.mark.faults
async def test_a_worker_moves_with_its_claims_from_a_frozen_replica(bench: WorkerBench) -> None:
    first = bench.stack.services["coordinator"]
    second = await another_coordinator(first)
    try:
        worker = await bench.start_worker(coordinator_address=f"{first.address},{second.address}")
        task_id = await bench.submit("sim-worker-paced")
        await bench.reached(task_id, facts.AssistantMessage, 1)
        (live,) = [one for one in await bench.live_workers() if one.worker_id == worker.name]
        frozen = {"first": first, "second": second}[live.coordinator_id]
        frozen.freeze()
        task = await bench.ended(task_id)
        frozen.wake()
    finally:
        second.kill()
    assert (state_name(task.state), task.claim_count) == ("SUCCEEDED", 1)
    assert sorted(await bench.effects(task_id)) == PACED_EFFECTS


async def test_worker_without_coordinator_starts_no_effect(bench: WorkerBench) -> None:
    """Etcd is away for longer than a lease: afterwards the task is one owner's, and whole."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-slow-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    etcd = bench.stack.etcd
    assert etcd is not None
    etcd.pause()
    paused_at = time.monotonic()
    try:
        await bench.reached(task_id, facts.AssistantMessage)  # the fence decides, and no other worker has the task
        assert time.monotonic() - paused_at > SHORT_LIFE_SECONDS
        await asyncio.sleep(1.5)
        assert await bench.effects(task_id) == []
    finally:
        etcd.resume()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.result) == ("SUCCEEDED", "It is written once.")
    assert await bench.effects(task_id) == ["once"]
    assert len(bench.model_calls(task_id)) == 2


@pytest.mark.faults
async def test_a_slow_tool_is_stuck_only_without_progress(bench: WorkerBench) -> None:
    coordinator = bench.stack.services["coordinator"]
    coordinator.kill()
    coordinator.start({"TENURE_COORDINATOR_PROGRESS_TIMEOUT_SECONDS": str(SHORT_LIFE_SECONDS)})
    await coordinator.wait_ready()
    try:
        await bench.start_worker()
        prints, silent = await bench.submit("sim-worker-signing-tool"), await bench.submit("sim-worker-silent-tool")
        assert (await bench.ended(prints)).claim_count == 1
        task = await bench.ended(silent)
    finally:
        await bench.restart("coordinator")
    assert state_name(task.state) == "SUCCEEDED"  # its successor joined the call
    assert (TaskState.QUEUED, "WORKER_STUCK") in await bench.transitions(silent)
    assert await bench.effects(silent) == ["slow"]


async def another_coordinator(first: ServiceProcess) -> ServiceProcess:
    """Beside the stack's own, which is started again under a name we know."""
    first.kill()
    first.start({"TENURE_COORDINATOR_ID": "first"})
    address = choose_address("second", usual=False)
    environment = {
        **first.environment,
        "TENURE_COORDINATOR_LISTEN": address,
        "TENURE_COORDINATOR_ID": "second",
    }
    second = ServiceProcess("second", first.module, address, environment, first.log_path.with_name("second.log"))
    second.start()
    await first.wait_ready()
    await second.wait_ready()
    return second


WAIT = InDoubtPolicy.WAIT_FOR_PERSON


async def say(bench: Any, task_id: str, decision: Decision) -> None:
    """Of the only call, once the task waits for it."""
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    (doubted,) = task.calls_in_doubt
    word = ResolveCall(doubted.call_id, doubted.call_attempt, decision)
    wanted = operator_request_to_wire(facts.OperatorRequest("I looked", word))
    request = pb.AppendForeignRequest(
        task_id=task_id, request_id=str(uuid.uuid4()), actor="olga", operator_request=wanted
    )
    await bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)


async def outcome_at_the_end(bench: Any, task_id: str) -> Any:
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    (response,) = await bench.bodies(task_id, facts.ToolOutcome)
    return response.outcome


@pytest.mark.faults
async def test_a_call_that_did_not_happen_runs_once_after_crashes(
    bench: WorkerBench,
) -> None:
    """Before the tools hear of it, and after they did as it says."""
    task_id = await in_doubt(bench, WAIT, "tools.before_effect=1#kill9")
    await bench.in_state(task_id, TaskState.WAITING_USER)
    for worker in bench.workers:
        worker.kill()
    assert await bench.effects(task_id) == []
    await say(bench, task_id, DidNotHappen(runner_is_gone=True))
    for moment, effects in (("after_open", []), ("after_execute", ["once"])):
        with suppress(ServiceDied):  # it may be gone before it is seen to serve
            await bench.start_worker(failpoints=f"worker.{moment}=1#kill9")
        assert await bench.died(bench.workers[-1]) != 0
        assert (await bench.effects(task_id), await bench.bodies(task_id, facts.ToolOutcome)) == (effects, [])
    await bench.start_worker()
    outcome = await outcome_at_the_end(bench, task_id)
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    assert await bench.effects(task_id) == ["once"]


@pytest.mark.faults
async def test_an_untaken_resolution_makes_the_task_wait_again(
    bench: WorkerBench,
) -> None:
    task_id = await in_doubt(bench, WAIT)
    await say(bench, task_id, DidNotHappen())
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert "the runner of these must be gone: 1.0 (append_record_unsafe)" in task.message
    await say(bench, task_id, Abandon())
    outcome = await outcome_at_the_end(bench, task_id)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.IN_DOUBT, "ABANDONED")
    assert outcome.content.endswith("olga gave it up: I looked")
    assert await bench.effects(task_id) == ["once"]


@pytest.mark.faults
async def test_a_resolution_is_kept_though_the_task_is_ended(
    bench: WorkerBench,
) -> None:
    task_id = await in_doubt(bench, WAIT)
    await bench.in_state(task_id, TaskState.WAITING_USER)
    for worker in bench.workers:
        worker.kill()
    await say(bench, task_id, Happened("paid, receipt 7"))
    await bench.cancel(task_id)
    assert state_name((await bench.ended(task_id)).state) == "CANCELLED"
    (response,) = await bench.bodies(task_id, facts.ToolOutcome)
    assert (response.outcome.status, response.outcome.content) == (OutcomeStatus.SUCCEEDED, "paid, receipt 7")
