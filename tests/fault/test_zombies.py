"""Processes that are frozen or stuck, are taken for dead, and come back: no process acts on stale state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from devstack import Stack, StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.service_process import ServiceProcess
from devstack.stores import ensure_database
from tenure.domain import entries as facts
from tenure.domain.close_out import CRASH_LOOP_DEATHS
from tenure.domain.states import Reason, TaskState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench
from tests.support.lives import SHORT_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.faults]

PACED = sorted(str(number) for number in range(6))
EFFECTS = sorted(f"{kind} {number}" for kind in ("keyed", "once") for number in (1, 2, 3))
COORDINATOR = {
    "TENURE_COORDINATOR_RECONCILE_INTERVAL_SECONDS": "1",
    "TENURE_COORDINATOR_PROGRESS_TIMEOUT_SECONDS": str(SHORT_LIFE_SECONDS),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresProcess
) -> AsyncIterator[Stack]:
    """The bench's stack for this module: two coordinators, and leases short enough to outwait them."""
    await ensure_database(postgres_server.dsn(), "zombies")
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("zombies"),
        workers=0,
        replicas={"coordinator": 2},
        postgres_dsn=postgres_server.dsn("zombies"),
        environment={"*": SHORT_LIFE, "coordinator": COORDINATOR},
    )
    async with Stack(options) as stack:
        yield stack


async def check_done(bench: WorkerBench, task_id: str, *, effects: list[str], claims: int | None = None) -> None:
    """Succeeded, each step answered once, each effect there once."""
    task = await bench.ended(task_id)
    assert state_name(task.state) == TaskState.SUCCEEDED, f"{task.reason}: {task.message}"
    assert claims is None or task.claim_count == claims
    answered = [entry.step for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    assert answered == list(range(1, len(answered) + 1))
    assert sorted(await bench.effects(task_id)) == effects


async def check_takes_tasks(bench: WorkerBench, count: int = 1) -> None:
    """New tasks go through, each under one claim."""
    for task_id in [await bench.submit("sim-worker-effects") for _ in range(count)]:
        await check_done(bench, task_id, effects=EFFECTS, claims=1)


async def logged(service: ServiceProcess, words: str) -> None:
    """Waits until it has said so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while words not in service.log():
            await asyncio.sleep(0.05)


class HasPid(Protocol):
    """A process that runs."""

    @property
    def pid(self) -> int: ...


async def stands_still(sleeper: HasPid) -> None:
    """Waits until a process stands still, as its failpoint has it."""
    stat = Path(f"/proc/{sleeper.pid}/stat")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            await asyncio.sleep(0.02)


async def refused(bench: WorkerBench, task_id: str) -> set[tuple[str, str]]:
    """Whom the ledger refused what for a stale epoch, once its audit has it: that is written beside the refusal."""
    request = pb.ListRefusedWritesRequest(task_id=task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (audit := (await bench.ledger.ListRefusedWrites(request, timeout=CALL_SECONDS)).refused_writes):
            await asyncio.sleep(0.05)
    assert all(each.presented_epoch < each.current_epoch for each in audit)
    return {(each.holder, each.method) for each in audit}


async def test_a_worker_frozen_during_its_model_call_wakes_to_a_fence(bench: WorkerBench) -> None:
    """It is deaf to the loss of its claim, so that it truly tries: the fence alone stops it."""
    sleeper = await bench.start_worker(failpoints="worker.ignore_trust_window")
    task_id = await bench.submit("sim-worker-slow-model")
    await bench.reached(task_id, facts.ModelAttempt)
    sleeper.freeze()
    asleep = asyncio.create_task(asyncio.sleep(2 * SHORT_LIFE_SECONDS))
    successor = await bench.start_worker()
    await check_done(bench, task_id, effects=["once"], claims=2)
    await asleep
    whole = await bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await refused(bench, task_id) == {(sleeper.name, "Commit")}
    assert await bench.entries(task_id) == whole
    assert await bench.effects(task_id) == ["once"]
    assert await successor.drain() == 0
    await check_takes_tasks(bench)
    assert sleeper.exit_code is None


async def test_a_stuck_worker_loses_its_task_and_its_late_call_fails(bench: WorkerBench, tmp_path: Path) -> None:
    release = tmp_path / "release"
    stuck = await bench.start_worker(
        failpoints=f"worker.ignore_trust_window;worker.after_intent=1#wait({release})", slots="1"
    )
    task_id = await bench.submit("sim-worker-unsafe")
    await bench.reached(task_id, facts.ToolIntent)
    await bench.start_worker()
    await check_done(bench, task_id, effects=["once"], claims=2)
    moves = await bench.bodies(task_id, facts.Transition)
    assert (TaskState.QUEUED, Reason.WORKER_STUCK) in {(move.to_state, move.reason) for move in moves}, moves
    whole = await bench.entries(task_id)
    release.touch()
    await logged(stuck, '"task left"')
    assert await refused(bench, task_id) == {(stuck.name, "Commit")}
    assert await bench.entries(task_id) == whole
    assert await bench.effects(task_id) == ["once"]


async def test_a_claim_made_before_a_sleep_is_not_a_grant(bench: WorkerBench) -> None:
    sleeper, other = bench.stack.replicas("coordinator")
    await bench.restart("coordinator", failpoints="coordinator.after_claim=1#freeze")
    faithful = await bench.start_worker(coordinator_address=sleeper.address)
    task_id = await bench.submit("sim-worker-effects")
    await stands_still(sleeper)
    await bench.start_worker(coordinator_address=other.address)
    await check_done(bench, task_id, effects=EFFECTS, claims=1)
    sleeper.wake()
    await logged(sleeper, "claims were not registered by the ledger and are deleted")
    await check_takes_tasks(bench, 3)
    assert (await bench.task(task_id)).claim_count == 1
    assert faithful.exit_code is None


async def test_a_rolling_restart_of_coordinators_evicts_no_worker(bench: WorkerBench) -> None:
    await bench.start_worker(coordinator_address=",".join(one.address for one in bench.stack.replicas("coordinator")))
    long = await bench.submit("sim-worker-long-answer")
    await bench.reached(long, facts.ModelAttempt)
    for replica in bench.stack.replicas("coordinator"):
        paced = await bench.submit("sim-worker-paced")
        await bench.reached(paced, facts.ModelAttempt)
        await replica.restart()
        await check_done(bench, paced, effects=PACED, claims=1)
    assert (await bench.task(long)).claim_count == 1
    await bench.cancel(long)
    assert state_name((await bench.ended(long)).state) == TaskState.CANCELLED


@pytest.mark.parametrize("service", ["checkpoint", "tools"])
async def test_a_service_that_slept_costs_only_time(bench: WorkerBench, service: str) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.AssistantMessage, 2)
    sleeper = bench.stack.services[service]
    sleeper.freeze()
    await asyncio.sleep(SHORT_LIFE_SECONDS + 1)
    sleeper.wake()
    await check_done(bench, task_id, effects=PACED)


@pytest.mark.timeout(600)  # it starts six workers, one after another
async def test_a_task_that_kills_its_workers_fails_alone(bench: WorkerBench) -> None:
    """The test is the poison: it kills every worker that is about to call the model for it."""
    poison = await bench.submit("sim-worker-long-answer")
    others = [await bench.submit("sim-worker-paced") for _ in range(3)]
    for attempt in range(1, CRASH_LOOP_DEATHS + 1):
        victim = await bench.start_worker()
        await bench.reached(poison, facts.ModelAttempt, attempt)
        victim.kill()
    task = await bench.ended(poison)
    assert (state_name(task.state), task.reason) == (TaskState.FAILED, Reason.CRASH_LOOP)
    assert task.claim_count == CRASH_LOOP_DEATHS
    await bench.start_worker()
    for task_id in others:
        await check_done(bench, task_id, effects=PACED)
