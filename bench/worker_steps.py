"""Steps per second of the real thing: gateway, coordinator, workers, model client, and a simulated model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.cpu import CpuMeter
from bench.figures import Section
from bench.options import Options
from services.checkpoint.kinds import KINDS
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.dev.stack import Stack, StackOptions
from tenure.runtime.postgres import PoolOptions, open_pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

AT_ONCE: Final = 32
STEPS: Final = 10
MODEL: Final = f"sim-steps-{STEPS}-list_files-2400b"
WAIT_SECONDS: Final = 120.0
HOW: Final = (
    f"{AT_ONCE} tasks at once through the public API, each {STEPS} steps of a streamed answer of 2,400 bytes and a "
    "call of list_files, then a last answer. The simulator's processor time is not Tenure's, but it shares the cores. "
    "A step lasts from the record of one model call to that of the next."
)
_BETWEEN_CALLS: Final = """
select extract(epoch from recorded_at - lag(recorded_at) over (partition by task_id order by sequence))::float8
  from entries where kind = %b and task_id = any(%b::text[]::uuid[])
"""


@dataclass(frozen=True, slots=True)
class _Wave:
    """What a number of tasks came to. `cpu`: µs a step by process."""

    per_second: float
    latencies: list[float]
    cpu: dict[str, float]


async def measure_worker_steps(options: Options) -> Section:
    """First with one worker, then with two."""
    section = Section("Agent steps with worker, model client and simulator", HOW)
    options.tell("steps: starting the whole stack")
    async with (
        Stack(StackOptions(data_dir=options.folder / "worker-steps", workers=1, slots=AT_ONCE)) as stack,
        Client(stack.gateway_address) as client,
    ):
        await _wave(stack, client, AT_ONCE)
        for workers in (1, 2):
            if workers > len(stack.workers):
                await stack.add_worker().wait_ready()
            options.tell(f"steps with {workers} of the real worker")
            wave = await _wave(stack, client, options.choose(quick=2 * AT_ONCE, full=6 * AT_ONCE))
            told = f"{workers} worker{'s' if workers > 1 else ''}"
            section.add(f"{told}: steps", wave.per_second, "/s")
            section.add_latencies(f"{told}: a step", wave.latencies)
            for name, value in wave.cpu.items():
                section.add(f"{told}: CPU of {name}", value, "µs a step")
    return section


async def _wave(stack: Stack, client: Client, count: int) -> _Wave:
    meter = CpuMeter(_pids(stack), own="client")
    meter.start()
    began = perf_counter()
    room = asyncio.Semaphore(AT_ONCE)

    async def one() -> task_pb2.Task:
        async with room:
            request = api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model=MODEL))
            task = await client.submit("measure", request=request)
            ended = await client.wait(task.task_id, WAIT_SECONDS)
            assert ended.state == task_pb2.TASK_STATE_SUCCEEDED, f"a task ended as {ended.state}: {ended.message}"
            return ended

    ended = await asyncio.gather(*(one() for _ in range(count)))
    seconds, used = perf_counter() - began, meter.used_seconds()
    steps = sum(task.step for task in ended)
    latencies = await _between_calls(stack, [task.task_id for task in ended])
    return _Wave(steps / seconds, latencies, {name: value * 1e6 / steps for name, value in used.items()})


def _pids(stack: Stack) -> dict[str, int]:
    """Every process, the workers as one name each."""
    found = {child.name: child.pid for child in stack.children()}
    if stack.postgres is not None and stack.postgres.pid is not None:
        found["Postgres"] = stack.postgres.pid
    if stack.etcd is not None:
        found["etcd"] = stack.etcd.pid
    return found


async def _between_calls(stack: Stack, task_ids: list[str]) -> list[float]:
    """Seconds from one model attempt to the next of the same task, as the ledger has them."""
    async with (
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
        pool_connection(pool) as connection,
    ):
        cursor = await connection.execute(_BETWEEN_CALLS, (KINDS["model_attempt"], task_ids))
        return [row[0] for row in await cursor.fetchall() if row[0] is not None]
