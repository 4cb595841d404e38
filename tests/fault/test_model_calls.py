"""Model calls at model runners while workers are killed, frozen and drained: none is paid twice, no text is missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from checker.collect import collect_tasks
from checker.verify import examine
from devstack import Stack, StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.service_process import ServiceProcess
from devstack.stores import ensure_database
from services.worker.model_attempt import BY_MESSAGE
from tenure import Client
from tenure.client import Client as LowClient
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import text_of
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Limits, TaskPolicy
from tenure.sdk.events import AssistantMessageEvent, LiveTextEvent
from tenure.wire.common import state_name
from tests.fault.failpoint_scenes import OF_MODEL_RUNNERS
from tests.fault.test_zombies import COORDINATOR, logged
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_worker import WorkerBench
from tests.support.lives import SHORT_LIFE
from tests.support.model_log import read_model_calls
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.sweeps import first

pytestmark = pytest.mark.server

TEXT = " ".join(f"word{number}" for number in range(160))
RUNNERS = 2
DIRECT = {"models_address": ""}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresProcess,
    worker_simulator: SimulatorControl,
) -> AsyncIterator[Stack]:
    """The bench's stack for this module: two model runners, and leases short enough to outwait them."""
    database = request.module.__name__.rpartition(".")[2]
    await ensure_database(postgres_server.dsn(), database)
    runner = {
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": worker_simulator.url,
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": f"{worker_simulator.url}/v1",
        "TENURE_MODELS_REPORT_SECONDS": "2",
        "TENURE_MODELS_DRAIN_SECONDS": "60",
    }
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("model-calls"),
        workers=0,
        model_runner=True,
        replicas={"models": RUNNERS},
        postgres_dsn=postgres_server.dsn(database),
        environment={"*": SHORT_LIFE, "coordinator": COORDINATOR, "models": runner},
    )
    async with Stack(options) as stack:
        yield stack


@dataclass
class StreamedUpdates:
    """What a watcher read of the first answer, piece by piece."""

    pieces: list[LiveTextEvent] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    async def has(self, characters: int) -> None:
        """Waits until so much was read."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.text) < characters:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(bench: WorkerBench, task_id: str) -> AsyncIterator[StreamedUpdates]:
    """Reads the live text of the first answer in the background."""
    updates = StreamedUpdates()

    async def read() -> None:
        async with (
            Client(bench.stack.gateway_address) as client,
            aclosing((await client.get(task_id)).events()) as events,
        ):
            async for event in events:
                if isinstance(event, AssistantMessageEvent):
                    return
                if isinstance(event, LiveTextEvent):
                    updates.pieces.append(event)

    reading = asyncio.create_task(read())
    try:
        yield updates
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def begun(bench: WorkerBench, *, workers: int = 2, **settings: Any) -> tuple[str, list[ServiceProcess]]:
    """A task whose answer is under way, and the workers, its owner first."""
    started = [await bench.start_worker(**settings) for _ in range(workers)]
    task_id = await bench.submit("sim-worker-streamed")
    await bench.reached(task_id, facts.ModelAttempt)
    owner = (await bench.task(task_id)).owner
    started.sort(key=lambda worker: worker.name != owner)
    return task_id, started


async def speaking(bench: WorkerBench, task_id: str, owner: ServiceProcess) -> None:
    """Waits until the model's answer has begun."""
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.speaking(task_id, owner)


def sent(bench: WorkerBench, task_id: str) -> dict[str, int]:
    """How often the provider got each attempt, by its own record; calls under way count."""
    running = bench.simulator.running()  # read first: a call that ends meanwhile is in both, and in none otherwise
    calls = {call["request_id"]: call["attempt"] or "" for call in [*running, *bench.model_calls(task_id)]}
    return dict(Counter(attempt for attempt in calls.values() if attempt.startswith(task_id)))


async def check_paid_once(bench: WorkerBench, task_id: str, *, claims: int) -> None:
    """Each attempt was sent once, answered, and billed with the provider's own usage; the checker agrees."""
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert task.claim_count == claims
    assert await bench.effects(task_id) == ["once"]
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/2/1": 1}
    answers = await bench.bodies(task_id, facts.AssistantMessage)
    billed = {call["request_id"]: usage_of(call) for call in bench.model_calls(task_id)}
    assert {answer.provider_request_id: answer.usage for answer in answers} == billed
    assert not await bench.bodies(task_id, facts.AttemptLost)
    assert not await bench.bodies(task_id, facts.ModelFailure)
    await check_budget(bench, task_id, list(billed.values()))
    await check_history(bench, task_id)


def usage_of(call: dict[str, Any]) -> TokenUsage:
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return TokenUsage(*(call[name] for name in names))


async def check_budget(bench: WorkerBench, task_id: str, billed: Sequence[TokenUsage]) -> None:
    """The ledger's bill is the provider's, and nothing stays reserved."""
    budget = (await bench.task(task_id)).budget
    assert (budget.used_tokens, budget.reserved_tokens) == (sum(usage.total for usage in billed), 0)


async def check_history(bench: WorkerBench, task_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):  # the simulator writes a call down when it sees the connection end
        while any((call["attempt"] or "").startswith(task_id) for call in bench.simulator.running()):
            await asyncio.sleep(0.05)
    calls = tuple(call for call in read_model_calls(bench.simulator.log_path) if call.task_id == task_id)
    async with LowClient(bench.stack.gateway_address) as client:
        history = await collect_tasks(client, [task_id])
    assert examine(replace(history, model_calls=calls)).violations == ()


def check_text(updates: StreamedUpdates, *, more_than: int) -> None:
    """Each character came once and in order, over the takeover, too."""
    assert len(updates.text) > more_than
    assert TEXT.startswith(updates.text)
    assert not any(piece.replaces or piece.skipped for piece in updates.pieces)


@pytest.mark.faults
@pytest.mark.parametrize("how", ["kill", "drain"])
async def test_the_next_worker_joins_the_call_in_flight(bench: WorkerBench, how: str) -> None:
    task_id, (owner, _) = await begun(bench)
    async with watching(bench, task_id) as updates:
        await updates.has(50)
        before = len(updates.text)
        if how == "kill":
            owner.kill()
        else:
            assert await owner.drain() == 0
        await bench.reached(task_id, facts.AssistantMessage)
        check_text(updates, more_than=before)
    await check_paid_once(bench, task_id, claims=2)
    reasons = [reason for state, reason in await bench.transitions(task_id) if state is TaskState.QUEUED]
    assert reasons[-1] == (Reason.WORKER_LOST if how == "kill" else Reason.WORKER_DRAINED)


@pytest.mark.faults
async def test_a_frozen_worker_wakes_and_pays_nothing(bench: WorkerBench) -> None:
    """It is deaf to the loss of its claim, reads the call to its end, and its commit is refused."""
    task_id, (sleeper, _) = await begun(bench, failpoints="worker.ignore_trust_window")
    async with watching(bench, task_id) as updates:
        await updates.has(50)
        before = len(updates.text)
        sleeper.freeze()
        asleep = asyncio.create_task(asyncio.sleep(2 * SHORT_LIFE_SECONDS))
        await bench.reached(task_id, facts.AssistantMessage)
        check_text(updates, more_than=before)
    await check_paid_once(bench, task_id, claims=2)
    whole = await bench.entries(task_id)
    await asleep
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await bench.entries(task_id) == whole
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/2/1": 1}


@pytest.mark.faults
async def test_a_call_survives_several_workers(bench: WorkerBench) -> None:
    task_id, (first, _, _) = await begun(bench, workers=3)
    async with watching(bench, task_id) as updates:
        await updates.has(40)
        first.kill()
        await bench.reached(task_id, facts.Transition, 4)  # queued, opened, lost, opened
        owner = (await bench.task(task_id)).owner
        second = next(worker for worker in bench.workers if worker.name == owner)
        await updates.has(len(updates.text) + 20)
        second.kill()
        await bench.reached(task_id, facts.AssistantMessage)
        check_text(updates, more_than=60)
    await check_paid_once(bench, task_id, claims=3)


@pytest.mark.faults
async def test_a_cancel_stops_the_call_at_the_provider(bench: WorkerBench) -> None:
    """The usage that the provider billed until then is in the ledger; the call was sent once."""
    task_id, _ = await begun(bench, workers=1)
    async with watching(bench, task_id) as updates:
        await updates.has(50)
        await bench.cancel(task_id)
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.CANCELLED
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert failure.error_class == "INTERRUPTED"
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1}
    assert failure.usage.output_tokens > 0
    await check_budget(bench, task_id, [failure.usage])
    await check_history(bench, task_id)


async def settled_by_report(bench: WorkerBench, task_id: str) -> dict[str, Any]:
    """The provider's record of the first call, once a report of the model runner has put it on the bill.

    An abandoned call is billed as it was received, which may be less than the provider had sent.
    """
    async with asyncio.timeout(PATIENCE_SECONDS), LowClient(bench.stack.gateway_address) as client:
        while not (bill := (await anext(client.bills(task_id)))).HasField("estimated_usage"):
            await asyncio.sleep(0.1)
        (call,) = [one for one in bench.model_calls(task_id) if one["attempt"] == f"{task_id}/1/1"]
    assert (bill.lost, bill.usage.input_tokens) == (True, call["input_tokens"])
    if call["ending"] == "complete":
        assert bill.usage.output_tokens == call["output_tokens"]
    assert bill.usage.output_tokens > 0
    return call


@pytest.mark.faults
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_an_ending_while_queued_is_billed_by_a_report(bench: WorkerBench, how: str) -> None:
    """No worker settles the call: the ledger does, with an estimate, and the runner reports what it used.

    A call in flight is stopped then. At the deadline it has ended.
    """
    owner = await bench.start_worker()
    limits = Limits(timeout_seconds=25.0) if how == "deadline" else Limits()
    task_id = await bench.submit("sim-worker-streamed", limits=limits)
    await speaking(bench, task_id, owner)
    owner.kill()
    await bench.in_state(task_id, TaskState.QUEUED)
    assert (await bench.task(task_id)).budget.reserved_tokens > 0
    if how == "cancel":
        await bench.cancel(task_id)
    task = await bench.ended(task_id)
    assert state_name(task.state) == (TaskState.CANCELLED if how == "cancel" else TaskState.TIMED_OUT)
    assert len(await bench.bodies(task_id, facts.AttemptLost)) == 1
    call = await settled_by_report(bench, task_id)
    assert call["ending"] == ("abandoned" if how == "cancel" else "complete")
    assert (await bench.task(task_id)).budget.reserved_tokens == 0
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1}
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_a_worker_without_runners_repeats_the_call(bench: WorkerBench) -> None:
    """It cannot join: the call is settled as lost, stopped and reported, and the next attempt goes the direct way."""
    owner = await bench.start_worker()
    task_id = await bench.submit("sim-worker-streamed")
    await speaking(bench, task_id, owner)
    owner.kill()
    await bench.in_state(task_id, TaskState.QUEUED)
    await bench.start_worker(**DIRECT)
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1, f"{task_id}/1/2": 1, f"{task_id}/2/1": 1}
    assert (await settled_by_report(bench, task_id))["ending"] == "abandoned"
    assert (await bench.task(task_id)).budget.reserved_tokens == 0
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_a_message_during_a_takeover_waits_for_its_turn(bench: WorkerBench) -> None:
    """It arrives while the task is queued, is in no request that was sent, and the next call has it."""
    owner = await bench.start_worker()
    task_id = await bench.submit("sim-worker-streamed")
    await speaking(bench, task_id, owner)
    owner.kill()
    await bench.in_state(task_id, TaskState.QUEUED)
    await bench.tell(task_id, "hurry up")
    await bench.start_worker()
    await check_paid_once(bench, task_id, claims=2)
    first, *_ = await bench.bodies(task_id, facts.AssistantMessage)
    assert text_of(first.content) == TEXT


async def check_redirected(bench: WorkerBench, task_id: str, *, attempts: list[str], claims: int) -> None:
    """The interrupted call was stopped at the provider and is billed; the one after it has the message."""
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert task.result.rstrip('"').endswith("in French")
    assert task.claim_count == claims
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    (answer,) = await bench.bodies(task_id, facts.AssistantMessage)
    assert (failure.error_class, failure.message) == ("INTERRUPTED", BY_MESSAGE)
    assert failure.usage.output_tokens > 0
    assert sent(bench, task_id) == {f"{task_id}/{attempt}": 1 for attempt in attempts}
    await check_budget(bench, task_id, [failure.usage, answer.usage])
    await check_history(bench, task_id)
    (stopped, _) = sorted(bench.model_calls(task_id), key=lambda call: str(call["attempt"]))
    assert stopped["ending"] == "abandoned"


@pytest.mark.parametrize("how", first(["running", "killed", "drained"]))
async def test_a_message_interrupts_a_call_of_a_runner(bench: WorkerBench, how: str) -> None:
    """Also if its owner left after the record of the message and before the stop: the next owner does not join it."""
    owner = await bench.start_worker()
    bench.simulator.order_fault(drip_ms=600, count=1)
    task_id = await bench.submit("sim-worker-redirected")
    await speaking(bench, task_id, owner)
    if how == "running":
        await bench.tell(task_id, "in French", interrupt=True)
    elif how == "killed":
        owner.freeze()
        await bench.tell(task_id, "in French", interrupt=True)
        owner.kill()
        await bench.start_worker()
    else:
        assert await owner.drain() == 0
        await bench.tell(task_id, "in French", interrupt=True)
        await bench.start_worker()
    await check_redirected(bench, task_id, attempts=["1/1", "1/2"], claims=1 if how == "running" else 2)


@pytest.mark.faults
async def test_a_stale_worker_stops_no_call_for_a_message(bench: WorkerBench) -> None:
    """It wakes with the notice of a message that the next owner has read, and is deaf to the loss of its claim."""
    sleeper = await bench.start_worker(failpoints="worker.ignore_trust_window")
    bench.simulator.order_fault(drip_ms=600, count=1)
    task_id = await bench.submit("sim-worker-redirected")
    await speaking(bench, task_id, sleeper)
    sleeper.freeze()
    await bench.tell(task_id, "in French", interrupt=True)
    await asyncio.sleep(2 * SHORT_LIFE_SECONDS)
    bench.simulator.order_fault(drip_ms=100, count=1)
    await bench.start_worker()
    await bench.reached(task_id, facts.ModelAttempt, 2)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    await check_redirected(bench, task_id, attempts=["1/1", "1/2"], claims=2)


@pytest.mark.faults
async def test_a_step_timeout_stops_the_call(bench: WorkerBench) -> None:
    """The task ends, after its call was stopped at the provider and settled with its usage."""
    await bench.start_worker()
    policy = TaskPolicy()
    timeouts = replace(policy.timeouts, step=replace(policy.timeouts.step, after_seconds=6.0))
    task_id = await bench.submit("sim-worker-streamed", policy=replace(policy, timeouts=timeouts))
    await bench.reached(task_id, facts.ModelFailure)
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.TIMED_OUT
    (failure,) = await bench.bodies(task_id, facts.ModelFailure)
    assert failure.error_class == "INTERRUPTED"
    assert failure.usage.output_tokens > 0
    assert sent(bench, task_id) == {f"{task_id}/1/1": 1}
    await check_budget(bench, task_id, [failure.usage])
    await check_history(bench, task_id)


@pytest.mark.faults
async def test_a_drained_runner_first_ends_its_calls(bench: WorkerBench) -> None:
    """Both replicas are restarted in the middle of a call: one of them makes it."""
    task_id, _ = await begun(bench, workers=1)
    async with watching(bench, task_id) as updates:
        await updates.has(30)
        before = len(updates.text)
        for name in bench.stack.options.names_of("models"):
            await bench.stack.services[name].restart()
        await bench.reached(task_id, facts.AssistantMessage)
        check_text(updates, more_than=before)
    await check_paid_once(bench, task_id, claims=1)


@asynccontextmanager
async def dying(bench: WorkerBench, failpoint: str) -> AsyncIterator[list[str]]:
    """Each runner dies at its first hit of the failpoint, and is started again without it. Yields who died."""
    runners = [bench.stack.services[name] for name in bench.stack.options.names_of("models")]
    died: list[str] = []

    async def keep(runner: ServiceProcess) -> None:
        await runner.restart({"TENURE_FAILPOINTS": f"{failpoint}=1#kill9"})
        while runner.exit_code is None:
            await asyncio.sleep(0.05)
        died.append(runner.name)
        runner.start({"TENURE_FAILPOINTS": ""})
        await runner.wait_ready()

    keepers = [asyncio.create_task(keep(runner)) for runner in runners]
    try:
        yield died
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for runner in runners:
            await runner.restart({"TENURE_FAILPOINTS": ""})


@pytest.mark.faults
@pytest.mark.parametrize("failpoint", sorted(OF_MODEL_RUNNERS))
async def test_no_attempt_is_sent_twice_by_runners_that_die(bench: WorkerBench, failpoint: str) -> None:
    """A call whose runner died after the SENT mark is lost, and the next attempt is made; else the attempt goes on."""
    async with dying(bench, failpoint) as died:
        await bench.start_worker()
        task_id = await bench.submit("sim-worker-streamed")
        task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert died, "no runner met the failpoint"
    attempts = sent(bench, task_id)
    assert set(attempts.values()) == {1}
    lost = [one for one in await bench.bodies(task_id, facts.ModelFailure) if one.error_class == "LOST"]
    assert bool(lost) == (failpoint != "models.before_admission")
    assert len(attempts) == (2 + len(lost) if failpoint == "models.before_end" else 2)
    assert await bench.effects(task_id) == ["once"]
    await check_history(bench, task_id)
