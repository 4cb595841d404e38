"""A worker is killed at every boundary of its step, frozen, drained: its tasks go on elsewhere as if nothing was."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, TaskSpec
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import state_name
from tenure.wire.task import parameters_to_domain, spec_to_wire
from tests.conformance.test_worker_tasks import EFFECTS, the_answers_of_a_whole_run
from tests.support.fix_worker import WorkerBench
from tests.support.lives import SHORT_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.recorded_chats import RecordedChat, RecordedServer
from tests.support.sweeps import first


@pytest.fixture(scope="module")
def stack_life() -> dict[str, str]:
    return SHORT_LIFE


# Where, how many model calls a whole run of four steps then takes at most, and which scenario gets there.
BOUNDARIES = {
    "worker.after_model": ("2#", 5),
    "worker.after_grant": ("1#", 4),
    "worker.after_open": ("1#", 4),
    "worker.after_reserve": ("2#", 4),
    "worker.before_model": ("2#", 4),
    "worker.after_intent": ("2#", 4),
    "worker.after_execute": ("2#", 4),
    "worker.before_close_out": ("1#", 4),
    "worker.after_close_out": ("1#", 4),
}


@pytest.mark.parametrize("boundary", first(BOUNDARIES))
async def test_a_worker_killed_anywhere_costs_at_most_one_model_call(bench: WorkerBench, boundary: Any) -> None:
    which, most_calls = BOUNDARIES[boundary]
    victim = await bench.start_worker(failpoints=f"{boundary}={which}kill9")
    task_id = await bench.submit("sim-worker-effects")
    assert await bench.died(victim) != 0
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.result) == ("SUCCEEDED", "All is written.")
    assert sorted(await bench.effects(task_id)) == EFFECTS
    assert await the_answers_of_a_whole_run(bench, task_id) == [1, 2, 3, 4]
    assert len(bench.model_calls(task_id)) <= most_calls
    assert task.budget.reserved_tokens == 0


@pytest.mark.faults
async def test_an_outcome_committed_early_is_not_computed_again(bench: WorkerBench) -> None:
    victim = await bench.start_worker(failpoints="worker.after_outcome=1#kill9")
    task_id = await bench.submit("sim-worker-siblings")
    assert await bench.died(victim) != 0
    await bench.start_worker()
    assert (await bench.ended(task_id)).result == "Both are written."
    assert sorted(await bench.effects(task_id)) == ["fast", "slow"]
    assert len(bench.model_calls(task_id)) == 2


@pytest.mark.faults
async def test_a_killed_workers_task_runs_before_the_leases_end(bench: WorkerBench) -> None:
    victim = await bench.start_worker()
    task_id = await bench.submit("sim-worker-long-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.start_worker()
    victim.kill()
    await bench.reached(task_id, facts.ModelAttempt, 2)
    assert (TaskState.QUEUED, "WORKER_LOST") in await bench.transitions(task_id)  # and not LEASE_EXPIRED
    await bench.cancel(task_id)
    await bench.ended(task_id)


async def test_a_frozen_worker_is_refused_and_takes_new_tasks(bench: WorkerBench) -> None:
    sleeper = await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    sleeper.freeze()
    successor = await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.owner == sleeper.name) == ("SUCCEEDED", False)
    sleeper.wake()
    answers = await the_answers_of_a_whole_run(bench, task_id)
    assert answers == list(range(1, 8))
    assert sorted(await bench.effects(task_id)) == sorted(str(number) for number in range(6))
    assert await successor.drain() == 0
    again = await bench.ended(await bench.submit("sim-hello"))
    assert state_name(again.state) == "SUCCEEDED"
    assert sleeper.exit_code is None


@pytest.mark.faults
async def test_a_stopping_worker_releases_its_task_at_once(bench: WorkerBench) -> None:
    leaver = await bench.start_worker()
    task_id = await bench.submit("sim-worker-long-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.start_worker()
    told_at = time.monotonic()
    draining = asyncio.create_task(leaver.drain())
    await bench.reached(task_id, facts.ModelAttempt, 2)
    assert time.monotonic() - told_at < 30  # the answer would take a minute
    assert await draining == 0
    assert drained_seconds(leaver) < 10
    assert (TaskState.QUEUED, "WORKER_DRAINED") in await bench.transitions(task_id)
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert failure.error_class == "INTERRUPTED"
    await bench.cancel(task_id)
    await bench.ended(task_id)


@pytest.mark.faults
async def test_a_call_continues_during_a_drain_and_is_joined(bench: WorkerBench) -> None:
    leaver = await bench.start_worker()
    task_id = await bench.submit("sim-worker-slow-tool")
    await bench.reached(task_id, facts.ToolIntent)
    await bench.start_worker()
    assert await leaver.drain() == 0
    task = await bench.ended(task_id)
    assert task.result == "It is written."
    assert await bench.effects(task_id) == ["slow"]
    assert len(bench.model_calls(task_id)) == 2


@pytest.mark.faults
async def test_zombie_without_trust_window_is_stopped_by_fences(bench: WorkerBench) -> None:
    zombie = await bench.start_worker(failpoints="worker.ignore_trust_window")
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 1)
    zombie.freeze()
    await bench.start_worker()
    await bench.reached(task_id, facts.AssistantMessage, 3)
    zombie.wake()
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    assert sorted(await bench.effects(task_id)) == sorted(str(number) for number in range(6))
    assert await the_answers_of_a_whole_run(bench, task_id) == list(range(1, 8))


def drained_seconds(worker: Any) -> Any:
    (line,) = [json.loads(line) for line in worker.log().splitlines() if '"drained"' in line]
    return line["seconds"]


async def submit(bench: Any, model: Any, **agent: Any) -> Any:
    spec = TaskSpec(goal=f"record-{uuid.uuid4().hex}", agent=AgentSpec(model=model, **agent), queue=bench.queue)
    request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
    return (await bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id


@pytest.mark.faults
async def test_wait_of_a_killed_worker_is_made_by_the_next(bench: WorkerBench) -> None:
    await bench.start_worker(failpoints="worker.after_intent=1#kill9")
    task_id = await submit(bench, "sim-approval")
    await bench.start_worker()
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert task.owner == ""
    await bench.answer(task, "deny")
    ended = await bench.ended(task_id)
    assert (state_name(ended.state), "deny" in ended.result) == ("SUCCEEDED", True)
    assert len(bench.model_calls(task_id)) == 2
    assert len(await bench.bodies(task_id, facts.WaitResolution)) == 1


async def test_an_approved_call_runs_once_despite_a_crash(bench: WorkerBench) -> None:
    """Who executes it dies after the effect and before the outcome is committed: it is answered from the record."""
    dying = await bench.start_worker(failpoints="worker.after_execute=2#kill9")  # the first time it only asked
    task_id = await submit(bench, "sim-worker-unsafe", approve_tools=("append_record_unsafe",))
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert await bench.effects(task_id) == []
    await bench.answer(task, "allow")
    await bench.died(dying)
    await bench.start_worker()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    assert await bench.effects(task_id) == ["once"]
    assert len(await bench.bodies(task_id, facts.WaitResolution)) == 1


@pytest.mark.faults
async def test_an_event_reaches_the_model(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-event")  # its goal names the event
    task = await bench.in_state(task_id, TaskState.WAITING_EXTERNAL)
    assert task.wait.correlation_id == task.spec.goal
    request = pb.SendSignalRequest(
        correlation_id=task.spec.goal, request_id="r", actor="outside", payload_json='{"n": 1}'
    )
    await bench.ledger.SendSignal(request, timeout=CALL_SECONDS)
    assert '"n": 1' in (await bench.ended(task_id)).result


async def test_message_after_the_last_answer_is_answered(bench: WorkerBench, tmp_path: Path) -> None:
    """The answer is in the ledger, the end not yet: without asking the ledger the words would be lost."""
    reached, go_on = tmp_path / "reached", tmp_path / "go-on"
    await bench.start_worker(failpoints=f"worker.before_close_out=1#touch({reached})->1#wait({go_on})")
    task_id = await bench.submit("sim-hello")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached.exists():
            await asyncio.sleep(0.02)
    await bench.tell(task_id, "one thing more")
    go_on.touch()
    task = await bench.ended(task_id)
    assert task.reason == "FINAL_ANSWER"
    answers = [entry for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    [said] = [entry for entry in await bench.entries(task_id) if isinstance(entry.body, facts.UserMessage)]
    assert [answer.step for answer in answers] == [1, 2]
    assert answers[0].sequence < said.sequence < answers[1].sequence
    assert len(bench.model_calls(task_id)) == 2
    assert task.claim_count == 1


RECORD = """insert into tools.calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state,
                                     call_attempt, epoch, claim_id)
            values (%s, '1.0', 'append_record', 'KEYED', sha256('other'), 'other', 'NOT_RUN', 1, 1, 'lost')"""


@pytest.mark.faults
async def test_another_call_with_its_id_is_not_run(bench: WorkerBench) -> None:
    """The model reads that, and the task goes on. Before, each worker that took it ended its work with an error."""
    task_id = await bench.submit("sim-worker-effects")
    async with await psycopg.AsyncConnection.connect(bench.stack.postgres_dsn, autocommit=True) as postgres:
        await postgres.execute("insert into tools.fences (task_id, tenant) values (%s, 'default')", (task_id,))
        await postgres.execute(RECORD, (task_id,))
    await bench.start_worker()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    first, *others = (body.outcome for body in await bench.bodies(task_id, facts.ToolOutcome))
    assert first.status is OutcomeStatus.NOT_RUN
    assert "restored to an earlier time" in first.content
    assert {outcome.status for outcome in others} == {OutcomeStatus.SUCCEEDED}


class ChatWithRecords(RecordedChat):
    """A recorded conversation whose calls append records. The texts of the task are not compared."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        for exchange in self.exchanges:
            exchange["chunks"] = with_records(exchange["chunks"])
            messages = exchange["expect"]["messages"]
            exchange["expect"] = {"messages": [compared(message) for message in messages]}


def with_records(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: with_records(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_records(one) for one in value]
    if not isinstance(value, str):
        return value
    return value.replace("get_weather", "append_record").replace('"city": ', '"file": "weather", "line": ')


def compared(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "assistant":
        return {"role": message["role"]}
    return {**message, "tool_calls": [{"id": call["id"]} for call in message["tool_calls"]]}


async def test_thoughts_go_back_after_a_takeover_and_in_a_fork(bench: WorkerBench) -> None:
    chat = ChatWithRecords("deepseek")
    async with RecordedServer(chat) as server:
        victim = await bench.start_worker(failpoints="worker.after_execute=1#kill9", openai_url=f"{server.url}/v1")
        task_id = await bench.submit(
            f"openai/{chat.model}",
            system="You know the weather.",
            max_output_tokens=1024,
            parameters=chat.parameters,
        )
        assert await bench.died(victim) != 0
        await bench.start_worker(openai_url=f"{server.url}/v1")
        task = await bench.ended(task_id)
        assert (state_name(task.state), task.result) == ("SUCCEEDED", "Paris: 18 C. Rome: 24 C."), task.message
        server.rewind(1)
        fork = tasks_pb.ForkTaskRequest(request_id=str(uuid.uuid4()), task_id=task_id, step=1, actor="test")
        forked = (await bench.ledger.ForkTask(fork, timeout=CALL_SECONDS)).task
        assert parameters_to_domain(forked.spec.agent.parameters) == chat.parameters
        ended = await bench.ended(forked.task_id)
        assert (state_name(ended.state), ended.result) == ("SUCCEEDED", task.result), ended.message
        assert server.is_over
