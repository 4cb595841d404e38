"""Gateways as processes over a ledger that a test has, and over nothing where a test names nothing.

stub = await gateway(replica.address)                    # without a coordinator and tools
tasks = await stub.ListTasks(api.ListTasksRequest())
refusals = await stub.admin.ListRefusals(admin.ListRefusalsRequest(task_id=…))
stub = await gateway(replica.address, http="127.0.0.1:0")    # stub.http is its URL
stub = await shared_gateway()                            # of the module, over the ledger of the module's `replica`
stub = await shared_gateway("somebody-else")             # as another tenant
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tenure.runtime.rpc.client import open_channel
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_checkpoint import Checkpoint
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import ServiceProcess

TIMEOUT_SECONDS = CALL_SECONDS
NOBODYS = "00000000-0000-7000-8000-000000000000"
Serve = Callable[..., Awaitable[Any]]
StubOfTenant = Callable[..., Awaitable[Any]]


@pytest.fixture
async def gateway(closed_port: int) -> AsyncIterator[Serve]:
    """Starts gateways. What is given is TaskService's stub, with `admin`, the other one, and `process`."""
    nowhere = f"127.0.0.1:{closed_port}"
    async with AsyncExitStack() as stack:

        async def serve(
            ledger: str,
            *,
            tools: str = nowhere,
            coordinator: str = nowhere,
            tenant: str = "default",
            heartbeat_seconds: float = 0.3,
            http: str = "",
        ) -> Any:
            settings = {
                "LISTEN": "127.0.0.1:0",
                "CHECKPOINT_ADDRESS": ledger,
                "COORDINATOR_ADDRESS": coordinator,
                "TOOLS_ADDRESS": tools,
                "HEARTBEAT_SECONDS": str(heartbeat_seconds),
                "HTTP_LISTEN": http,
            }
            process = ServiceProcess("gateway", settings)
            await process.start()
            stack.push_async_callback(process.kill)
            stub = await stub_of(stack, process, tenant)
            stub.http = (await process.logged("serving HTTP"))["url"] if http else ""
            return stub

        yield serve


@asynccontextmanager
async def shared_process(ledger: Checkpoint, tools: str = "") -> AsyncIterator[ServiceProcess]:
    """A gateway for the tests of a module. No coordinator is there, and no tools without their address."""
    with socket.socket() as held:  # it does not listen, and nothing else gets its port
        held.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{held.getsockname()[1]}"
        settings = {
            "LISTEN": "127.0.0.1:0",
            "CHECKPOINT_ADDRESS": ledger.address,
            "COORDINATOR_ADDRESS": nowhere,
            "TOOLS_ADDRESS": tools or nowhere,
            "HEARTBEAT_SECONDS": "2.0",
        }
        process = ServiceProcess("gateway", settings)
        await process.start()
        yield process
        await process.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway_process(
    request: pytest.FixtureRequest, shared_ledger: Checkpoint
) -> AsyncIterator[ServiceProcess]:
    """A gateway over the ledger of a module, and over its tools if the module has GATEWAY_HAS_TOOLS."""
    has_tools = getattr(request.module, "GATEWAY_HAS_TOOLS", False)
    tools = request.getfixturevalue("shared_tool_service").address if has_tools else ""
    async with shared_process(shared_ledger, tools) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def shared_gateway(replica: Checkpoint, shared_gateway_process: ServiceProcess) -> AsyncIterator[StubOfTenant]:
    """Makes stubs of the module's gateway, for the tenant of `replica` or another one."""
    async with AsyncExitStack() as stack:

        async def stub(tenant: str = "") -> Any:
            return await stub_of(stack, shared_gateway_process, tenant or replica.tenant)

        yield stub


async def stub_of(stack: AsyncExitStack, process: ServiceProcess, tenant: str) -> Any:
    """TaskService's stub, with `admin`, the other one, and `process`."""
    channel = open_channel(process.address, default_timeout_seconds=TIMEOUT_SECONDS, tenant=tenant)
    await stack.enter_async_context(channel)
    stub: Any = TaskServiceStub(channel)
    stub.admin, stub.process, stub.channel = AdminServiceStub(channel), process, channel
    return stub
