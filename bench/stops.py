"""Measures an operator's stop under load: the time to its answer, and what the stopped tenant still begins after it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.report import Section, at_most
from bench.run import Options
from devstack import Stack, StackOptions
from services.tools.statements import SCHEMA
from tenure.client import Client
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool, pool_connection
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

TENANTS: Final = 8
TASKS_OF_EACH: Final = 4
MODEL: Final = "sim-steps-100000-append_record-100ms"
PATIENCE_SECONDS: Final = 60.0
OBSERVED_SECONDS: Final = 0.5
"""What could still begin after the answer of a stop begins within this time."""
POLL_SECONDS: Final = 0.05
_NEWEST_START: Final = (
    b"select coalesce(extract(epoch from max(c.started_at)), 0)::float8"
    b" from fences f join calls c using (task_id) where f.tenant = %(tenant)b"
)
HOW: Final = (
    f"A development stack on this machine with two workers and {TENANTS * TASKS_OF_EACH} tasks of {TENANTS} tenants, "
    "each of which calls a KEYED tool after each answer of 100 ms. One tenant after another is stopped and resumed; "
    "before each stop its calls flow again. Answer: from the request to the response of BeginStop. Last begun call: "
    "from that response to the newest mark STARTED of the tenant's calls. Last effect: from that response to the "
    "newest write to the tenant's file. Negative: before the response."
)


@dataclass(slots=True)
class _Samples:
    """In seconds, one of each for each stop. `unconfirmed`: the stops that a service did not confirm."""

    answers: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    effects: list[float] = field(default_factory=list)
    unconfirmed: int = 0


class _Stops:
    """Stops and resumes one tenant at a time."""

    def __init__(self, client: Client, pool: Pool, records: Path) -> None:
        self._client, self._pool, self._records = client, pool, records
        self.samples = _Samples()

    async def stop_once(self, tenant: str) -> None:
        """Stops the tenant while its calls flow, looks what still began, and resumes it."""
        await self._flowing(tenant, time.time())
        asked_at = time.monotonic()
        request = admin.BeginStopRequest(tenant=tenant, reason="measured")
        begun = await self._client.admin.BeginStop(request, timeout=PATIENCE_SECONDS)
        answered_at = time.time()
        self.samples.answers.append(time.monotonic() - asked_at)
        self.samples.unconfirmed += bool(begun.unconfirmed)
        await asyncio.sleep(OBSERVED_SECONDS)
        self.samples.begun.append(await self._newest_start(tenant) - answered_at)
        self.samples.effects.append((self._records / tenant / "steps.jsonl").stat().st_mtime - answered_at)
        ending = admin.EndStopRequest(tenant=tenant, reason="measured")
        await self._client.admin.EndStop(ending, timeout=PATIENCE_SECONDS)

    async def _flowing(self, tenant: str, since: float) -> None:
        """Returns when the tenant has begun a call since then."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._newest_start(tenant) < since:  # noqa: ASYNC110  another process begins the calls
                await asyncio.sleep(POLL_SECONDS)

    async def _newest_start(self, tenant: str) -> float:
        async with pool_connection(self._pool) as postgres:
            row = await (await postgres.execute(_NEWEST_START, {"tenant": tenant})).fetchone()
        assert row is not None, "an aggregate has a row"
        started_at: float = row[0]
        return started_at


async def measure(options: Options) -> list[Section]:
    """Returns the times of stops."""
    section = Section("Stops of a tenant under load", HOW)
    options.tell("stops: starting the stack")
    async with AsyncExitStack() as opened:
        stack = await opened.enter_async_context(Stack(StackOptions(data_dir=options.folder / "stops")))
        tenants = [f"tenant-{number}" for number in range(1, TENANTS + 1)]
        client, *_ = [await _loaded(stack, tenant, opened) for tenant in tenants]
        pool = await opened.enter_async_context(
            open_pool(stack.postgres_dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2))
        )
        stops = _Stops(client, pool, stack.layout.records)
        for number in range(options.choose(smoke=2, quick=20, full=100)):
            options.tell(f"stops: {number}")
            await stops.stop_once(tenants[number % TENANTS])
    samples = stops.samples
    section.add_latencies("answer to the stop", samples.answers, bound=at_most(1000))
    section.add_latencies("last begun call after the answer", samples.begun, bound=at_most(0))
    section.add_latencies("last effect after the answer", samples.effects, bound=at_most(1000))
    section.add("stops that a service did not confirm", samples.unconfirmed, "stops", bound=at_most(0))
    return [section]


async def _loaded(stack: Stack, tenant: str, opened: AsyncExitStack) -> Client:
    """Submits the tasks of a tenant. Returns its client."""
    client = await opened.enter_async_context(Client(stack.gateway_address, tenant=tenant))
    for _ in range(TASKS_OF_EACH):
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=MODEL)))
        await client.submit("measure", request=request)
    return client
