"""The Model Context Protocol at /mcp: the tools of edges/mcp_server, each with the identity of its request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edges.mcp_server.main import http_app
from edges.mcp_server.server import TenureMcp
from edges.mcp_server.settings import McpServerSettings
from services.gateway.http.body import raw_body
from services.gateway.http.call import HttpCall, Stubs
from services.gateway.http.edge import Door, HttpEdge
from services.gateway.http.problems import problem_response
from tenure.client import Client as GatewayClient
from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed
from tenure.sdk.client import Client
from tenure.sdk.connection import GatewayConnection

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 1024 * 1024


@asynccontextmanager
async def mcp_routes(door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
    """Yields the route, and serves it inside of the block."""
    if not door.settings.mcp_max_cost:
        yield ()
        return

    async def client_of(request: Any) -> Client:
        return _CallersClient(HttpCall(request, door.stubs))

    limits = McpServerSettings(Decimal(str(door.settings.mcp_max_cost)), door.settings.mcp_approvals)
    async with http_app(TenureMcp(client_of, limits), MAX_BODY_BYTES) as app:
        # Without sessions, GET would open a stream that never has a message and never ends.
        yield [Route(PATH, _McpApp(app, door.check, door.stubs), methods=["POST"])]


MCP_SERVER: Final = HttpEdge(opened=mcp_routes)


class _McpApp:
    """The protocol's own application, behind the door's check. The body is read before: within its time."""

    def __init__(self, app: ASGIApp, check: Callable[[Request], None], stubs: Stubs) -> None:
        self._app, self._check, self._stubs = app, check, stubs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        request = Request(scope, receive)
        try:
            self._check(request)
            await HttpCall(request, self._stubs).known()
            body = await raw_body(request, MAX_BODY_BYTES)
        except ClientDisconnect:
            return
        except (TenureError, PeerFailed) as error:
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)


def _again(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` (ASGI) that has the body once more, and then what follows it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return whole.pop() if whole else await receive()

    return received


class _CallersClient(Client):
    """The public client over the gateway's own server, with the credentials of one request."""

    def __init__(self, call: HttpCall) -> None:
        self._connection = _CallersConnection(call)


class _CallersConnection(GatewayConnection):
    """A connection without a channel of its own."""

    def __init__(self, call: HttpCall) -> None:
        self.address, self._is_checked = PATH, True
        self._of_caller = _CallersGateway(call)

    def client(self) -> GatewayClient:
        """Returns the client of the gateway's messages."""
        return self._of_caller


class _CallersGateway(GatewayClient):
    """The client of the gateway's messages in process. A repeat of a call is the caller's business."""

    def __init__(self, call: HttpCall) -> None:
        tasks: Any = _AsCaller(call.stubs.tasks, call.metadata)
        self.tasks = tasks


class _AsCaller:
    """A stub whose calls have the metadata of the request."""

    def __init__(self, stub: Any, metadata: Iterable[tuple[str, str]]) -> None:
        self._stub, self._metadata = stub, metadata

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._stub, method)
        return lambda message, **options: call(message, metadata=self._metadata, **options)
