"""Cancels that meet something else: one of two ends, once, and nothing begins once the end is committed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tenure.domain import entries as facts
from tenure.domain.errors import WrongState
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.wire.common import state_name
from tests.fault.test_zombies import logged, stands_still
from tests.support.fix_worker import WorkerBench
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server

LATEST_CANCEL_SECONDS = 1.5
"""About as long as a paced run takes, so that some cancels come before its end and some after it."""


async def ended_once(bench: WorkerBench, task_id: str) -> TaskState:
    """How it ended; after that, neither the ledger nor the model nor a tool heard of it again."""
    task = await bench.ended(task_id)
    entries = await bench.entries(task_id)
    endings = [entry for entry in entries if _is_end(entry)]
    assert [entry.sequence for entry in endings] == [entries[-1].sequence]
    opened = {entry.body.call_id for entry in entries if isinstance(entry.body, facts.ToolIntent)}
    settled = {entry.body.call_id for entry in entries if isinstance(entry.body, facts.ToolOutcome)}
    assert opened == settled
    # A request that was on its way may be heard after the end; each was set aside for before it.
    attempts = [entry for entry in entries if isinstance(entry.body, facts.ModelAttempt)]
    assert len(bench.model_calls(task_id)) <= len(attempts)
    ended_at = task.end_time.ToDatetime(UTC)
    starts = await at_the_tools(bench, "started_at from tools.calls", task_id)
    assert all(started_at is None or started_at <= ended_at for (started_at,) in starts)
    return TaskState(state_name(task.state))


def _is_end(entry: facts.Entry) -> bool:
    return isinstance(entry.body, facts.Transition) and entry.body.to_state in TERMINAL


async def at_the_tools(bench: WorkerBench, what: LiteralString, task_id: str) -> list[tuple[Any, ...]]:
    """What the tool service's tables say of the task."""
    async with await psycopg.AsyncConnection.connect(bench.stack.postgres_dsn) as postgres:
        return await (await postgres.execute(f"select {what} where task_id = %s", (task_id,))).fetchall()


async def cancelled_after(bench: WorkerBench, task_id: str, seconds: float) -> bool:
    """Whether the cancel was taken; otherwise the task had ended."""
    await asyncio.sleep(seconds)
    try:
        await bench.cancel(task_id)
    except WrongState:
        return False
    return True


@pytest.mark.faults
@pytest.mark.parametrize("latest_seconds", [0.0, LATEST_CANCEL_SECONDS])
async def test_a_cancel_and_a_completion_have_one_winner(bench: WorkerBench, latest_seconds: float) -> None:
    """At once: before a worker has it, or while it is handed out. Later: anywhere in a run, and after its end."""
    await bench.start_worker()
    rng = random.Random(46)
    tasks = [await bench.submit("sim-worker-effects") for _ in range(12)]
    waits = [rng.uniform(0.0, latest_seconds) for _ in tasks]
    taken = await asyncio.gather(*(cancelled_after(bench, *each) for each in zip(tasks, waits, strict=True)))
    ends = [await ended_once(bench, task_id) for task_id in tasks]
    assert ends == [TaskState.CANCELLED if was_taken else TaskState.SUCCEEDED for was_taken in taken]


@pytest.mark.faults
async def test_many_cancels_at_once_are_one_end(bench: WorkerBench) -> None:
    worker = await bench.start_worker()
    task_id = await bench.submit("sim-worker-long-answer")
    await bench.reached(task_id, facts.ModelAttempt)
    await bench.speaking(task_id, worker)
    await asyncio.gather(*(bench.cancel(task_id) for _ in range(10)))
    assert await ended_once(bench, task_id) is TaskState.CANCELLED
    assert len(await bench.bodies(task_id, facts.CancelRequest)) == 1
    async with asyncio.timeout(PATIENCE_SECONDS):  # the simulator writes the call down when it sees the connection end
        while not (calls := bench.model_calls(task_id)):
            await asyncio.sleep(0.05)
    assert len(calls) == 1


@pytest.mark.faults
async def test_a_cancelled_tasks_program_is_dead_at_the_commit(bench: WorkerBench) -> None:
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-program")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(programs_of, task_id):
            await asyncio.sleep(0.02)
    await bench.cancel(task_id)
    assert await ended_once(bench, task_id) is TaskState.CANCELLED
    assert await asyncio.to_thread(programs_of, task_id) == []


def programs_of(task_id: str) -> list[int]:
    """The processes that see the task's files as a mount of their own; sandboxes that wait for a program see none."""
    results = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if task_id in (process / "mountinfo").read_text():
                    results.append(int(process.name))
    return results


@pytest.mark.faults
async def test_a_cancel_during_the_owners_sleep_is_carried_out(
    bench: WorkerBench,
) -> None:
    """Frozen between intent and call, and deaf when it wakes: it does call its tool, and is refused."""
    sleeper = await bench.start_worker(failpoints="worker.ignore_trust_window;worker.after_intent=1#freeze")
    task_id = await bench.submit("sim-worker-unsafe")
    await bench.reached(task_id, facts.ToolIntent)
    await stands_still(sleeper)  # else it may hear of the cancel before it freezes, and calls nothing
    await bench.cancel(task_id)
    assert await ended_once(bench, task_id) is TaskState.CANCELLED
    (outcome,) = await bench.bodies(task_id, facts.ToolOutcome)
    assert outcome.outcome.status is OutcomeStatus.NOT_RUN
    whole = await bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await bench.entries(task_id) == whole
    assert await bench.effects(task_id) == []
    assert {holder for (holder,) in await at_the_tools(bench, "holder from tools.refusals", task_id)} == {sleeper.name}
