"""Measures a rolling restart of everything, with two and with three replicas, under a steady load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.figures import Section, at_most
from bench.open_load import OpenLoad, ShortTask, ends_of
from bench.options import Options
from bench.scale_ledger import LedgerView, Start, is_takeover, takeovers
from bench.verdict import judge_run
from devstack import Stack, StackOptions
from devstack.options import REPLICATED
from devstack.rolling import RestartedProcess, rolling_restart
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.domain.states import Reason
from tenure.runtime.postgres import PoolOptions, open_pool

PATIENCE_SECONDS: Final = 180.0
TASK: Final = ShortTask(turns=5, model_seconds=0.8, tool_seconds=0.2)
HOW: Final = (
    "A development stack on this machine with so many replicas of the gateway, the coordinator, the checkpoint service "
    "and the tool service, and as many workers. Tasks of five turns (a model call of 0.8 s and an effect after 0.2 s) "
    "are submitted at a steady rate: first without faults, then while every process is restarted in turn (SIGTERM, "
    "start, wait until it serves), then while workers are killed (SIGKILL) one by one. Times are those of the "
    "ledger's records of state changes. Pickup: QUEUED to RUNNING after a submit. Hand-over: a drained worker gave the "
    "task back to RUNNING on another. Takeover: SIGKILL to RUNNING on another."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run. `calm_seconds`: under load without faults. `kills`: of workers, after the restarts."""

    replicas: tuple[int, ...]
    per_second: float
    calm_seconds: float
    rounds: int
    kills: int


def plan_of(options: Options) -> Plan:
    """Returns the plan for the size of the run."""
    return options.choose(
        smoke=Plan((2,), 2.0, 1.0, 1, 1),
        quick=Plan((2, 3), 2.0, 15.0, 1, 3),
        full=Plan((2, 3), 3.0, 60.0, 3, 10),
    )


@dataclass(slots=True)
class Times:
    """The starts of the phases, in seconds since 1970, and the faults of each."""

    loaded_at: float = 0.0
    restarts_at: float = 0.0
    restarts_end: float = 0.0
    restarted: list[RestartedProcess] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)


async def measure(options: Options) -> list[Section]:
    """Returns a section for each number of replicas."""
    plan = plan_of(options)
    return [await _measure(plan, replicas, options) for replicas in plan.replicas]


async def _measure(plan: Plan, replicas: int, options: Options) -> Section:
    section = Section(f"A rolling restart with {replicas} replicas of everything", HOW)
    options.tell(f"rolling: starting the stack with {replicas} replicas")
    async with _stack(replicas, options) as (stack, client, view):
        load = OpenLoad(client, plan.per_second)
        times = await _carry_out(plan, stack, load, options)
        options.tell("rolling: waiting for the last tasks")
        states = await ends_of(view, load.task_ids, PATIENCE_SECONDS)
        verdict = await judge_run(stack, client, view, load.task_ids, states)
        verdict.add_to(section)
        section.add("requests of the client failed", load.failed.total(), "", bound=at_most(0))
        _add_times(section, times, load, await view.starts(times.loaded_at))
    return section


@asynccontextmanager
async def _stack(replicas: int, options: Options) -> AsyncIterator[tuple[Stack, Client, LedgerView]]:
    folder = options.folder / f"rolling-{replicas}"
    stack_options = StackOptions(
        data_dir=folder / "data",
        workers=replicas,
        replicas=dict.fromkeys(REPLICATED, replicas),
        scenario_files=(TASK.scenario_file(folder / "scenarios"),),
    )
    async with (
        Stack(stack_options) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        yield stack, client, LedgerView(pool)


async def _carry_out(plan: Plan, stack: Stack, load: OpenLoad, options: Options) -> Times:
    """Runs the three phases under the load."""
    times = Times(loaded_at=time.time())
    loading = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(plan.calm_seconds)
        times.restarts_at = time.time()
        for number in range(plan.rounds):
            options.tell(f"rolling: round {number + 1} of restarts")
            times.restarted += [one async for one in rolling_restart(stack)]
        times.restarts_end = time.time()
        for number in range(plan.kills):
            victim = stack.workers[number % len(stack.workers)]
            options.tell(f"rolling: kill -9 of {victim.name}")
            times.kills.append(time.time())
            victim.kill()
            await victim.restart()
    finally:
        if loading.done():
            loading.result()
        loading.cancel()
        await asyncio.wait([loading])
    return times


def _add_times(section: Section, times: Times, load: OpenLoad, starts: list[Start]) -> None:
    drains, comings = zip(*((one.drain_seconds, one.start_seconds) for one in times.restarted), strict=True)
    section.add_latencies("SIGTERM to the end of a process", drains)
    section.add_latencies("start of a process until it serves", comings)
    calm = (times.loaded_at, times.restarts_at)
    restarts = (times.restarts_at, times.restarts_end)
    for what, (since, until) in (("without faults", calm), ("during the restarts", restarts)):
        submits = [seconds for at, seconds in load.submits if since <= at < until]
        pickups = [one.seconds for one in starts if one.reason == Reason.SUBMITTED and since <= one.queued_at < until]
        if submits:
            section.add_latencies(f"answer to a submit, {what}", submits)
        if pickups:
            section.add_latencies(f"pickup, {what}", pickups)
    handed_over = [one.seconds for one in starts if one.reason == Reason.WORKER_DRAINED]
    if handed_over:
        section.add_latencies("hand-over of a drained worker", handed_over)
    taken_over = takeovers(starts, times.kills).from_kill
    if taken_over:
        section.add_latencies("takeover from the kill", taken_over)
    lost = sum(is_takeover(one) and times.restarts_at <= one.queued_at < times.restarts_end for one in starts)
    section.add("claims lost during the restarts", lost, "", note="a drained worker gives its claims back")
