"""Measures steps of agents without a model and a tool, over the worker's own streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from bench.bare_steps import BareSteps
from bench.cpu import CpuMeter
from bench.data_path import PROCESSES, DataPath
from bench.figures import Section
from bench.held_tasks import HeldTask, TaskMaker
from bench.null_agent import ANSWER_BYTES, NullAgent
from bench.options import ROUNDS, Options
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import ToolsClient
from tenure.domain.access import Role
from tenure.domain.fencing import Audience
from tenure.runtime.process import Duties
from tenure.runtime.signing import Verifier
from tenure.wire.token import TokenChecker

AGENTS: Final = 32
STEPS: Final = 10
MAX_SECONDS: Final = 8.0
HOW: Final = (
    f"{AGENTS} agents at once, each a task of {STEPS} steps, driven by this process over the worker's commit and "
    f"tool streams. A step: one commit with an answer of {ANSWER_BYTES} bytes, its usage and an intent; one "
    "recorded call of a tool that does nothing; one commit with the outcome and the reservation of the next "
    f"model call. Bare: the same statements with the same values, those of {AGENTS} tasks in a transaction, one "
    f"after another, no service. {ROUNDS} rounds in which the two take turns; figures are medians."
)


@dataclass(frozen=True, slots=True)
class NullAgents:
    """The data path with the tool service, and the agent that runs on it."""

    path: DataPath
    maker: TaskMaker
    agent: NullAgent


@asynccontextmanager
async def null_agents(path: DataPath) -> AsyncIterator[NullAgents]:
    """Yields an agent with streams to the services of a running data path."""
    async with (
        path.channel("checkpoint") as ledger_channel,
        path.channel("tools") as tools_channel,
        task_maker(path) as maker,
        Duties() as duties,
    ):
        ledger, tools = LedgerClient(ledger_channel), ToolsClient(tools_channel)
        duties.start("commit stream", ledger.run)
        duties.start("tool stream", tools.run)
        yield NullAgents(path, maker, NullAgent(ledger, tools))


@asynccontextmanager
async def task_maker(path: DataPath) -> AsyncIterator[TaskMaker]:
    """Yields a maker of tasks. With TLS, their tokens name the worker of the certificate."""
    async with (
        path.channel("checkpoint") as worker,
        path.channel("checkpoint", Role.GATEWAY) as gateway,
        path.channel("checkpoint", Role.COORDINATOR) as coordinator,
    ):
        claims = {"holder": PROCESSES[Role.WORKER]} if path.tls else {}
        yield TaskMaker(worker, path.signer, gateway=gateway, coordinator=coordinator, **claims)


async def measure_null_steps(options: Options) -> Section:
    """Returns rate, latencies and processor time of steps."""
    section = Section("Agent steps, no model, no tool", HOW)
    options.tell("steps: starting Postgres, checkpoint and tools")
    most_seconds = options.choose(smoke=0.5, quick=MAX_SECONDS, full=MAX_SECONDS)
    async with DataPath(options.folder / "null-steps", "checkpoint", "tools") as path, null_agents(path) as agents:
        await run_steps(agents.agent, await agents.maker.held(AGENTS), most_seconds)
        rates, bare, latencies, used = [], [], [], []
        for number in range(1, options.rounds + 1):
            options.tell(f"steps without a model: round {number} of {options.rounds}")
            bare.append(await _bare(path, agents.maker, options.choose(smoke=1, quick=3, full=8)))
            tasks = await agents.maker.held(options.choose(smoke=1, quick=3, full=8) * AGENTS)
            meter = CpuMeter(path.pids(), own="driver")
            meter.start()
            began = perf_counter()
            seconds = await run_steps(agents.agent, tasks, most_seconds)
            rates.append(len(seconds) / (perf_counter() - began))
            used.append({name: value * 1e6 / len(seconds) for name, value in meter.used_seconds().items()})
            latencies += seconds
    section.add_rounds("bare Postgres", bare, "/s")
    section.add_rounds("steps", rates, "/s")
    shares = [100 * rate / base for rate, base in zip(rates, bare, strict=True)]
    section.add_rounds("steps: share of bare", shares, "%", is_compared=True)
    section.add_latencies("a step", latencies)
    for name in used[0]:
        section.add_rounds(f"CPU of {name}", [cpu[name] for cpu in used], "µs a step")
    return section


async def _bare(path: DataPath, maker: TaskMaker, batches: int) -> float:
    """Returns the steps per second of the statements alone, over some batches of new tasks."""
    tokens = TokenChecker(Verifier(path.layout.verifying_keys), Audience.CHECKPOINT)
    async with aclosing(BareSteps(path.dsn, tokens)) as steps:
        return median([await steps.steps_per_second(await maker.held(AGENTS), STEPS) for _ in range(batches)])


async def run_steps(agent: NullAgent, tasks: list[HeldTask], most_seconds: float) -> list[float]:
    """Runs the tasks, `AGENTS` at once, until all end or the time is over. Returns the seconds of each step."""
    waiting, latencies, ends_at = deque(tasks), [], perf_counter() + most_seconds

    async def work() -> None:
        while waiting:
            task = waiting.popleft()
            await agent.begin(task)
            for number in range(1, STEPS + 1):
                if perf_counter() > ends_at:
                    return
                latencies.append(await agent.step(task, last=number == STEPS))

    await asyncio.gather(*(work() for _ in range(AGENTS)))
    return latencies
