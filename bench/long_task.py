"""Measures a takeover of a task with thousands of steps whose conversation is compacted again and again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cpu import AVAILABLE
from bench.figures import Section
from bench.memory import memory_kib
from bench.options import Options
from devstack import ServiceProcess, Stack, StackOptions
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.runtime.postgres import Pool, PoolOptions, open_pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

EARLY: Final = 10
BEYOND: Final = 1_000_000
MODEL: Final = f"sim-steps-{BEYOND}-list_files-2400b-30000w"
STEP_SECONDS: Final = 1.0
RESUME_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.05
HOW: Final = (
    "One task on a development stack with two workers. Each step has a streamed answer of 2,400 bytes and a call of "
    "list_files; the model's context window has 30,000 tokens, so the worker compacts the conversation. At an early "
    "and at a late step its worker is killed. Resume: from the record RUNNING of the next worker to the record of its "
    "first model call, which comes after Open, the fold and the context's estimate. Read: the bodies of all entries, "
    "which Open returns. Memory: of the process of the worker that takes over, and its highest value until then."
)
_STEP: Final = "select step, owner from tasks where task_id = %b::text::uuid"
_HISTORY: Final = """
select count(*)::int, sum(octet_length(body))::float8, (count(*) filter (where kind = %b))::int
  from entries where task_id = %b::text::uuid
"""
_RESUMED: Final = """
with opened as (
  select max(changed_at) as at from changes where task_id = %b::text::uuid and state = 'RUNNING' and sequence > %b
)
select extract(epoch from min(recorded_at) - opened.at)::float8
  from opened join entries on entries.recorded_at > opened.at
 where entries.task_id = %b::text::uuid and entries.sequence > %b and entries.kind = %b
 group by opened.at
"""
_SEQUENCE: Final = "select sequence from tasks where task_id = %b::text::uuid"


@dataclass(slots=True)
class _LongTask:
    """The task, and a pool to read the ledger's tables."""

    stack: Stack
    pool: Pool
    task_id: str

    async def reach(self, step: int) -> ServiceProcess:
        """Waits for the step. Returns the worker that has the task."""
        async with asyncio.timeout(60.0 + step * STEP_SECONDS):
            while True:
                ((at, owner),) = await self._read(_STEP, self.task_id)
                if at >= step and owner in self.stack.services:
                    return self.stack.services[owner]
                await asyncio.sleep(POLL_SECONDS)

    async def take_over(self, step: int, section: Section) -> None:
        """Kills the task's worker at a step, and adds the figures of its takeover by the other one."""
        victim = await self.reach(step)
        other = next(worker for worker in self.stack.workers if worker is not victim)
        before = memory_kib(other.pid) if AVAILABLE else 0
        victim.kill()
        ((sequence,),) = await self._read(_SEQUENCE, self.task_id)
        resumed = await self._resumed(sequence)
        entries, read, compactions = (await self._read(_HISTORY, KINDS["compaction"], self.task_id))[0]
        what = f"resume at step {step:,}"
        section.add(what, resumed * 1000, "ms", note=f"{entries:,} entries, {compactions:,} compactions")
        section.add(f"{what}: read", read / 2**20, "MiB")
        if AVAILABLE:
            section.add(f"{what}: memory of the worker before", before / 1024, "MiB")
            section.add(f"{what}: memory of the worker after", memory_kib(other.pid) / 1024, "MiB")
            section.add(f"{what}: its highest memory", _highest_kib(other.pid) / 1024, "MiB")
        victim.start()
        await victim.wait_ready()

    async def _resumed(self, sequence: int) -> float:
        """Returns the seconds from RUNNING to the first model call after a sequence."""
        parameters = (self.task_id, sequence, self.task_id, sequence, KINDS["model_attempt"])
        async with asyncio.timeout(RESUME_SECONDS):
            while not (rows := await self._read(_RESUMED, *parameters)):  # noqa: ASYNC110  another process commits
                await asyncio.sleep(POLL_SECONDS)
        return float(rows[0][0])

    async def _read(self, statement: str, *parameters: Any) -> list[Any]:
        async with pool_connection(self.pool) as connection:
            return await (await connection.execute(statement, parameters)).fetchall()


async def measure(options: Options) -> list[Section]:
    """Returns the figures of an early and of a late takeover."""
    section = Section("A task of thousands of steps with compaction", HOW)
    late = options.choose(smoke=2 * EARLY, quick=1_000, full=10_000)
    options.tell("long task: starting the stack")
    async with (
        Stack(StackOptions(data_dir=options.folder / "long-task")) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        limits = task_pb2.Limits(max_tokens=10**12, max_steps=BEYOND)
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=MODEL), limits=limits))
        task = _LongTask(stack, pool, (await client.submit("go on", request=request)).task_id)
        for step in (EARLY, late):
            options.tell(f"long task: to step {step:,}")
            await task.take_over(step, section)
    return [section]


def _highest_kib(pid: int) -> int:
    """Returns the highest resident memory of a process so far, in KiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
