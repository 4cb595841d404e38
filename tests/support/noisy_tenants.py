"""A tenant beside one whose clients call a gateway as much as they can. A refused call is repeated at once."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.domain.errors import TenureError
from tenure.runtime.security.tls import ClientTls
from tenure.serve import command_line
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS
from tests.support.fix_stack import OnSharedStores
from tests.support.lives import LONG_LIFE
from tests.support.patience import CALL_SECONDS

NOISY_CLIENTS: Final = 4
QUEUE: Final = "without-workers"
SCHEMA_FIELDS: Final = 300
"""About 15 KB: a schema of more than 16 KiB is refused without a check."""
ALLOWED_TOOLS: Final = 256
PAUSE_SECONDS: Final = 0.02
"""Between two calls of a coroutine: this process shares the processor with the services."""


@dataclass(slots=True)
class Neighbour:
    """Calls at a steady rate, however long the answers take. `rounds`: how many have been answered."""

    client: Client
    every_seconds: float
    rounds: int = 0

    async def call(self, rounds: int) -> None:
        """Begins so many rounds, and waits for the answers. Raises the first refusal."""
        async with asyncio.TaskGroup() as running:
            for _ in range(rounds):
                running.create_task(self._one())
                await asyncio.sleep(self.every_seconds)

    async def _one(self) -> None:
        task_id = (await self.client.tasks.SubmitTask(request(), timeout=CALL_SECONDS)).task.task_id
        await self.client.tasks.GetTask(api.GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
        stream = self.client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
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
        return self._client(self.neighbour_key)

    @asynccontextmanager
    async def noise(self) -> AsyncGenerator[Counter[str]]:
        """Makes noise while the block runs. The counts are those of the answers so far, by kind and code."""
        counts: Counter[str] = Counter()
        async with AsyncExitStack() as opened:
            kinds: list[tuple[str, int, Call]] = []
            for key in self.noisy_keys:  # before any of them makes noise, which would use up what the tenant may call
                client = await opened.enter_async_context(self._client(key))
                watched = await client.submit("noise", request=request())
                kinds += calls(client, watched.task_id)
            running = [
                asyncio.create_task(_repeat(kind, call, counts)) for kind, number, call in kinds for _ in range(number)
            ]
            yield counts
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _client(self, key: str) -> Client:
        return Client(self.stack.gateway_address, api_key=key, tls=ClientTls(self.ca_file))


Call = Callable[[], Awaitable[None]]


def calls(client: Client, watched: str) -> list[tuple[str, int, Call]]:
    """The kinds of calls, without the retries of the client, each with the number of coroutines that repeat it."""
    many_tools = task_pb2.ToolAllowlist(names=[f"tool_{number}" for number in range(ALLOWED_TOOLS)])
    return [
        ("submit", 32, partial(_submit, client, request())),
        ("submit with a long allowlist", 4, partial(_submit, client, request(tools=many_tools))),
        ("submit with a huge schema", 4, partial(_submit_new_schema, client)),
        ("watch", 16, partial(_watch, client, watched, reads=True)),
        ("watch without reading", 50, partial(_watch, client, watched, reads=False)),
    ]


async def _submit(client: Client, submitted: api.SubmitTaskRequest) -> None:
    """Submits one more task; without a request_id no call repeats another."""
    await client.tasks.SubmitTask(submitted, timeout=CALL_SECONDS)


async def _submit_new_schema(client: Client) -> None:
    """Submits a task with a schema that the gateway has to check, because it has not seen it before."""
    await _submit(client, request(schema=huge_schema(uuid.uuid4().hex)))


async def _watch(client: Client, task_id: str, *, reads: bool) -> None:
    """Opens a stream. With `reads` it ends after the first message, otherwise it stays and is not read further."""
    stream: Any = client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id))
    try:
        await stream.read()
        if not reads:
            await stream.code()
    finally:
        stream.cancel()


async def _repeat(kind: str, call: Call, counts: Counter[str]) -> None:
    """Calls until it is cancelled."""
    while True:
        try:
            await call()
            counts[f"{kind}: OK"] += 1
        except TenureError as error:
            counts[f"{kind}: {error.reason}"] += 1
        await asyncio.sleep(PAUSE_SECONDS)


def request(tools: task_pb2.ToolAllowlist | None = None, schema: str = "") -> api.SubmitTaskRequest:
    """Returns a submit of a task that no worker takes."""
    agent = task_pb2.AgentSpec(model="sim-hello", tools=tools)
    spec = task_pb2.TaskSpec(goal="noise", queue=QUEUE, agent=agent, result_schema_json=schema)
    return api.SubmitTaskRequest(spec=spec)


def huge_schema(title: str = "") -> str:
    """Returns a valid schema that takes long to check. Schemas with different titles are checked separately."""
    fields = {f"field_{number}": {"type": "string", "maxLength": 40} for number in range(SCHEMA_FIELDS)}
    return json.dumps({"title": title, "type": "object", "properties": fields})


@asynccontextmanager
async def tenants(
    folder: Path,
    gateway: Mapping[str, str],
    services: Mapping[str, Mapping[str, str]] | None = None,
    on_shared_stores: OnSharedStores | None = None,
) -> AsyncGenerator[Tenants]:
    """Starts the stack, with more settings of the gateway and of other services, and creates the keys.

    Without `on_shared_stores` the stack has stores of its own.
    """
    environment = {
        "*": LONG_LIFE,
        "gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys", **gateway},
        **(services or {}),
    }
    options = StackOptions(data_dir=folder, workers=1, tls=True, environment=environment)
    if on_shared_stores is not None:
        options = await on_shared_stores(options)
    async with Stack(options) as stack:
        ca_file = stack.layout.certificates / "ca.pem"
        operator = await operator_key(stack)

        async def key(tenant: str) -> str:
            async with Client(stack.gateway_address, api_key=operator, tenant=tenant, tls=ClientTls(ca_file)) as client:
                permissions = [PERMISSIONS.to_wire(Permission.WRITE)]
                request = pb.CreateApiKeyRequest(name="noise", permissions=permissions)
                return (await client.api_keys.CreateApiKey(request)).secret

        noisy = [await key("noisy") for _ in range(NOISY_CLIENTS)]
        yield Tenants(stack, ca_file, await key("neighbour"), noisy)


async def operator_key(stack: Stack) -> str:
    """Creates a key of an operator, as on a host of the ledger."""
    process = await asyncio.create_subprocess_exec(
        *command_line("checkpoint", "operator-key"),
        env={**os.environ, **stack.services["checkpoint"].environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the command has printed why"
    return output.decode().strip()
