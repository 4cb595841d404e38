"""Gateways as processes over a ledger that a test has, and over nothing where a test names nothing.

stub = await gateway(replica.address)                    # nobody coordinates, and no tools are there
tasks = await stub.ListTasks(api.ListTasksRequest())
refusals = await stub.admin.ListRefusals(admin.ListRefusalsRequest(task_id=…))
stub = await gateway(replica.address, http="127.0.0.1:0")    # stub.http is its URL
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tenure.runtime.rpc_client import open_channel
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import ServiceProcess

TIMEOUT_SECONDS = CALL_SECONDS
NOBODYS = "00000000-0000-7000-8000-000000000000"
Serve = Callable[..., Awaitable[Any]]


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
            channel = open_channel(process.address, default_timeout_seconds=TIMEOUT_SECONDS, tenant=tenant)
            await stack.enter_async_context(channel)
            stub: Any = TaskServiceStub(channel)
            stub.admin, stub.process = AdminServiceStub(channel), process
            stub.http = (await process.logged("serving HTTP"))["url"] if http else ""
            return stub

        yield serve
