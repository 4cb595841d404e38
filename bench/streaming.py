"""Measures the processor time of a task while its answer is streamed: of the task itself, and of each piece."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from bench.figures import Section
from bench.options import Options
from bench.process_use import ProcessUse
from bench.scale_ledger import LedgerView
from devstack import Stack, StackOptions
from services.checkpoint.queries import SCHEMA
from tenure.client import Client
from tenure.runtime.postgres import PoolOptions, open_pool
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

SUBMITS_AT_ONCE: Final = 8
ANSWER_SECONDS: Final = 600
PIECE_CHARACTERS: Final = 10
QUIET_SECONDS: Final = 55
STARTING_SECONDS: Final = 60.0
SETTLING_SECONDS: Final = 2.0
HOW: Final = (
    "A development stack with one worker, first without tasks, then with tasks whose model call has begun and sends "
    "nothing, then with as many tasks more whose answers arrive in one piece a second. No client watches. A quiet task "
    "costs its part of the renewals and of the reports on model calls; a piece costs what the HTTP client and the fold "
    "of the answer take, because each piece is a read of its own. 1,000 µs a second is 0.1 % of a core."
)


@dataclass(slots=True)
class _Bench:
    stack: Stack
    client: Client
    view: LedgerView
    seconds: float

    async def start(self, model: str, count: int, running: int) -> None:
        """Submits tasks and waits until so many run in all."""
        limit = asyncio.Semaphore(SUBMITS_AT_ONCE)

        async def submit() -> None:
            async with limit:
                request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model)))
                await self.client.submit("stream", request=request)

        await asyncio.gather(*(submit() for _ in range(count)))
        async with asyncio.timeout(STARTING_SECONDS):
            while await self.view.running() < running:  # noqa: ASYNC110  workers take the tasks
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLING_SECONDS)

    async def used(self) -> dict[str, float]:
        """Returns the processor time by kind of process, in µs a second."""
        use = ProcessUse(self.stack)
        use.start()
        await asyncio.sleep(self.seconds)
        return {kind: value * 1e6 / self.seconds for kind, value in use.seconds().items()}


async def measure(options: Options) -> list[Section]:
    """Returns the processor time of quiet tasks and of pieces, by kind of process."""
    section = Section("What a streaming task costs", HOW)
    count, seconds = options.choose(smoke=4, quick=250, full=500), options.choose(smoke=1.0, quick=8.0, full=12.0)
    folder = options.folder / "streaming-scenarios"
    folder.mkdir()
    files = (_scenario(folder / "quiet.yaml", QUIET_SECONDS), _scenario(folder / "pieces.yaml", 1))
    stack_options = StackOptions(
        data_dir=options.folder / "streaming",
        workers=1,
        slots=2 * count,
        scenario_files=files,
        environment={"gateway": {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "10000"}},
    )
    options.tell("streaming: starting the stack")
    async with (
        Stack(stack_options) as stack,
        Client(stack.gateway_address) as client,
        open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2)) as pool,
    ):
        bench = _Bench(stack, client, LedgerView(pool), seconds)
        idle = await bench.used()
        options.tell(f"streaming: {count:,} quiet tasks")
        await bench.start("sim-quiet", count, count)
        quiet = await bench.used()
        options.tell(f"streaming: {count:,} tasks with a piece a second")
        await bench.start("sim-pieces", count, 2 * count)
        pieces = await bench.used()
    _add(section, count, idle, quiet, pieces)
    return [section]


def _add(
    section: Section, count: int, idle: Mapping[str, float], quiet: Mapping[str, float], pieces: Mapping[str, float]
) -> None:
    section.add("tasks of each kind", count, "")
    for kind in idle:
        of_task = (quiet[kind] - idle[kind]) / count
        section.add(f"CPU of {kind}: a quiet task", of_task, "µs a second")
        section.add(f"CPU of {kind}: a piece", (pieces[kind] - quiet[kind]) / count - of_task, "µs")


def _scenario(path: Path, first_token_seconds: int) -> Path:
    """Writes a model whose first piece comes late, and then one a second."""
    turn = {
        "text": "." * (PIECE_CHARACTERS * (ANSWER_SECONDS - first_token_seconds)),
        "deltas": ANSWER_SECONDS - first_token_seconds,
        "latency_ms": ANSWER_SECONDS * 1000,
        "first_token_ms": first_token_seconds * 1000,
    }
    path.write_text(yaml.safe_dump([turn]))
    return path
