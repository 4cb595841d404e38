"""`python -m bench.noise ADDRESS CA_FILE SECONDS`: a tenant whose clients call a gateway as much as they can.

Reads the API keys of the clients from standard input, one in each line. Prints a line when all clients call, and at the
end the counts of answers by kind and code, as JSON. A refused call is repeated at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tenure.client import Client
from tenure.domain.errors import TenureError
from tenure.runtime.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

QUEUE: Final = "without-workers"
SUBMITS: Final = 32
LARGE_SUBMITS: Final = 4
WATCHES: Final = 16
SLOW_READERS: Final = 200
SCHEMA_FIELDS: Final = 300
"""About 15 KB: a schema of more than 16 KiB is refused without a check."""
ALLOWED_TOOLS: Final = 256
CALL_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.02
"""Between two calls of a coroutine: this process shares the processor with the measured services."""
NICE: Final = 5
"""Elsewhere these clients run on other machines."""


@dataclass(frozen=True, slots=True)
class NoisyClient:
    """Calls without the retries of the Python client, and counts the answers."""

    client: Client
    counts: Counter[str]

    def calls(self, watched: str) -> list[tuple[str, int, Callable[[], Awaitable[None]]]]:
        """Returns the kinds of calls, each with the number of coroutines that repeat it."""
        many_tools = task_pb2.ToolAllowlist(names=[f"tool_{number}" for number in range(ALLOWED_TOOLS)])
        return [
            ("submit", SUBMITS, partial(self.submit, request())),
            ("submit with a long allowlist", LARGE_SUBMITS, partial(self.submit, request(tools=many_tools))),
            ("submit with a huge schema", LARGE_SUBMITS, self.submit_new_schema),
            ("watch", WATCHES, partial(self.watch, watched, reads=True)),
            ("watch without reading", SLOW_READERS, partial(self.watch, watched, reads=False)),
        ]

    async def submit(self, submitted: api.SubmitTaskRequest) -> None:
        """Submits one more task; without a request_id no call repeats another."""
        await self.client.tasks.SubmitTask(submitted, timeout=CALL_SECONDS)

    async def submit_new_schema(self) -> None:
        """Submits a task with a schema that the gateway has to check, because it has not seen it before."""
        await self.submit(request(schema=huge_schema(uuid.uuid4().hex)))

    async def watch(self, task_id: str, *, reads: bool) -> None:
        """Opens a stream. With `reads` it ends after the first message, otherwise it stays and is not read further."""
        stream: Any = self.client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id))
        try:
            await stream.read()
            if not reads:
                await stream.code()
        finally:
            stream.cancel()

    async def repeat(self, kind: str, call: Callable[[], Awaitable[None]]) -> None:
        """Calls until it is cancelled."""
        while True:
            try:
                await call()
                self.counts[f"{kind}: OK"] += 1
            except TenureError as error:
                self.counts[f"{kind}: {error.reason}"] += 1
            await asyncio.sleep(PAUSE_SECONDS)


def request(tools: task_pb2.ToolAllowlist | None = None, schema: str = "") -> api.SubmitTaskRequest:
    """Returns a submit of a task that no worker takes."""
    agent = task_pb2.AgentSpec(model="sim-hello", tools=tools)
    return api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(goal="noise", queue=QUEUE, agent=agent, result_schema_json=schema)
    )


def huge_schema(title: str = "") -> str:
    """Returns a valid schema that takes long to check. Schemas with different titles are checked separately."""
    fields = {f"field_{number}": {"type": "string", "maxLength": 40} for number in range(SCHEMA_FIELDS)}
    return json.dumps({"title": title, "type": "object", "properties": fields})


async def make_noise(address: str, ca_file: Path, seconds: float, keys: list[str]) -> Counter[str]:
    """Calls for some seconds, and returns the counts of answers."""
    counts: Counter[str] = Counter()
    async with AsyncExitStack() as opened:
        clients: list[tuple[NoisyClient, str]] = []
        for key in keys:  # before any of them makes noise, which would use up what the tenant may call
            client = await opened.enter_async_context(Client(address, api_key=key, tls=ClientTls(ca_file)))
            watched = await client.submit("noise", request=request())
            clients.append((NoisyClient(client, counts), watched.task_id))
        running = [
            asyncio.create_task(noisy.repeat(kind, call))
            for noisy, watched in clients
            for kind, number, call in noisy.calls(watched)
            for _ in range(number)
        ]
        print("calling", flush=True)
        await asyncio.sleep(seconds)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return counts


def main() -> int:
    """Prints the counts and returns 0."""
    os.nice(NICE)
    address, ca_file, seconds = sys.argv[1:]
    keys = sys.stdin.read().split()
    print(json.dumps(asyncio.run(make_noise(address, Path(ca_file), float(seconds), keys))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
