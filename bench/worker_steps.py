"""Measures steps of agents on a whole stack: gateway, coordinator, workers, model client and model simulator.

Beside them runs the library of the model provider in a loop: nothing is recorded and no tool runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

import anthropic

from bench.processes import CpuMeter
from bench.report import Section
from bench.run import Options
from devstack import Stack, StackOptions
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.domain.tools import ToolDefinition
from tenure.model_providers.http import open_http_client
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool, pool_connection
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.tool import tool_to_domain

GOAL: Final = "measure"
MAX_TOKENS: Final = 8192
NO_FILES: Final = "(no files)"


@dataclass(frozen=True, slots=True)
class BareAgents:
    """Conversations with the model at `url`. `at_once`: how many at a time."""

    url: str
    model: str
    tools: Sequence[ToolDefinition]
    at_once: int

    async def steps_per_second(self, seconds: float) -> float:
        """Begins conversations for this many seconds, and ends them all. Returns the model calls per second."""
        offered = [
            {"name": tool.name, "description": tool.description, "input_schema": json.loads(tool.input_schema_json)}
            for tool in self.tools
        ]
        began = perf_counter()

        async def one_after_another(client: anthropic.AsyncAnthropic) -> int:
            steps = 0
            while not steps or perf_counter() - began < seconds:
                steps += await self._run_agent(client, offered)
            return steps

        async with open_http_client() as http_client:
            client = anthropic.AsyncAnthropic(api_key="none", base_url=self.url, max_retries=0, http_client=http_client)
            counts = await asyncio.gather(*(one_after_another(client) for _ in range(self.at_once)))
        return sum(counts) / (perf_counter() - began)

    async def _run_agent(self, client: anthropic.AsyncAnthropic, offered: list[dict[str, Any]]) -> int:
        """Runs one conversation to its final answer. Returns how many calls it took."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": GOAL}]
        calls = 0
        while True:
            content = await self._call(client, offered, messages)
            calls += 1
            messages.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": NO_FILES}
                for block in content
                if block["type"] == "tool_use"
            ]
            if not results:
                return calls
            messages.append({"role": "user", "content": results})

    async def _call(
        self, client: anthropic.AsyncAnthropic, offered: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the blocks of one streamed answer."""
        blocks: list[dict[str, Any]] = []
        pieces: list[list[str]] = []
        stream = await client.messages.create(
            model=self.model,
            max_tokens=MAX_TOKENS,
            messages=cast("Any", messages),
            tools=cast("Any", offered),
            stream=True,
        )
        async with stream:
            async for event in stream:
                if event.type == "content_block_start":
                    blocks.append(event.content_block.model_dump(include={"type", "id", "name"}))
                    pieces.append([])
                elif event.type == "content_block_delta":
                    delta = event.delta
                    pieces[event.index].append(
                        delta.text if delta.type == "text_delta" else getattr(delta, "partial_json", "")
                    )
        for block, parts in zip(blocks, pieces, strict=True):
            text = "".join(parts)
            block.update({"text": text} if block["type"] == "text" else {"input": json.loads(text or "{}")})
        return blocks


AT_ONCE: Final = 32
STEPS: Final = 10
MODEL: Final = f"sim-steps-{STEPS}-list_files-2400b"
WAIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.02
HOW: Final = (
    f"{AT_ONCE} tasks at once, submitted through the public API. Each has {STEPS} steps with a streamed answer "
    "of 2,400 bytes and a call of list_files, then a final answer. The bench reads the ends in the ledger's "
    "table; with 'each task waited for' a client waits for each task through WaitTask. The simulator's "
    "processor time is not Tenure's, but it shares the cores. A step lasts from the record of one model call to "
    "that of the next. The library alone: as many conversations at once with the same model, tools and answers in "
    "this process, whose steps are not recorded and whose calls are not run; both take turns."
)
SUCCEEDED: Final = "SUCCEEDED"
_ENDED: Final = "select count(*)::int from tasks where ended_at is not null and task_id = any(%b::text[]::uuid[])"
_STEPS: Final = "select sum(step)::float8 from tasks where state = %b and task_id = any(%b::text[]::uuid[])"
_BETWEEN_CALLS: Final = """
select seconds::float8
  from (select extract(epoch from recorded_at - lag(recorded_at) over (partition by task_id order by sequence))
          from entries where kind = %b and task_id = any(%b::text[]::uuid[])) as s(seconds)
 where seconds is not null
"""


@dataclass(frozen=True, slots=True)
class _Wave:
    """The result of many tasks. `latencies` are in seconds, `cpu` is µs for a step by process."""

    per_second: float
    latencies: list[float]
    cpu: dict[str, float]


@dataclass(slots=True)
class _Bench:
    """The stack, a client, and a connection pool to read the ledger's tables. `queue` "": the default one."""

    stack: Stack
    client: Client
    pool: Pool
    queue: str = ""

    async def wave(self, seconds: float, *, watched: bool) -> _Wave:
        """Submits tasks for this many seconds, `AT_ONCE` at a time, and waits until all have ended."""
        meter = CpuMeter(_pids(self.stack), own="client")
        meter.start()
        began = perf_counter()
        submit_until = began + seconds
        task_ids = await (self._watched(submit_until) if watched else self._unwatched(submit_until))
        took, used = perf_counter() - began, meter.used_seconds()
        (steps,) = (await self._read(_STEPS, SUCCEEDED, task_ids))[0]
        latencies = [row[0] for row in await self._read(_BETWEEN_CALLS, KINDS["model_attempt"], task_ids)]
        return _Wave(steps / took, latencies, {name: value * 1e6 / steps for name, value in used.items()})

    async def _submit(self) -> str:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=MODEL), queue=self.queue))
        return (await self.client.submit("measure", request=request)).task_id

    async def _unwatched(self, submit_until: float) -> list[str]:
        """Submits a task for each that has ended. The ends are read from the table, not through the API."""
        task_ids: list[str] = []
        ended = 0
        async with asyncio.timeout(WAIT_SECONDS):
            while not task_ids or ended < len(task_ids):
                free = ended + AT_ONCE - len(task_ids) if perf_counter() < submit_until else 0
                task_ids += await asyncio.gather(*(self._submit() for _ in range(free)))
                await asyncio.sleep(POLL_SECONDS)
                ((ended,),) = await self._read(_ENDED, task_ids)
        return task_ids

    async def _watched(self, submit_until: float) -> list[str]:
        """Submits tasks, and waits for the end of each through the API."""
        task_ids: list[str] = []

        async def one_after_another() -> None:
            while perf_counter() < submit_until:
                task_id = await self._submit()
                task_ids.append(task_id)
                await self.client.wait(task_id, WAIT_SECONDS)

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
        return task_ids

    async def _read(self, statement: str, *parameters: Any) -> list[Any]:
        async with pool_connection(self.pool) as connection:
            return await (await connection.execute(statement, parameters)).fetchall()


async def measure_worker_steps(options: Options) -> Section:
    """Returns the figures with one worker, with a waiting client for each task, and with two workers."""
    section = Section("Agent steps with worker, model client and simulator", HOW)
    options.tell("steps: starting the stack")
    folder, seconds = options.folder / "worker-steps", options.choose(smoke=0.1, quick=2.0, full=10.0)
    async with (
        Stack(StackOptions(data_dir=folder, workers=1, slots=AT_ONCE)) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        bench = _Bench(stack, client, pool)
        await bench.wave(0.1, watched=False)
        for workers, watched in ((1, False), (1, True), (2, False)):
            if workers > len(stack.workers):
                await stack.add_worker().wait_ready()
            description = f"{workers} worker{'s' if workers > 1 else ''}{', each task waited for' if watched else ''}"
            options.tell(f"steps: {description}")
            if (workers, watched) == (1, False):
                await _beside_bare(section, bench, description, options)
            else:
                _add(section, description, [await bench.wave(seconds, watched=watched)])
    return section


async def _beside_bare(section: Section, bench: _Bench, description: str, options: Options) -> None:
    """Adds the waves of one worker, and their share of what the library alone reaches in turn with them."""
    tools = [tool.definition for tool in (await bench.client.tools()).tools]
    agents = BareAgents(bench.stack.model_url, MODEL, tuple(map(tool_to_domain, tools)), AT_ONCE)
    waves, bare = [], []
    for _ in range(options.choose(smoke=1, quick=3, full=3)):
        bare.append(await agents.steps_per_second(options.choose(smoke=0.1, quick=2.0, full=5.0)))
        waves.append(await bench.wave(options.choose(smoke=0.1, quick=2.0, full=5.0), watched=False))
    section.add_rounds("the library alone: steps", bare, "/s")
    _add(section, description, waves)
    shares = [100 * wave.per_second / base for wave, base in zip(waves, bare, strict=True)]
    section.add_rounds(f"{description}: share of the library alone", shares, "%", is_compared=True)


def _add(section: Section, description: str, waves: list[_Wave]) -> None:
    section.add_rounds(f"{description}: steps", [wave.per_second for wave in waves], "/s")
    section.add_latencies(f"{description}: a step", [value for wave in waves for value in wave.latencies])
    for name in waves[0].cpu:
        section.add_rounds(f"{description}: CPU of {name}", [wave.cpu[name] for wave in waves], "µs a step")


def _pids(stack: Stack) -> dict[str, int]:
    """Returns the process id of every process of the stack, by name."""
    pids = {child.name: child.pid for child in stack.children()}
    if stack.postgres is not None and stack.postgres.pid is not None:
        pids["Postgres"] = stack.postgres.pid
    if stack.etcd is not None:
        pids["etcd"] = stack.etcd.pid
    return pids
