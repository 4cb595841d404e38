"""Clocks that are wrong, or jump: no decision follows the wall clock, and a jump of the other one costs no safety."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from devstack import StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.stack import Stack
from devstack.stores import ensure_database
from tenure.domain import entries as facts
from tenure.domain.task import Limits
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench
from tests.support.lives import SHORT_LIFE
from tests.support.partition import check_whole, logged
from tests.support.shifted_clocks import KINDS, Clocks

pytestmark = pytest.mark.faults

HOUR = 3600.0
PACED_STEPS = 6
ASKED = """
import asyncio, datetime, json, time
async def loop_time(): return asyncio.get_running_loop().time()
print(json.dumps({
    "time": time.time(), "time_ns": time.time_ns() / 1e9, "realtime": time.clock_gettime(time.CLOCK_REALTIME),
    "now": datetime.datetime.now().timestamp(), "utc": datetime.datetime.now(datetime.UTC).timestamp(),
    "gmtime": __import__("calendar").timegm(time.gmtime()),
    "monotonic": time.monotonic(), "loop": asyncio.run(loop_time()),
    "clock_monotonic": time.clock_gettime(time.CLOCK_MONOTONIC),
    "clock_boottime": time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))}))
"""


@pytest.fixture(scope="module")
def all_clocks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Clocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture
def clocks(all_clocks: Any) -> Iterator[Any]:
    """The wall clocks are right again at the end of a test."""
    yield all_clocks
    all_clocks.right_wall_clocks()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresProcess, all_clocks: Any
) -> AsyncIterator[Any]:
    """Every kind of service with clocks of its own."""
    folder = tmp_path_factory.mktemp("clock-stack")
    await ensure_database(postgres_server.dsn(), "clock_tests")
    options = StackOptions(
        data_dir=folder,
        workers=0,
        postgres_dsn=postgres_server.dsn("clock_tests"),
        environment=all_clocks.environment() | {"*": SHORT_LIFE},
    )
    async with Stack(options) as stack:
        yield stack


def test_a_process_sees_the_clocks_it_is_given(clocks: Any) -> None:
    clocks.shift("tools", wall_seconds=-HOUR, jump_seconds=50.0)
    environment = {**os.environ, **clocks.environment()["tools"]}
    wall_before, monotonic_before = time.time(), time.monotonic()
    said = json.loads(
        subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, check=True).stdout
    )
    wall_after, monotonic_after = time.time(), time.monotonic()
    for name in ("time", "time_ns", "realtime", "now", "utc", "gmtime"):  # the last has whole seconds
        assert wall_before - 1 <= said[name] + HOUR <= wall_after, name
    for name in ("monotonic", "loop", "clock_monotonic", "clock_boottime"):
        assert monotonic_before <= said[name] - 50.0 <= monotonic_after, name


async def decisions(bench: Any, task_id: Any) -> Any:
    """What became of a task, without its times; calls that run at once may end in any order."""
    said: Counter[Any] = Counter()
    for entry in await bench.entries(task_id):
        body = entry.body
        kept = (body.to_state, body.reason) if isinstance(body, facts.Transition) else ()
        said[(entry.step, type(body).__name__, kept)] += 1
    task = await bench.task(task_id)
    return state_name(task.state), task.reason, task.claim_count, said


async def a_day_of_tasks(bench: Any, while_running: Any) -> Any:
    """Effects, a death and a takeover, a timeout that is far and one that is near: what was decided of each."""
    plain, mortal = (replace(bench, queue=f"q-{uuid.uuid4().hex[:12]}") for _ in range(2))
    _, doomed = await asyncio.gather(
        plain.start_worker(), mortal.start_worker(failpoints="worker.after_intent=2#kill9")
    )
    running = [
        await plain.submit("sim-worker-effects"),
        await plain.submit("sim-worker-paced", limits=Limits(timeout_seconds=HOUR / 2)),
        await plain.submit("sim-worker-long-answer", limits=Limits(timeout_seconds=6.0)),
        await mortal.submit("sim-worker-effects"),
    ]
    await mortal.died(doomed)
    while_running()
    await mortal.start_worker()
    for task_id in running:
        await bench.ended(task_id)
    assert len(await bench.effects(running[0])) == len(await bench.effects(running[3])) == 6
    return [await decisions(bench, task_id) for task_id in running]


async def test_decisions_do_not_depend_on_wall_clocks(bench: WorkerBench, clocks: Any) -> None:
    """F41: an hour ahead or behind, in different directions, and jumping by two while tasks run."""

    def shift(sign: Any) -> None:
        for number, kind in enumerate(KINDS):
            clocks.shift(kind, wall_seconds=sign * (-1) ** number * HOUR)

    expected = await a_day_of_tasks(bench, clocks.right_wall_clocks)
    assert [state for state, *_ in expected] == ["SUCCEEDED", "SUCCEEDED", "TIMED_OUT", "SUCCEEDED"]
    assert [claims for _, _, claims, _ in expected] == [1, 1, 1, 2]
    shift(1)
    assert await a_day_of_tasks(bench, lambda: shift(-1)) == expected


async def test_a_worker_past_its_trust_window_starts_no_effect(bench: WorkerBench, clocks: Any, tmp_path: Path) -> None:
    """F42: its clock jumps, as after a pause, between an intent and its call, and no coordinator answers."""
    go_on = tmp_path / "go-on"
    worker = await bench.start_worker(failpoints=f"worker.after_intent=1#wait({go_on})")
    task_id = await bench.submit("sim-worker-paced")
    await bench.reached(task_id, facts.ToolIntent)
    coordinator = bench.stack.services["coordinator"]
    coordinator.freeze()
    try:
        clocks.shift("worker", jump_seconds=30.0)
        go_on.touch()
        await logged(worker, '"detached"')
        await asyncio.sleep(1.0)  # in which it would have begun long since
        assert await bench.effects(task_id) == []
    finally:
        coordinator.wake()
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    await check_whole(bench, task_id, PACED_STEPS)


async def test_monotonic_clocks_that_jump_cost_at_most_a_takeover(bench: WorkerBench, clocks: Any) -> None:
    """F42: every service in turn believes that minutes have passed: renewals, deadlines and patience are all over."""
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-steady")
    for number, kind in enumerate(KINDS):
        await bench.reached(task_id, facts.AssistantMessage, 3 * number + 2)
        clocks.shift(kind, jump_seconds=300.0)
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    await check_whole(bench, task_id)
