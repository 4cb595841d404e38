"""The server on standard input and output, for `tenure mcp`, and over HTTP, for the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings

from edges.mcp_server.server import TenureMcp, make_server
from edges.mcp_server.settings import McpServerSettings
from edges.mcp_server.tasks import TasksExtension
from tenure.sdk.client import Client


async def serve_stdio(client: Client, settings: McpServerSettings) -> None:
    """Serves until standard input ends. All requests have the identity of `client`."""

    async def only_client(_request: Any) -> Client:
        return client

    await server_of(TenureMcp(only_client, settings)).run_stdio_async()


@asynccontextmanager
async def http_app(tenure: TenureMcp, max_body_bytes: int) -> AsyncGenerator[Any]:
    """Yields an application (ASGI) for streamable HTTP, and serves inside of the block. The caller checks origins.

    Sessions would be in the memory of one process; without them, any replica serves each request.
    """
    server = server_of(tenure)
    server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=max_body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    ready, ending = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with server.session_manager.run():
            ready.set()
            await ending.wait()

    # A task group of anyio ends in the task in which it began: this block may end in another one.
    serving = asyncio.create_task(serve())
    await ready.wait()
    try:
        yield StreamableHTTPASGIApp(server.session_manager)
    finally:
        ending.set()
        await serving


def server_of(tenure: TenureMcp) -> MCPServer[Any]:
    """Returns the server with its tools and the extension of tasks."""
    return make_server(tenure, [TasksExtension(tenure)])
