"""Model runners as processes over one database, to be killed, frozen and asked over sockets.

runner = await model_runner()                        # another call starts another replica over the same database
call = runner.generate(grants.claim(), 1)            # read its parts while it runs
# The fixture `runner` is one that the tests of a module share; each test has a tenant of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devstack.child_process import freeze
from services.models.statements import MIGRATIONS
from tenure.runtime.rpc.client import open_channel
from tenure.serve import command_line
from tenure.v1 import model_service_pb2 as pb
from tenure.v1.model_service_pb2_grpc import ModelServiceStub
from tenure.wire.model_service import MAX_MESSAGE_BYTES
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import TENANT, Grants, Owner, SharedService
from tests.support.patience import CALL_SECONDS, LONG_LIFE_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.service_process import ServiceProcess, serving

SHORT_LIFE = {"runner_ttl_seconds": SHORT_LIFE_SECONDS}
"""Of all replicas of a test that waits until one of them is known to be dead: each looks three times in its own TTL."""
MODEL = "sim-hello"
HELLO = json.dumps({"role": "user", "content": "Say hello."})


def generate_request(owner: Owner, step: int = 1, attempt_number: int = 1, **prompt: Any) -> pb.GenerateRequest:
    """A call of a step. `prompt`: fields of the prompt that differ."""
    given = {"model": MODEL, "messages_json": [HELLO], **prompt}
    return pb.GenerateRequest(
        token=owner.token,
        step=step,
        attempt_number=attempt_number,
        prompt=pb.Prompt(**given),
        max_output_tokens=1000,
    )


@dataclass
class ReadCall:
    """One Generate, read in the background. `parts`: what has arrived, in so many messages."""

    parts: list[pb.GenerateResponse] = field(default_factory=list)
    messages: int = 0
    is_over: bool = False
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    reading: asyncio.Task[None] = field(init=False)

    async def read(self, parts: AsyncIterable[pb.GenerateResponse]) -> None:
        """Keeps the parts as they arrive."""
        try:
            async for message in parts:
                self.parts += message.bundle.parts if message.HasField("bundle") else (message,)
                self.messages += 1
                await self._tell()
        finally:
            self.is_over = True
            await self._tell()

    async def _tell(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def has(self, matches: Callable[[ReadCall], bool]) -> ReadCall:
        """Returns as soon as the parts match. Raises the error of the call if it ends before."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.arrived:
            while not matches(self):
                if self.is_over:
                    await self.reading
                    raise AssertionError(f"the call ended with {self.parts}")
                await self.arrived.wait()
        return self

    async def begun(self) -> ReadCall:
        """Returns with the first part."""
        return await self.has(lambda call: bool(call.parts))

    async def speaking(self) -> ReadCall:
        """Returns with the first text."""
        return await self.has(lambda call: bool(call.text))

    async def ended(self) -> pb.GenerateResponse:
        """The last part. Raises the error of the call."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.reading
        return self.parts[-1]

    @property
    def state(self) -> pb.GenerationState:
        assert self.parts[0].HasField("state")
        return self.parts[0].state

    @property
    def text(self) -> str:
        """The text of all pieces, which must join without a gap."""
        text = ""
        for part in self.parts:
            if part.HasField("text"):
                assert (part.text.block, part.text.offset) == (0, len(text))
                text += part.text.text
        return text

    @property
    def body(self) -> bytes:
        """The body of a vendor's response so far, whose pieces must join without a gap."""
        body = b""
        for part in self.parts:
            if part.HasField("vendor_part"):
                assert part.vendor_part.offset == len(body)
                body += part.vendor_part.data
        return body

    async def disconnect(self) -> None:
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)


class ModelRunnerClient:
    """Calls of a model runner at an address."""

    def __init__(self, address: str, tenant: str = TENANT) -> None:
        self.channel = open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, tenant=tenant)
        self.stub: Any = ModelServiceStub(self.channel)
        self.calls: list[ReadCall] = []

    def generate(self, owner: Owner, step: int = 1, attempt_number: int = 1, **prompt: Any) -> ReadCall:
        """A Generate on its way."""
        return self.send(generate_request(owner, step, attempt_number, **prompt))

    def send(self, request: pb.GenerateRequest) -> ReadCall:
        call = ReadCall()
        call.reading = asyncio.create_task(call.read(self.stub.Generate(request, timeout=PATIENCE_SECONDS)))
        self.calls.append(call)
        return call

    async def cancel(self, owner: Owner, step: int = 1, attempt_number: int = 1) -> pb.CancelGenerationResponse:
        request = pb.CancelGenerationRequest(token=owner.token, step=step, attempt_number=attempt_number)
        response: pb.CancelGenerationResponse = await self.stub.CancelGeneration(request, timeout=CALL_SECONDS)
        return response

    async def close(self) -> None:
        for call in self.calls:
            await call.disconnect()
        await self.channel.close()


class ModelReplica(ModelRunnerClient):
    """One process of the model runner."""

    def __init__(self, process: ServiceProcess) -> None:
        super().__init__(process.address)
        self.process = process

    def freeze(self) -> None:
        freeze(self.process.pid)

    async def close(self) -> None:
        await super().close()
        await self.process.kill()


StartModels = Callable[..., Awaitable[ModelReplica]]


@pytest.fixture
async def models_dsn(fresh_database: Any) -> str:
    dsn: str = await fresh_database(MIGRATIONS)
    return dsn


@pytest.fixture
async def model_runner(models_dsn: str, grants: Grants, simulator: SimulatorControl) -> AsyncIterator[StartModels]:
    """Starts replicas whose provider is the simulator. Keyword arguments are settings without their prefix."""
    started: list[ModelReplica] = []

    async def start(*, failpoints: str = "", without: str = "", **settings: object) -> ModelReplica:
        given = {
            **_settings(models_dsn, grants.verifying_keys_file),
            **{name.upper(): str(value) for name, value in settings.items()},
        }
        provider = {name: value for name, value in _provider(simulator).items() if not without or without not in name}
        process = ServiceProcess("models", given, failpoints=failpoints, environment=provider)
        await process.start()
        started.append(ModelReplica(process))
        return started[-1]

    yield start
    for replica in started:
        await replica.close()


def _settings(dsn: str, verifying_keys_file: Path) -> dict[str, str]:
    return {
        "LISTEN": "127.0.0.1:0",
        "POSTGRES_DSN": dsn,
        "VERIFYING_KEYS_FILE": str(verifying_keys_file),
        "RUNNER_TTL_SECONDS": str(LONG_LIFE_SECONDS),
    }


def _provider(simulator: SimulatorControl) -> dict[str, str]:
    openai = {"OPENAI_BASE_URL": f"{simulator.url}/v1", "OPENAI_API_KEY": "sk-test"}
    return {"ANTHROPIC_BASE_URL": simulator.url, "ANTHROPIC_API_KEY": "sk-test", **openai}


@pytest.fixture(scope="module")
def shared_model_runner(
    shared_database: str,
    token_keys: Path,
    simulator_process: SimulatorControl,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedService]:
    folder: Path = tmp_path_factory.mktemp("shared-models")
    settings = _settings(shared_database, token_keys / "verifying.json")
    environment = {f"TENURE_MODELS_{name}": value for name, value in settings.items()}
    environment |= {"PATH": os.environ["PATH"], "TENURE_MODELS_MIGRATE": "auto", **_provider(simulator_process)}
    with serving(command_line("models"), environment, folder / "log") as address:
        yield SharedService(address, shared_database, folder)


@pytest.fixture
async def runner(
    shared_model_runner: SharedService, simulator: SimulatorControl, tenant: str
) -> AsyncIterator[ModelRunnerClient]:
    """The module's shared runner, for a tenant of the test's own."""
    client = ModelRunnerClient(shared_model_runner.address, tenant)
    yield client
    await client.close()


@pytest.fixture
async def models_database(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Awaitable[list[Any]]]]:
    """Runs a query in the schema of the test's service."""
    shared = "shared_model_runner" in request.fixturenames
    dsn = request.getfixturevalue("shared_model_runner").dsn if shared else request.getfixturevalue("models_dsn")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to models")

        async def query(statement: str, *parameters: object) -> list[Any]:
            cursor = await postgres.execute(statement.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []

        yield query
