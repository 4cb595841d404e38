"""Own tools in real workers: killed, frozen, drained and cut off, with their effects counted in a file."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checker.collect import collect_tasks
from checker.verify import verify
from devstack.service_process import ServiceProcess
from tenure.client import Client
from tenure.domain import entries as facts
from tenure.domain.in_doubt import DidNotHappen
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, InDoubtPolicy, TaskPolicy, TaskSpec
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tenure.wire.task import spec_to_wire
from tests.conformance.test_worker_in_doubt import say
from tests.conformance.test_worker_waits import answer
from tests.fault.test_zombies import logged, stands_still, worker_stack
from tests.support.fix_simulator import REPOSITORY
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

__all__ = ["worker_stack"]  # the fixture: leases short enough to outwait them

pytestmark = pytest.mark.server

MODULE = "tests.support.own_tool_functions"
REPEATABLE = [effect.value for effect in EffectClass if effect.may_run_again]


class Letters:
    """Tasks of one test, with the file of their effects and the gate before them."""

    def __init__(self, bench: WorkerBench, folder: Path) -> None:
        self.bench = bench
        self.trace, self.gate = folder / "trace", folder / "gate"

    async def worker(self, failpoints: str = "", **settings: str) -> ServiceProcess:
        return await self.bench.start_worker(failpoints=failpoints, loops="control", control_modules=MODULE, **settings)

    async def submit(
        self,
        effects: list[str],
        *,
        how: str = "",
        function: str = "writing",
        policy: TaskPolicy | None = None,
        **tool: Any,
    ) -> str:
        arguments = {"trace": str(self.trace), "gate": str(self.gate), "line": "", "how": how}
        given = {"effects": effects, "arguments": arguments, "tool": tool}
        spec = TaskSpec(
            goal="",
            agent=AgentSpec(loop="control"),
            policy=policy or TaskPolicy(on_in_doubt=InDoubtPolicy.TELL_MODEL),
            queue=self.bench.queue,
            control=ControlWork(function, json.dumps(given)),
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.bench.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    def open_gate(self) -> None:
        self.gate.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.trace.read_text().splitlines()] if self.trace.exists() else []

    def counts(self) -> Counter[str]:
        """How often each effect happened, and how often it began."""
        return Counter(line[0] for line in self.lines())

    def keys(self, effect: str) -> set[str]:
        return {line[2] for line in self.lines() if line[0].endswith(effect)}

    async def began(self, *effects: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(self.counts()[f"began-{effect}"] < times for effect in effects):
                await asyncio.sleep(0.02)

    async def result(self, task_id: str) -> list[str]:
        """What a task that SUCCEEDED returned. Its history breaks no invariant."""
        task = await self.bench.ended(task_id)
        assert state_name(task.state) == TaskState.SUCCEEDED, task.message
        async with Client(self.bench.stack.gateway_address) as auditor:
            assert verify(await collect_tasks(auditor, [task_id])) == []
        decoded: list[str] = json.loads(task.result)
        return decoded


@pytest.fixture
def letters(bench: WorkerBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Letters:
    add = bench.stack.add_worker
    monkeypatch.setattr(bench.stack, "add_worker", lambda more: add({**more, "PYTHONPATH": str(REPOSITORY)}))
    return Letters(bench, tmp_path)


async def test_own_tools_run_once_and_are_recorded(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit([*REPEATABLE, "UNSAFE"])
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"] * 4
    assert {effect: letters.counts()[effect] for effect in EffectClass} == dict.fromkeys(EffectClass, 1)
    outcomes = await letters.bench.bodies(task_id, facts.ToolOutcome)
    assert sorted(outcome.call_id for outcome in outcomes) == ["1.0", "1.1", "1.2", "1.3"]
    assert letters.keys("UNSAFE") == {f"{task_id}/1.3"}


async def test_a_killed_workers_repeatable_calls_run_again(letters: Letters) -> None:
    killed = await letters.worker()
    task_id = await letters.submit(REPEATABLE)
    await letters.began(*REPEATABLE)
    killed.kill()
    letters.open_gate()
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"] * len(REPEATABLE)
    assert {letters.counts()[effect] for effect in REPEATABLE} == {1}
    assert [len(letters.keys(effect)) for effect in REPEATABLE] == [1, 1, 1]


async def test_a_killed_workers_unsafe_call_is_in_doubt(letters: Letters) -> None:
    killed = await letters.worker()
    task_id = await letters.submit(["UNSAFE"])
    await letters.began("UNSAFE")
    killed.kill()
    letters.open_gate()
    await letters.worker()
    (came_to,) = await letters.result(task_id)
    assert came_to.startswith("IN_DOUBT")
    assert letters.counts() == Counter({"began-UNSAFE": 1})


@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_an_outcome_that_was_not_sent_is_lost_with_the_worker(letters: Letters, effect: str) -> None:
    """The effect happened, and only the dead worker knew."""
    letters.open_gate()
    dying = await letters.worker(failpoints="worker.after_own_tool=1#kill9")
    task_id = await letters.submit([effect])
    await letters.bench.died(dying)
    await letters.worker()
    (came_to,) = await letters.result(task_id)
    keyed = effect == "KEYED"
    assert came_to.startswith("SUCCEEDED: attempt 2" if keyed else "IN_DOUBT")
    assert letters.counts()[effect] == (2 if keyed else 1)
    assert len(letters.keys(effect)) == 1


@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_a_zombie_that_was_ordered_does_not_begin(letters: Letters, effect: str) -> None:
    """Frozen when the order arrived, and woken after the takeover: its trust window is closed."""
    sleeper = await letters.worker(failpoints="worker.before_own_tool=1#freeze")
    letters.open_gate()
    task_id = await letters.submit([effect])
    await stands_still(sleeper)
    second = await letters.worker()
    (came_to,) = await letters.result(task_id)
    assert came_to.startswith("SUCCEEDED: attempt 2" if effect == "KEYED" else "IN_DOUBT")
    before = letters.lines()
    whole = await letters.bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert letters.lines() == before
    assert letters.counts()[effect] == (1 if effect == "KEYED" else 0)
    assert await letters.bench.entries(task_id) == whole
    assert second.exit_code is None


async def test_a_zombie_that_was_running_cannot_record(letters: Letters) -> None:
    """Its coroutine goes on after the takeover, and nothing can stop that; what it sends changes nothing."""
    sleeper = await letters.worker(failpoints="worker.ignore_trust_window;worker.after_own_tool=1#freeze")
    letters.open_gate()
    task_id = await letters.submit(["KEYED"])
    await stands_still(sleeper)
    assert letters.counts()["KEYED"] == 1
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    whole = await letters.bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await letters.bench.entries(task_id) == whole
    assert len(letters.keys("KEYED")) == 1


async def test_a_person_resolves_an_own_call_in_doubt(letters: Letters) -> None:
    killed = await letters.worker()
    waiting = TaskPolicy(on_in_doubt=InDoubtPolicy.WAIT_FOR_PERSON)
    task_id = await letters.submit(["UNSAFE"], policy=waiting)
    await letters.began("UNSAFE")
    killed.kill()
    await letters.worker()
    await letters.bench.in_state(task_id, TaskState.WAITING_USER)
    letters.open_gate()
    await say(letters.bench, task_id, DidNotHappen(runner_is_gone=True))
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    assert letters.counts() == Counter({"began-UNSAFE": 2, "UNSAFE": 1})


@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_a_run_goes_on_through_a_killed_tool_service(letters: Letters, effect: str) -> None:
    """The worker joins its own run: the effect happens once, and is not in doubt."""
    await letters.worker()
    task_id = await letters.submit([effect])
    await letters.began(effect)
    letters.bench.stack.services["tools"].kill()
    letters.open_gate()
    await letters.bench.restart("tools")
    (came_to,) = await letters.result(task_id)
    assert came_to == "SUCCEEDED: attempt 1"
    assert letters.counts() == Counter({f"began-{effect}": 1, effect: 1})


async def test_a_cancel_stops_an_own_tool(letters: Letters) -> None:
    await letters.worker()
    task_id = await letters.submit(["KEYED"])
    await letters.began("KEYED")
    await letters.bench.cancel(task_id)
    assert state_name((await letters.bench.ended(task_id)).state) == TaskState.CANCELLED
    letters.open_gate()
    (outcome,) = await letters.bench.bodies(task_id, facts.ToolOutcome)
    assert outcome.outcome.status is OutcomeStatus.CANCELLED
    assert letters.counts()["KEYED"] == 0


async def test_a_drain_waits_for_an_unsafe_tool(letters: Letters) -> None:
    draining = await letters.worker(drain_seconds="30")
    task_id = await letters.submit(["UNSAFE"])
    await letters.began("UNSAFE")
    ending = asyncio.create_task(draining.drain())
    await logged(draining, '"stopping"')
    letters.open_gate()
    assert await ending == 0
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"]
    assert letters.counts() == Counter({"began-UNSAFE": 1, "UNSAFE": 1})


async def test_a_drain_hands_a_keyed_tool_over(letters: Letters) -> None:
    draining = await letters.worker(drain_seconds="30")
    task_id = await letters.submit(["KEYED"])
    await letters.began("KEYED")
    assert await draining.drain() == 0
    await letters.worker()
    await letters.began("KEYED", times=2)
    letters.open_gate()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    assert letters.counts()["KEYED"] == 1


async def test_an_own_tool_waits_for_its_approval(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit(["UNSAFE"], needs_approval=True)
    task = await letters.bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.wait.kind, task.wait.tool) == (task_pb2.WAIT_KIND_TOOL_APPROVAL, "write_unsafe")
    assert letters.lines() == []
    await answer(letters.bench, task, "allow")
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"]
    assert letters.counts()["UNSAFE"] == 1


@pytest.mark.parametrize(
    ("how", "effect", "answer"),
    [
        ("fail", "KEYED", "FAILED: write_keyed failed: ValueError: out of ink"),
        ("large", "KEYED", "FAILED: write_keyed returned 17000000 bytes, and may return 262144"),
        ("unknown", "UNSAFE", "IN_DOUBT: It is not known whether this call happened: write_unsafe lost the answer"),
        ("unknown", "KEYED", "FAILED: write_keyed lost the answer to what it sent: the post office hung up."),
    ],
)
async def test_what_an_own_tool_comes_to(letters: Letters, how: str, effect: str, answer: str) -> None:
    letters.open_gate()
    await letters.worker()
    (result,) = await letters.result(await letters.submit([effect], how=how))
    assert result.startswith(answer)
    assert letters.counts()[effect] == 1


@pytest.mark.parametrize(("effect", "status"), [("KEYED", "TIMED_OUT"), ("UNSAFE", "IN_DOUBT")])
async def test_an_own_tool_is_stopped_at_its_timeout(letters: Letters, effect: str, status: str) -> None:
    letters.open_gate()
    await letters.worker()
    (result,) = await letters.result(await letters.submit([effect], how="sleep", timeout_seconds=0.5))
    assert result.startswith(status)
    # The worker stops the run. On a busy machine the service gives up before it hears of that, and asked it to stop.
    assert any(f"took longer than 0.5 s and was {how}" in result for how in ("stopped", "asked to stop"))


async def test_a_name_of_the_tool_service_is_refused(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit([], function="conflicting")
    task = await letters.bench.ended(task_id)
    assert json.loads(task.result) == "INVALID_ARGUMENTS: TOOL_NAME_TAKEN"
    assert letters.lines() == []
