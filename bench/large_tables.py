"""Measures steps of agents on empty tables, and on tables with the rows of a million ended tasks."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

import psycopg

from bench.bulk_rows import NEW_TASK, multiply
from bench.data_path import DataPath
from bench.figures import Section, at_most
from bench.null_steps import NullAgents, null_agents, run_steps
from bench.options import Options
from bench.samples import percentile
from bench.wall_floor import WallFloor, wall_floor
from services.checkpoint.queries import SCHEMA as LEDGER
from services.tools.statements import SCHEMA as TOOLS
from tenure.v1 import task_pb2

ENTRIES_A_TASK: Final = 10
SEED_STEPS: Final = 3
MAX_SLOWER: Final = 1.15
AMPLE: Final = task_pb2.Limits(max_tokens=10**12, max_steps=10**6)
"""Of the agent that works alone: it makes more steps than a usual task may."""
HOW: Final = (
    "Agents without model and tool: 32 at once, then one alone, through the services' own streams. First on empty "
    f"tables, then with the rows of many ended tasks beside theirs: {ENTRIES_A_TASK} entries, a budget, bills, "
    "changes, a fence and calls for each. The services keep their connections and plans from the empty tables; then "
    "they are restarted and plan on the large ones. Steps of the one agent take turns with wall floors (one_agent). "
    "A comparison is divided by that of the floors, because the machine itself may be slower by then."
)


async def measure(options: Options) -> list[Section]:
    """Returns rates and latencies, and how much slower they are on the large tables."""
    section = Section("Steps on large tables", HOW)
    copies = options.choose(smoke=500, quick=100_000, full=1_000_000)
    options.tell("large tables: starting Postgres, checkpoint and tools")
    async with DataPath(options.folder / "large-tables", "checkpoint", "tools") as path:
        async with null_agents(path) as agents, wall_floor(path) as floor:
            seed = await _ended(agents)
            empty = await _steps(section, "empty tables", agents, floor, options)
            options.tell(f"large tables: writing the rows of {copies:,} tasks")
            section.add("tasks", copies, "")
            section.add(
                "entries", copies * ENTRIES_A_TASK, "", note=f"loaded in {await _load(path.dsn, seed, copies):.0f} s"
            )
            large = await _steps(section, "large tables", agents, floor, options)
        _compare(section, "large tables against empty ones", empty, large)
        for service in path.services.values():
            await service.restart()
        async with null_agents(path) as agents, wall_floor(path) as floor:
            large = await _steps(section, "large tables, new plans", agents, floor, options)
        _compare(section, "large tables with new plans against empty ones", empty, large)
    return [section]


async def _ended(agents: NullAgents) -> str:
    """Returns the id of an ended task, whose rows are copied."""
    (task,) = await agents.maker.held(1)
    await agents.agent.begin(task)
    for number in range(1, SEED_STEPS + 1):
        await agents.agent.step(task, last=number == SEED_STEPS)
    return task.task_id


async def _steps(
    section: Section, what: str, agents: NullAgents, floor: WallFloor, options: Options
) -> dict[str, float]:
    """Adds the figures of steps. Returns the median latencies by kind of load, divided by that of the floor."""
    options.tell(f"large tables: steps, {what}")
    seconds = options.choose(smoke=0.3, quick=4.0, full=10.0)
    await run_steps(agents.agent, await agents.maker.held(options.choose(smoke=4, quick=64, full=64)), seconds / 4)
    tasks = await agents.maker.held(options.choose(smoke=4, quick=400, full=900))
    began = perf_counter()
    many = await run_steps(agents.agent, tasks, seconds)
    section.add(f"{what}: steps", len(many) / (perf_counter() - began), "/s")
    section.add_latencies(f"{what}: a step, 32 at once", many)
    alone, floors = await _alone(agents, floor, seconds)
    section.add_latencies(f"{what}: a step, one agent alone", alone)
    section.add_latencies(f"{what}: the wall floor of a step", floors)
    unit = percentile(floors, 0.5)
    return {"32 at once": percentile(many, 0.5) / unit, "one agent alone": percentile(alone, 0.5) / unit}


async def _alone(agents: NullAgents, floor: WallFloor, seconds: float) -> tuple[list[float], list[float]]:
    """Returns the seconds of steps and of floors, which take turns."""
    (task,) = await agents.maker.held(1, AMPLE)
    await agents.agent.begin(task)
    latencies, floors, ends_at = [await agents.agent.step(task)], [await floor.step()], perf_counter() + seconds / 2
    while perf_counter() < ends_at:
        latencies.append(await agents.agent.step(task))
        floors.append(await floor.step())
    return latencies, floors


def _compare(section: Section, what: str, empty: dict[str, float], large: dict[str, float]) -> None:
    for load, floors in large.items():
        section.add(f"{what}: p50, {load}", floors / empty[load], "times", bound=at_most(MAX_SLOWER))


async def _load(dsn: str, seed: str, copies: int) -> float:
    """Copies the rows of a task, as fast as a restore. Returns the seconds."""
    began, of_seed = perf_counter(), f"task_id = '{seed}'"
    identity = {"task_id": NEW_TASK, "root_task_id": NEW_TASK}
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("set synchronous_commit = off")
        await _use(connection, LEDGER)
        await multiply(connection, "entries", copies, identity, f"{of_seed} and sequence <= {ENTRIES_A_TASK}")
        await multiply(connection, "budgets", copies, identity, f"root_{of_seed}")
        for table in ("token_usage", "changes"):
            await multiply(connection, table, copies, identity, of_seed)
        await multiply(connection, "tasks", copies, {**identity, "request_id": "'bulk' || number"}, of_seed)
        await _use(connection, TOOLS)
        for table in ("fences", "calls"):
            await multiply(connection, table, copies, identity, of_seed)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    return perf_counter() - began


async def _use(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    await connection.execute("select set_config('search_path', %s, false)", [schema])
