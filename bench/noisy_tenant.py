"""Measures the calls of a tenant alone, and beside a tenant that calls as much as it can."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from bench.figures import Section, at_most
from bench.options import Options
from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.runtime.tls import ClientTls
from tenure.serve import command_line
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS

NOISY_CLIENTS: Final = 4
SUBMIT_EVERY_SECONDS: Final = 0.1
CALL_SECONDS: Final = 60.0
HOW: Final = (
    "A development stack on this machine with TLS, API keys and one worker. The neighbour submits a task every 100 ms, "
    f"reads it, and opens a stream of it; the noisy tenant has {NOISY_CLIENTS} clients that submit (also with huge "
    "schemas and long allowlists), watch, and hold streams without reading, and repeat refused calls at once. A sample "
    "is the time of one call of the neighbour."
)


@dataclass(slots=True)
class Neighbour:
    """Calls at a steady rate, whatever the answers take. The lists have the seconds of each call."""

    client: Client
    every_seconds: float = SUBMIT_EVERY_SECONDS
    submits: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)

    async def call(self, seconds: float) -> None:
        """Calls for some seconds, and waits for the last answers. Raises the first refusal."""
        end = monotonic() + seconds
        async with asyncio.TaskGroup() as running:
            while monotonic() < end:
                running.create_task(self._one())
                await asyncio.sleep(self.every_seconds)

    async def _one(self) -> None:
        began = monotonic()
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="be heard", queue="without-workers"))
        task_id = (await self.client.tasks.SubmitTask(request, timeout=CALL_SECONDS)).task.task_id
        submitted = monotonic()
        await self.client.tasks.GetTask(api.GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
        read = monotonic()
        stream = self.client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
        await stream.read()
        self.submits.append(submitted - began)
        self.reads.append(read - submitted)
        self.streams.append(monotonic() - read)
        stream.cancel()


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
        command = ["-m", "bench.noise", self.stack.gateway_address, str(self.ca_file), str(seconds)]
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
                request = pb.CreateApiKeyRequest(name="bench", permissions=permissions)
                created = await client.api_keys.CreateApiKey(request)
                return created.secret

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


async def measure(options: Options) -> list[Section]:
    """Returns the neighbour's latencies alone and beside the noise."""
    section = Section("A tenant beside a noisy one", HOW)
    seconds = options.choose(smoke=1.0, quick=10.0, full=30.0)
    options.tell("noisy tenant: starting the stack")
    async with tenants(options.folder / "noisy") as both, both.neighbour() as client:
        await Neighbour(client).call(1.0)
        options.tell("noisy tenant: the neighbour alone")
        alone = Neighbour(client)
        await alone.call(seconds)
        options.tell("noisy tenant: beside the noise")
        beside = Neighbour(client)
        async with both.noise(seconds + 1.0) as answers:
            await beside.call(seconds)
    for when, neighbour in (("alone", alone), ("beside the noise", beside)):
        bound = at_most(1000) if neighbour is beside else None
        section.add_latencies(f"submit, {when}", neighbour.submits, bound=bound)
        section.add_latencies(f"read, {when}", neighbour.reads, bound=bound)
        section.add_latencies(f"stream to its first message, {when}", neighbour.streams, bound=bound)
    accepted = sum(number for kind, number in answers.items() if kind.endswith(": OK"))
    section.add("calls of the noisy tenant that were accepted", accepted / seconds, "/s")
    section.add("calls of the noisy tenant that were refused", (answers.total() - accepted) / seconds, "/s")
    return [section]
