"""Measures whether late steps of a long task write more bytes, and how fast a worker resumes a long ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from bench.data_path import DataPath
from bench.figures import Section, at_most
from bench.held_tasks import HeldTask
from bench.null_steps import NullAgents, null_agents
from bench.options import Options
from tenure.domain.fold import fold
from tenure.runtime.postgres import Pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.ledger import read_entries

TASKS: Final = 4
EARLY: Final = 10
LATE: Final = 1000
WINDOW: Final = 10
RESUMES: Final = 7
LIMITS: Final = task_pb2.Limits(max_tokens=1_000_000_000, max_steps=2 * LATE)
MAX_GROWTH: Final = 1.05
HOW: Final = (
    f"{TASKS} agents without model and tool, each with more than {LATE:,} steps. Bytes: Postgres's write-ahead "
    f"log (WAL) of all services, and the bodies of the ledger's entries, per step, over {WINDOW} steps from step "
    f"{EARLY} and from step {LATE:,}. Resume: Open until the last page is received, and the fold of all entries "
    "into the resume point."
)


async def measure(options: Options) -> list[Section]:
    """Returns bytes per step, and the times to resume."""
    late = options.choose(smoke=2 * EARLY, quick=LATE, full=LATE)
    section = Section("Long tasks", HOW)
    options.tell("growth: starting Postgres, checkpoint and tools")
    async with DataPath(options.folder / "growth", "checkpoint", "tools") as path, null_agents(path) as agents:
        tasks = await agents.maker.held(TASKS, LIMITS)
        await asyncio.gather(*(agents.agent.begin(task) for task in tasks))
        options.tell(f"growth: {len(tasks)} tasks make {late:,} steps")
        first, last = [await _window(agents, tasks, step) for step in (EARLY, late)]
        for what, before, after in zip(("WAL", "entries"), first, last, strict=True):
            section.add(f"{what}, step {EARLY}", before, "B a step")
            section.add(f"{what}, step {late:,}", after, "B a step")
            section.add(f"{what}, step {late:,} against {EARLY}", after / before, "times", bound=at_most(MAX_GROWTH))
        options.tell("growth: resuming a long ledger")
        await _add_resume(section, agents, tasks[0], late)
    return [section]


async def _window(agents: NullAgents, tasks: Sequence[HeldTask], first: int) -> tuple[float, float]:
    """Returns the bytes of the WAL and of the entries, per step, for the `WINDOW` steps from `first` on."""
    await _go_to(agents, tasks, first)
    before = await _wal_bytes(agents.path.pool)
    await _go_to(agents, tasks, first + WINDOW)
    wal = await _wal_bytes(agents.path.pool) - before
    entries = await _entry_bytes(agents.path.pool, first)
    steps = len(tasks) * WINDOW
    return wal / steps, entries / steps


async def _go_to(agents: NullAgents, tasks: Sequence[HeldTask], step: int) -> None:
    """Runs all tasks until this step is their next."""

    async def go(task: HeldTask) -> None:
        while task.step < step:
            await agents.agent.step(task)

    await asyncio.gather(*(go(task) for task in tasks))


async def _wal_bytes(pool: Pool) -> float:
    return await _number(pool, "select (pg_current_wal_insert_lsn() - '0/0')::float8", ())


async def _entry_bytes(pool: Pool, first: int) -> float:
    statement = "select sum(octet_length(body))::float8 from entries where step >= %b and step < %b"
    return await _number(pool, statement, (first, first + WINDOW))


async def _number(pool: Pool, statement: str, parameters: Sequence[int]) -> float:
    async with pool_connection(pool) as connection:
        row = await (await connection.execute(statement, parameters)).fetchone()
    assert row is not None, "an aggregate has a row"
    return float(row[0])


async def _add_resume(section: Section, agents: NullAgents, task: HeldTask, late: int) -> None:
    """Adds the times of Open and of the fold, each under a new claim, as at a takeover."""
    opens, folds, count = [], [], 0
    for _ in range(RESUMES):
        token = await agents.maker.claim(task.task_id)
        began = perf_counter()
        history: list[ledger_pb2.Entry] = []
        await agents.agent.ledger.open(token, history.extend).read()
        received = perf_counter()
        point = fold(read_entries(history))
        opens.append((received - began) * 1000)
        folds.append((perf_counter() - received) * 1000)
        assert point.step >= late, "the whole ledger was folded"
        count = len(history)
    note = f"{count:,} entries"
    section.add_rounds(f"resume at step {late:,}: Open", opens, "ms", note=note)
    section.add_rounds(f"resume at step {late:,}: fold", folds, "ms", note=note)
