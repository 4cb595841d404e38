"""Tool services as processes over one database, to be killed, frozen and asked over sockets.

tools = await tool_service()                       # another call starts another replica over the same database
# The fixture `tools` is a service that the tests of a module share; each test has a tenant of its own.
outcome = await tools.outcome(token, "1.0", "append_record", file="a", line="x")
lines = records.lines("a")                         # what truly happened, outside of the system
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from devstack.child_process import freeze
from services.tools.statements import MIGRATIONS
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.effect_keys import TaskScopes
from tenure.domain.fencing import TASK_PREFIX, Claims
from tenure.domain.tools import Outcome
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Signer, write_key_pair
from tenure.serve import command_line
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import token_pb2, tool_pb2, tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.token import sign_task_claims
from tenure.wire.tool import outcome_to_domain
from tests.support.forked import Process, start_program
from tests.support.patience import CALL_SECONDS, LONG_LIFE_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.service_process import serving
from tests.support.written_lines import whole_records

TENANT = "default"
SHORT_LIFE = {"runner_ttl_seconds": SHORT_LIFE_SECONDS, "runner_renew_interval_seconds": 0.4}
"""Of a replica that a test freezes until its life has lapsed. The life of a killed one ends with `kill` or `ended`."""
NO_SANDBOX: Final = {"TENURE_TOOLS_SANDBOX_BUBBLEWRAP": "/nonexistent/bwrap"}
"""For a service that runs no program: execute_python says that there is no sandbox."""


@dataclass(frozen=True)
class Owner:
    """A claim of one task: what a worker would hold."""

    task_id: str
    epoch: int
    token: token_pb2.FencingToken


@dataclass(frozen=True)
class Grants:
    """The coordinator's part: signs tokens for claims it makes up."""

    signer: Signer
    verifying_keys_file: Path
    tenant: str = TENANT

    def claim(
        self,
        task_id: str = "",
        *,
        epoch: int = 10,
        claim_id: str = "",
        tools: tuple[str, ...] | None = None,
        tenant: str = "",
        tree: str = "",
        **facts: Any,
    ) -> Owner:
        """A new task's claim, or the next one of a task.

        `tree`: of a sub-agent or a fork, the id of its root. `facts`: its agent, labels and approvals.
        """
        task_id = task_id or str(uuid.uuid4())
        claims = Claims(
            TASK_PREFIX + task_id, tenant or self.tenant, epoch, claim_id or str(uuid.uuid4()), "worker-1", tools,
            installation=DEFAULT_INSTALLATION, scopes=TaskScopes(tree or task_id), **facts,
        )  # fmt: skip
        return Owner(task_id, epoch, sign_task_claims(self.signer, claims, datetime.now(UTC)))


@dataclass(frozen=True)
class Outside:
    """The files of the tools: records, which are outside of the system, and workspaces."""

    records: Path
    workspaces: Path
    tenant: str = TENANT

    def lines(self, file: str, tenant: str = "") -> list[dict[str, Any]]:
        """The record's lines: each is one effect that happened."""
        path = self.records / (tenant or self.tenant) / f"{file}.jsonl"
        return whole_records(path)

    def workspace(self, owner: Owner) -> Path:
        return self.workspaces / self.tenant / owner.task_id


class ToolClient:
    """Calls of a tool service at an address."""

    def __init__(self, address: str, tenant: str = TENANT) -> None:
        self.address = address
        self.channel = open_channel(address) if tenant == TENANT else open_channel(address, tenant=tenant)
        self.stub: Any = ToolServiceStub(self.channel)
        self.calls: list[asyncio.Task[Any]] = []

    async def events(self, owner: Owner, call_id: str, tool: str, **arguments: Any) -> list[Any]:
        """All responses of one Execute."""
        request = execute_request(owner, call_id, tool, json.dumps(arguments))
        return [response async for response in self.stub.Execute(request, timeout=CALL_SECONDS)]

    async def outcome(self, owner: Owner, call_id: str, tool: str, **arguments: Any) -> Outcome:
        """Returns the outcome of an Execute."""
        events = await self.events(owner, call_id, tool, **arguments)
        assert events[-1].HasField("outcome")
        return outcome_to_domain(events[-1].outcome)

    def begin(self, owner: Owner, call_id: str, tool: str, **arguments: Any) -> asyncio.Task[Outcome]:
        """An Execute on its way."""
        task = asyncio.create_task(self.outcome(owner, call_id, tool, **arguments))
        self.calls.append(task)
        return task

    async def fence(self, owner: Owner, *, close: bool = False) -> dict[str, Any]:
        """Returns the states of the task's calls, by call_id."""
        request = tool_service_pb2.FenceRequest(token=owner.token, close=close)
        return {call.call_id: call for call in (await self.stub.Fence(request, timeout=CALL_SECONDS)).calls}

    async def started(self, owner: Owner, count: int = 1) -> None:
        """Returns when so many calls of the task are STARTED."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                calls = (await self.fence(owner)).values()
                if sum(call.state == tool_pb2.CALL_STATE_STARTED for call in calls) == count:
                    return
                await asyncio.sleep(0.02)

    async def started_in_attempt(self, owner: Owner, call_id: str, call_attempt: int) -> None:
        """Returns when this call is STARTED in this attempt: one that a dead runner left behind is STARTED, too."""
        wanted = (tool_pb2.CALL_STATE_STARTED, call_attempt)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while wanted != ((call := (await self.fence(owner))[call_id]).state, call.call_attempt):
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        await self.channel.close()


class ToolReplica(ToolClient):
    """One process of the tool service. `dsn`: its database."""

    def __init__(
        self, process: Process, address: str, log: list[dict[str, Any]], reading: asyncio.Task[None], dsn: str
    ) -> None:
        super().__init__(address)
        self.process, self.log, self.reading = process, log, reading
        self._dsn = dsn

    def freeze(self) -> None:
        freeze(self.process.pid)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL. When it returns, the process is gone and its life has lapsed."""
        self.process.kill()
        await self.ended()

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return await self.process.wait()

    async def ended(self) -> int:
        """The exit code of a process that ends by itself. When it returns, its life has lapsed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            code = await self.process.wait()
            await self.reading
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as postgres:
            await postgres.execute(
                "update tools.runners set renewed_at = renewed_at - ttl_seconds * interval '1 second'"
                " where runner_id = any(%s::uuid[])",
                [[line["runner_id"] for line in self.logged("runner is alive")]],
            )
        return code

    def logged(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line.get("message") == message]

    async def close(self) -> None:
        await super().close()
        if self.process.returncode is None:
            self.thaw()
            self.process.kill()
            await self.process.wait()
        await self.reading


async def appear(path: Path) -> None:
    """Returns when a failpoint has touched the file."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not path.exists():
            await asyncio.sleep(0.01)


def execute_request(
    owner: Owner, call_id: str, tool: str, arguments_json: str = "{}"
) -> tool_service_pb2.ExecuteRequest:
    return tool_service_pb2.ExecuteRequest(token=owner.token, call_id=call_id, tool=tool, arguments_json=arguments_json)


async def listed_sources(tools: ToolClient, tenant: str = "default") -> dict[str, tool_pb2.ToolSource]:
    """Returns the sources of tools that the replica lists for this tenant, by name."""
    with as_tenant(tenant):
        list_sources = await tools.stub.ListToolSources(admin_pb.ListToolSourcesRequest(), timeout=CALL_SECONDS)
    return {source.name: source for source in list_sources.sources}


async def offered(tools: ToolClient, tenant: str) -> list[tool_pb2.OfferedTool]:
    """The tools that tasks of this tenant may be given, as the replica lists them without a token."""
    with as_tenant(tenant):
        answer = await tools.stub.ListOfferedTools(admin_pb.ListOfferedToolsRequest(), timeout=CALL_SECONDS)
    return list(answer.tools)


StartTools = Callable[..., Awaitable[ToolReplica]]


@pytest.fixture(scope="session")
def token_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the keys that sign and verify tokens."""
    directory: Path = tmp_path_factory.mktemp("keys")
    write_key_pair(directory / "signing.json", directory / "verifying.json", "test-key")
    return directory


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """The tenant of the test's claims: one of its own where the test uses a shared service."""
    shared = {"shared_tool_service", "shared_model_runner"}
    return f"tenant-{uuid.uuid4().hex}" if shared & set(request.fixturenames) else TENANT


@pytest.fixture
def grants(token_keys: Path, tenant: str) -> Grants:
    return Grants(Signer.load(token_keys / "signing.json"), token_keys / "verifying.json", tenant)


@pytest.fixture
def outside(request: pytest.FixtureRequest, tmp_path: Path, tenant: str) -> Outside:
    shared = "shared_tool_service" in request.fixturenames
    folder: Path = request.getfixturevalue("shared_tool_service").folder if shared else tmp_path
    return Outside(folder / "records", folder / "workspaces", tenant)


@dataclass(frozen=True)
class SharedService:
    """A process that serves all tests of a module that neither stop it nor need settings of their own."""

    address: str
    dsn: str
    folder: Path


@pytest.fixture(scope="module")
def shared_tool_service(
    shared_database: str, token_keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedService]:
    folder: Path = tmp_path_factory.mktemp("shared-tools")
    keys = token_keys / "verifying.json"
    environment = _environment(shared_database, keys, Outside(folder / "records", folder / "workspaces"))
    environment |= {"PATH": os.environ["PATH"], "TENURE_TOOLS_MIGRATE": "auto"}
    with serving(command_line("tools"), environment, folder / "log") as address:
        yield SharedService(address, shared_database, folder)


@pytest.fixture
async def tools(shared_tool_service: SharedService, tenant: str) -> AsyncIterator[ToolClient]:
    """The module's shared service, for a tenant of the test's own."""
    client = ToolClient(shared_tool_service.address, tenant)
    yield client
    await client.close()


@pytest.fixture
async def tools_dsn(fresh_database: Any) -> str:
    dsn: str = await fresh_database(MIGRATIONS)
    return dsn


@pytest.fixture
async def tool_service(
    request: pytest.FixtureRequest, tools_dsn: str, grants: Grants, outside: Outside
) -> AsyncIterator[StartTools]:
    """Starts replicas. Keyword arguments are settings without their prefix, `failpoints` included; `module`: a service
    with tools of the test's own; `mutation`: one of its guards is missing.

    They have a sandbox where the test asks for `sandbox_detection` or configures tools: its probes at each start take
    more processor time than all else of the start.
    """
    started: list[ToolReplica] = []
    needs_sandbox = "sandbox_detection" in request.fixturenames

    async def start(*, failpoints: str = "", module: str = "", mutation: str = "", **settings: object) -> ToolReplica:
        environment = {
            **_environment(tools_dsn, grants.verifying_keys_file, outside),
            "TENURE_FAILPOINTS": failpoints,
            **({} if needs_sandbox or "config_file" in settings else NO_SANDBOX),
            **{f"TENURE_TOOLS_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-m", module] if module else command_line("tools")
        if mutation:
            command = [sys.executable, "-m", "tests.fault.mutants", "tools", "--mutation", mutation]
        replica = await _start(command, environment, environment["TENURE_TOOLS_POSTGRES_DSN"])
        started.append(replica)
        return replica

    yield start
    for replica in started:
        await replica.close()


def _environment(dsn: str, verifying_keys_file: Path, outside: Outside) -> dict[str, str]:
    return {
        "TENURE_TOOLS_LISTEN": "127.0.0.1:0",
        "TENURE_TOOLS_POSTGRES_DSN": dsn,
        "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(verifying_keys_file),
        "TENURE_TOOLS_WORKSPACE_ROOT": str(outside.workspaces),
        "TENURE_TOOLS_RECORDS_DIR": str(outside.records),
        "TENURE_TOOLS_SANDBOX_WARM": "0",  # most services of tests run no program
        "TENURE_TOOLS_RUNNER_TTL_SECONDS": str(LONG_LIFE_SECONDS),
    }


async def _start(command: list[str], environment: dict[str, str], dsn: str) -> ToolReplica:
    process = await start_program(command, environment={"PATH": os.environ["PATH"], **environment})
    log: list[dict[str, Any]] = []
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read_log(process, log, listening))
    async with asyncio.timeout(PATIENCE_SECONDS):
        address = await listening
    return ToolReplica(process, address, log, reading, dsn)


async def _read_log(process: Process, log: list[dict[str, Any]], listening: asyncio.Future[str]) -> None:
    """Keep the pipe empty, remember every line, find the address."""
    assert process.stderr is not None
    unread: list[str] = []
    async for line in process.stderr:
        try:
            log.append(json.loads(line))
        except ValueError:
            unread.append(line.decode(errors="replace"))
            continue
        if log[-1]["message"] == "listening" and not listening.done():
            listening.set_result(log[-1]["address"])
    if not listening.done():
        listening.set_exception(RuntimeError("the tool service ended: " + "".join(unread) + str(log[-3:])))


@pytest.fixture
async def tools_database(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Awaitable[list[Any]]]]:
    """Runs a query in the schema of the test's service."""
    shared = "shared_tool_service" in request.fixturenames
    dsn = request.getfixturevalue("shared_tool_service").dsn if shared else request.getfixturevalue("tools_dsn")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to tools")

        async def query(statement: str, *parameters: object) -> list[Any]:
            cursor = await postgres.execute(statement.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []

        yield query
