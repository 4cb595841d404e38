"""A tenant beside one whose clients call a gateway as much as they can.

`python -m tests.support.noisy_tenants ADDRESS CA_FILE SECONDS` is the noise. It reads the API keys of the clients from
standard input, one in each line. It prints a line when all clients call, and at the end the counts of answers by kind
and code, as JSON. A refused call is repeated at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.domain.errors import TenureError
from tenure.runtime.tls import ClientTls
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS

NOISY_CLIENTS: Final = 4
SUBMIT_EVERY_SECONDS: Final = 0.1
NEIGHBOUR_SECONDS: Final = 60.0


@dataclass(slots=True)
class Neighbour:
    """Calls at a steady rate, however long the answers take. `rounds`: how many have been answered."""

    client: Client
    every_seconds: float = SUBMIT_EVERY_SECONDS
    rounds: int = 0

    async def call(self, seconds: float) -> None:
        """Calls for some seconds, and waits for the last answers. Raises the first refusal."""
        end = monotonic() + seconds
        async with asyncio.TaskGroup() as running:
            while monotonic() < end:
                running.create_task(self._one())
                await asyncio.sleep(self.every_seconds)

    async def _one(self) -> None:
        request = api.SubmitTaskRequest(goal="be heard", queue="without-workers")
        task_id = (await self.client.tasks.SubmitTask(request, timeout=NEIGHBOUR_SECONDS)).task.task_id
        await self.client.tasks.GetTask(api.GetTaskRequest(task_id=task_id), timeout=NEIGHBOUR_SECONDS)
        stream = self.client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=NEIGHBOUR_SECONDS)
        await stream.read()
        stream.cancel()
        self.rounds += 1


@dataclass(frozen=True, slots=True)
class Tenants:
    """A stack whose gateway demands API keys, with the keys of two tenants."""

    stack: Stack
    ca_file: Path
    neighbour_key: str
    noisy_keys: list[str]

    def neighbour(self) -> Client:
        """Returns a client of the neighbour."""
        return Client(self.stack.gateway_address, api_key=self.neighbour_key, tls=ClientTls(self.ca_file))

    @asynccontextmanager
    async def noise(self, seconds: float) -> AsyncGenerator[Counter[str]]:
        """Makes noise while the block runs, at most for some seconds; at its end the counts of answers are there."""
        command = ["-m", "tests.support.noisy_tenants", self.stack.gateway_address, str(self.ca_file), str(seconds)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        counts: Counter[str] = Counter()
        try:
            process.stdin.write("\n".join(self.noisy_keys).encode())
            process.stdin.close()
            await process.stdout.readline()
            yield counts
            counts.update(json.loads(await process.stdout.read()))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def tenants(folder: Path, gateway: Mapping[str, str] | None = None) -> AsyncGenerator[Tenants]:
    """Starts the stack, with more settings of the gateway, and creates the keys."""
    environment = {"gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys", **(gateway or {})}}
    async with Stack(StackOptions(data_dir=folder, workers=1, tls=True, environment=environment)) as stack:
        ca_file = stack.layout.certificates / "ca.pem"
        operator = await operator_key(stack)

        async def key(tenant: str) -> str:
            async with Client(stack.gateway_address, api_key=operator, tenant=tenant, tls=ClientTls(ca_file)) as client:
                permissions = [PERMISSIONS.to_wire(Permission.WRITE)]
                created = await client.create_api_key(pb.CreateApiKeyRequest(name="bench", permissions=permissions))
                return created.secret

        noisy = [await key("noisy") for _ in range(NOISY_CLIENTS)]
        yield Tenants(stack, ca_file, await key("neighbour"), noisy)


async def operator_key(stack: Stack) -> str:
    """Creates a key of an operator, as on a host of the ledger."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.checkpoint", "operator-key"),
        env={**os.environ, **stack.services["checkpoint"].environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the command has printed why"
    return output.decode().strip()


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
    return api.SubmitTaskRequest(goal="noise", queue=QUEUE, agent=agent, result_schema_json=schema)


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
        sys.stdout.write("calling\n")
        sys.stdout.flush()
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
    sys.stdout.write(json.dumps(asyncio.run(make_noise(address, Path(ca_file), float(seconds), keys))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
