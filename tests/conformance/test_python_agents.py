"""Agents in Python on real services: durable model calls and tools, one budget, waits, and kills in every phase."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.domain.control import INTERRUPTED, MESSAGES
from tenure.domain.errors import WrongState
from tenure.domain.in_doubt import Happened
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, Limits, TaskPolicy, TaskSpec
from tenure.domain.texts import kept_as
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tenure.wire.tool import decision_to_wire
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import SHARED_QUEUE, WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.python_agents import BIG
from tests.support.sweeps import first
from tests.support.written_lines import whole_lines

COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
CONTROL_MODULE = "tests.support.python_agents"
SOON = TaskPolicy(retry=RetryPolicy(max_attempts=3, initial_seconds=0.01, factor=1.0, cap_seconds=0.01))


class Agents:
    """Tasks of the agents, and what their tools left behind."""

    def __init__(self, bench: WorkerBench, folder: Path, queue: str) -> None:
        self.bench, self.folder, self.queue = bench, folder, queue

    async def worker(self, failpoints: str = "") -> ServiceProcess:
        """A worker of the test's own."""
        self.queue = self.bench.queue
        return await self.bench.start_worker(failpoints=failpoints, loops="control", control_modules=CONTROL_MODULE)

    async def submit(
        self,
        agent: str,
        *,
        limits: Limits | None = None,
        gated: bool = False,
        goal: str = "Refund order 7",
        **more: Any,
    ) -> str:
        given = {"trace": str(self.folder / "trace"), "gate": str(self.folder / "gate") if gated else "", **more}
        spec = TaskSpec(
            goal=goal,
            agent=AgentSpec(loop="control", model="sim-python"),  # sets no default cap for a model without a price
            limits=limits or Limits(),
            policy=SOON,
            queue=self.queue,
            control=ControlWork(agent, json.dumps(given)),
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    async def succeeded(self, task_id: str) -> task_pb2.Task:
        task = await self.bench.ended(task_id)
        assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
        return task

    def made(self) -> list[list[str]]:
        """The tool calls that ran: what each did, its idempotency key without the task, and its attempt."""
        path = self.folder / "trace"
        lines = whole_lines(path)
        return [[part.rpartition("/")[2] for part in line.split()] for line in lines]

    async def has_made(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.made()) < count:
                await asyncio.sleep(0.02)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def close_gate(self) -> None:
        (self.folder / "gate").unlink()

    async def registered(self, worker: ServiceProcess) -> None:
        """Waits until the ledger knows which functions of the worker are agents."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while '"registered"' not in worker.log():
                await asyncio.sleep(0.02)

    async def fork(self, task_id: str, message: str) -> str:
        """The next turn of a conversation."""
        request = tasks_pb.ForkTaskRequest(task_id=task_id, request_id=str(uuid.uuid4()), actor="ada", message=message)
        return str((await self.bench.ledger.ForkTask(request, timeout=CALL_SECONDS)).task.task_id)

    async def names(self, task_id: str) -> list[str]:
        """The recorded steps and calls, in order."""
        names = []
        for entry in await self.bench.entries(task_id):
            if isinstance(entry.body, facts.ControlStep):
                names.append(entry.body.name)
            elif isinstance(entry.body, facts.ToolIntent):
                names.append(entry.body.tool)
        return names

    async def check_budget(self, task_id: str, calls: int) -> None:
        """The budget has what the provider billed for calls with an answer, the estimates of lost ones, and no more."""
        answered = await self.bench.bodies(task_id, facts.AssistantMessage)
        lost = await self.bench.bodies(task_id, facts.AttemptLost)
        billed = {call["attempt"]: sum(call[count] for count in COUNTS) for call in self.bench.model_calls(task_id)}
        assert len(answered) == calls
        assert {each.usage.total for each in answered} <= set(billed.values())
        task = await self.bench.task(task_id)
        assert task.budget.used_tokens == sum(each.usage.total for each in [*answered, *lost])
        assert task.budget.reserved_tokens == 0


@pytest.fixture
def agents(
    bench: WorkerBench, shared_worker: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Agents:
    add = bench.stack.add_worker
    monkeypatch.setattr(bench.stack, "add_worker", lambda more: add({**more, "PYTHONPATH": str(REPOSITORY)}))
    return Agents(bench, tmp_path, SHARED_QUEUE)


async def test_an_agent_s_calls_and_tools_are_recorded_and_billed(agents: Agents) -> None:
    task_id = await agents.submit("support")
    task = await agents.succeeded(task_id)
    assert json.loads(task.result).startswith("Refunded: ")
    assert sorted(agents.made()) == [["note-refunded", "2.1", "1"], ["refund-5", "2.0", "1"]]
    assert await agents.names(task_id) == ["support: model", "refund", "note", "support: model"]
    await agents.check_budget(task_id, calls=2)


@pytest.mark.parametrize("at", first(["worker.after_model=1", "worker.before_model=1", "worker.after_model=2"]))
async def test_a_kill_in_a_model_call_repeats_at_most_that_call(agents: Agents, at: str) -> None:
    dying = await agents.worker(f"{at}#kill9")
    task_id = await agents.submit("support")
    await agents.bench.died(dying)
    await agents.worker()
    await agents.succeeded(task_id)
    assert sorted(line[0] for line in agents.made()) == ["note-refunded", "refund-5"]
    assert len(agents.bench.model_calls(task_id)) <= 3
    await agents.check_budget(task_id, calls=2)


@pytest.mark.faults
async def test_a_kill_in_a_keyed_tool_repeats_it_with_its_key(agents: Agents) -> None:
    killed = await agents.worker()
    task_id = await agents.submit("support", gated=True)
    await agents.has_made(2)
    killed.kill()
    await agents.worker()
    await agents.has_made(3)
    agents.open_gate()
    await agents.succeeded(task_id)
    refunds = [line for line in agents.made() if line[0] == "refund-5"]
    assert refunds == [["refund-5", "2.0", "1"], ["refund-5", "2.0", "2"]]
    assert {line[1] for line in agents.made()} == {"2.0", "2.1"}
    assert len(agents.bench.model_calls(task_id)) == 2
    await agents.check_budget(task_id, calls=2)


async def test_a_kill_in_an_unsafe_tool_waits_for_a_person(agents: Agents) -> None:
    killed = await agents.worker()
    task_id = await agents.submit("sender", gated=True)
    await agents.has_made(1)
    killed.kill()
    await agents.worker()
    task = await agents.bench.in_state(task_id, TaskState.WAITING_USER)
    assert task.calls_in_doubt[0].call_id == "2.0"
    assert agents.made() == [["send", "2.0", "1"]]
    decision = decision_to_wire(Happened("by post"))
    happened = ledger_pb2.OperatorRequest.ResolveCall(call_id="2.0", call_attempt=1, decision=decision)
    request = ledger_pb2.OperatorRequest(reason="I looked", resolve_call=happened)
    await agents.bench.ledger.AppendForeign(
        pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid.uuid4()), actor="olga", operator_request=request),
        timeout=CALL_SECONDS,
    )
    assert "by post" in (await agents.succeeded(task_id)).result
    assert agents.made() == [["send", "2.0", "1"]]


async def test_a_tool_waits_for_its_approval_without_a_worker(agents: Agents) -> None:
    task_id = await agents.submit("careful")
    task = await agents.bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.wait.tool, task.owner, agents.made()) == ("send", "", [])
    await agents.bench.answer(task, "allow")
    await agents.succeeded(task_id)
    assert [line[0] for line in agents.made()] == ["send"]
    assert len(agents.bench.model_calls(task_id)) == 2


async def test_an_inline_tool_asks_a_person(agents: Agents) -> None:
    task_id = await agents.submit("asking")
    task = await agents.bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.wait.question, task.owner) == ("Which colour?", "")
    said = pb.WaitAnswer(wait_id=task.wait.wait_id, reply="blue")
    request = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid.uuid4()), actor="bob", wait_answer=said)
    await agents.bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)
    ended = await agents.succeeded(task_id)
    assert "blue" in ended.result
    await agents.check_budget(task_id, calls=2)


async def test_a_function_runs_an_agent(agents: Agents) -> None:
    task = await agents.succeeded(await agents.submit("compare", cents=7))
    assert json.loads(task.result) == [{"cents": 7}, {"cents": 5}]


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["pricing", "openai-talker"])
async def test_agent_waits_until_its_account_is_corrected(agents: Agents, agent: str) -> None:
    """More often than its policy allows retries: no fault of the task."""
    agents.open_gate()
    agents.bench.simulator.order_fault(status=401, count=3)
    task_id = await agents.submit(agent)
    await agents.succeeded(task_id)
    moves = await agents.bench.transitions(task_id)
    assert moves.count((TaskState.RETRY_SCHEDULED, "MODEL_ACCOUNT_REFUSED")) == 3
    failures = await agents.bench.bodies(task_id, facts.ModelFailure)
    assert [(failure.error_class, failure.status_code) for failure in failures] == [("AUTHENTICATION", 401)] * 3


async def test_an_input_that_does_not_fit_ends_the_task(agents: Agents) -> None:
    task = await agents.bench.ended(await agents.submit("compare", cents="seven"))
    assert state_name(task.state) == TaskState.FAILED
    assert "does not fit compare" in task.message


@pytest.mark.nightly
async def test_a_sub_agent_shares_the_budget(agents: Agents) -> None:
    task_id = await agents.submit("editor")
    await agents.succeeded(task_id)
    assert await agents.names(task_id) == ["editor: model", "writer: model", "editor: model"]
    await agents.check_budget(task_id, calls=3)


@pytest.mark.faults
async def test_a_kill_in_a_sub_agent_s_call_repeats_only_that_call(agents: Agents) -> None:
    dying = await agents.worker("worker.after_model=2#kill9")
    task_id = await agents.submit("editor")
    await agents.bench.died(dying)
    await agents.worker()
    await agents.succeeded(task_id)
    assert await agents.names(task_id) == ["editor: model", "writer: model", "editor: model"]
    assert len(agents.bench.model_calls(task_id)) == 4
    await agents.check_budget(task_id, calls=3)


async def test_a_denied_budget_ends_the_task_before_the_call(agents: Agents) -> None:
    task_id = await agents.submit("support", limits=Limits(max_tokens=10))
    task = await agents.bench.ended(task_id)
    assert state_name(task.state) == TaskState.COST_EXCEEDED, task.message
    assert agents.bench.model_calls(task_id) == []
    assert agents.made() == []


@pytest.mark.parametrize(("agent", "limit_bytes"), first([("openai-big", 2048), ("pydantic-big", 64 * 1024)]))
async def test_long_result_is_shortened_and_kept(agents: Agents, agent: str, limit_bytes: int) -> None:
    """As that of the tool service's tools. All of it went to the model before, up to 16 MiB."""
    task_id = await agents.submit(agent)
    await agents.succeeded(task_id)
    (body,) = await agents.bench.bodies(task_id, facts.ToolOutcome)
    outcome = body.outcome
    assert (outcome.status, outcome.truncated, outcome.detail) == ("SUCCEEDED", True, "SHORTENED")
    assert limit_bytes - 400 < len(outcome.content) <= limit_bytes
    assert (outcome.content[:8], outcome.content[-8:]) == (BIG[:8], BIG[-8:])
    assert f"All of it is in the workspace's file {outcome.output_path}." in outcome.content
    assert outcome.output_path == kept_as(BIG.encode()).path
    tokens = [attempt.input_tokens for attempt in await agents.bench.bodies(task_id, facts.ModelAttempt)]
    assert tokens[1] - tokens[0] < limit_bytes


async def test_too_long_prompt_names_its_largest_part(agents: Agents) -> None:
    """It was COST_EXCEEDED, with the advice to grant more."""
    task_id = await agents.submit("inline-big", limits=Limits(max_tokens=100_000))
    task = await agents.bench.ended(task_id)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, "CONTEXT_WINDOW_EXCEEDED"), task.message
    assert "the conversation does not fit the model's context window" in task.message
    assert "its largest part is the result of big, 3.0 MiB" in task.message


async def test_text_is_live_and_a_cancelled_call_is_billed(agents: Agents) -> None:
    worker = await agents.worker()
    task_id = await agents.submit("slow")
    await agents.bench.reached(task_id, facts.ModelAttempt)
    await agents.bench.speaking(task_id, worker)
    await agents.bench.cancel(task_id)
    task = await agents.bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    (failure,) = await agents.bench.bodies(task_id, facts.ModelFailure)
    (call,) = agents.bench.model_calls(task_id)
    assert failure.usage.input_tokens == call["input_tokens"]
    assert task.budget.used_tokens == failure.usage.total
    assert task.budget.reserved_tokens == 0


@pytest.mark.nightly
async def test_an_agent_of_the_openai_sdk(agents: Agents) -> None:
    killed = await agents.worker()
    task_id = await agents.submit("helper", gated=True)
    await agents.has_made(1)
    killed.kill()
    await agents.worker()
    await agents.has_made(2)
    agents.open_gate()
    task = await agents.succeeded(task_id)
    assert json.loads(task.result) == "Refunded."
    assert agents.made() == [["refund-5", "2.0", "1"], ["refund-5", "2.0", "2"]]
    await agents.check_budget(task_id, calls=2)


TALKERS = pytest.mark.parametrize("agent", first(["talker", "openai-talker"]))


@TALKERS
async def test_a_conversation_survives_kills_of_its_workers(agents: Agents, agent: str) -> None:
    """Between its turns and within one."""
    killed = await agents.worker()
    await agents.registered(killed)
    agents.open_gate()
    first = await agents.submit(agent, gated=True, goal="Refund order 7")
    assert json.loads((await agents.succeeded(first)).result) == "You said: Refund order 7"
    killed.kill()
    agents.close_gate()
    second = await agents.fork(first, "And order 8")
    killed = await agents.worker()
    await agents.has_made(2)
    killed.kill()
    await agents.worker()
    await agents.has_made(3)
    agents.open_gate()
    assert json.loads((await agents.succeeded(second)).result) == "Then you said: And order 8"
    assert agents.made() == [["refund-5", "2.0", "1"], ["refund-7", "6.0", "1"], ["refund-7", "6.0", "2"]]
    assert len(agents.bench.model_calls(second)) == 2
    assert (await agents.names(second))[3] == MESSAGES


@TALKERS
async def test_the_next_model_call_has_a_message(agents: Agents, agent: str) -> None:
    killed = await agents.worker()
    await agents.registered(killed)
    task_id = await agents.submit(agent, gated=True)
    await agents.has_made(1)
    await agents.bench.tell(task_id, "Hurry up")
    killed.kill()
    await agents.worker()
    await agents.has_made(2)
    agents.open_gate()
    assert json.loads((await agents.succeeded(task_id)).result) == "You said: Hurry up"
    assert len(agents.bench.model_calls(task_id)) == 2


async def begun(agents: Agents, agent: str) -> tuple[str, ServiceProcess]:
    """A task of the agent whose first answer would take a minute, and has begun."""
    owner = await agents.worker()
    await agents.registered(owner)
    agents.bench.simulator.order_fault(drip_ms=600, count=1)
    task_id = await agents.submit(agent, goal="Write")
    await agents.bench.reached(task_id, facts.ModelAttempt)
    await agents.bench.speaking(task_id, owner)
    return task_id, owner


REDIRECTED = pytest.mark.parametrize("agent", ["redirected", "openai-redirected"])


@REDIRECTED
async def test_an_interrupting_message_redirects_an_agent(agents: Agents, agent: str) -> None:
    """Its model call stops and is billed; the agent makes it again with the message, and so in each execution.

    A provider that counts the input at the end of its answer is billed the reserved input.
    """
    task_id, _ = await begun(agents, agent)
    await agents.bench.tell(task_id, "in French", interrupt=True)
    task = await agents.succeeded(task_id)
    assert json.loads(task.result).endswith("in French")
    (failure,) = await agents.bench.bodies(task_id, facts.ModelFailure)
    assert (failure.error_class, failure.message) == ("INTERRUPTED", "a message interrupted the call")
    assert 0 < failure.usage.output_tokens < 100
    first, second = agents.bench.model_calls(task_id)
    assert failure.usage.input_tokens >= first["input_tokens"] > 0
    assert [call["attempt"].partition("/")[2] for call in (first, second)] == ["1/1", "3/1"]
    model, messages, again = await agents.bench.bodies(task_id, facts.ControlStep)
    assert (model.failure, messages.name, again.failure, again.name) == (INTERRUPTED, MESSAGES, None, model.name)
    task = await agents.bench.task(task_id)
    [answer] = await agents.bench.bodies(task_id, facts.AssistantMessage)
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (failure.usage.total + answer.usage.total, 0)


@pytest.mark.faults
@REDIRECTED
async def test_an_agents_next_owner_reads_the_message_first(agents: Agents, agent: str) -> None:
    """The owner died between the record of the message and the stop of the call."""
    task_id, owner = await begun(agents, agent)
    owner.freeze()
    await agents.bench.tell(task_id, "in French", interrupt=True)
    owner.kill()
    await agents.worker()
    task = await agents.succeeded(task_id)
    assert (json.loads(task.result).endswith("in French"), task.claim_count) == (True, 2)
    assert len(await agents.bench.bodies(task_id, facts.AttemptLost)) == 1
    assert await agents.bench.bodies(task_id, facts.ModelFailure) == []
    attempts = [call["attempt"].partition("/")[2] for call in agents.bench.model_calls(task_id)]
    assert attempts == ["1/1", "3/1"]


async def test_a_task_succeeds_when_its_agent_has_read_each_message(agents: Agents) -> None:
    reached, go_on = agents.folder / "reached", agents.folder / "go-on"
    worker = await agents.worker(f"worker.before_close_out=1#touch({reached})->1#wait({go_on})")
    await agents.registered(worker)
    task_id = await agents.submit("talker")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached.exists():
            await asyncio.sleep(0.02)
    await agents.bench.tell(task_id, "one thing more")
    go_on.touch()
    task = await agents.succeeded(task_id)
    assert (json.loads(task.result), task.claim_count) == ("Then you said: one thing more", 1)
    assert [line[0] for line in agents.made()] == ["refund-5", "refund-7"]


async def test_messages_to_functions_are_refused(agents: Agents, shared_worker: ServiceProcess) -> None:
    await agents.registered(shared_worker)
    task_id = await agents.submit("compare", cents=7)
    with pytest.raises(WrongState, match="compare, which runs this task, is a function") as refused:
        await agents.bench.tell(task_id, "Hello")
    assert refused.value.reason == "NO_READER"
    await agents.succeeded(task_id)
    with pytest.raises(WrongState, match="is a function"):
        await agents.fork(task_id, "Hello")


async def test_a_message_to_an_unregistered_agent_says_so(agents: Agents) -> None:
    task_id = await agents.submit("not-there")
    with pytest.raises(WrongState, match="is not registered as an agent yet: start its worker"):
        await agents.bench.tell(task_id, "Hello")
    await agents.bench.cancel(task_id)
