"""One HTTP request as a caller of the gateway's own gRPC server, in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote

from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from services.gateway.http.body import may_be_large
from services.gateway.http.problems import HttpRefusal
from services.gateway.http.sessions import key_of_session
from tenure.domain.errors import InvalidRequest
from tenure.runtime.request_context import TENANT_KEY, TRACEPARENT_KEY
from tenure.runtime.rpc.client import AUTHORIZATION
from tenure.runtime.rpc.in_process import PEER_KEY
from tenure.runtime.rpc.server import RpcServer
from tenure.sdk.task_ids import find_task_id
from tenure.v1 import admin_service_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tenure.v1.tenant_service_pb2_grpc import TenantServiceStub

if TYPE_CHECKING:  # these names exist for type checkers only
    from grpc.aio import UnaryStreamMultiCallable, UnaryUnaryMultiCallable

    from tenure.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from tenure.v1.agent_service_pb2_grpc import AgentServiceAsyncStub
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub
    from tenure.v1.tenant_service_pb2_grpc import TenantServiceAsyncStub

TENANT_HEADER: Final = "tenure-tenant"
TENANT_PARAMETER: Final = "tenant"
REQUEST_ID_HEADER: Final = "idempotency-key"
CALL_SECONDS: Final = 60.0
"""Longer than the gateway waits for the services behind it, so that their answer arrives."""
MAX_AUTHORIZATION: Final = 6144
"""Characters, as by gRPC, which refuses more than 8 KiB of metadata."""
_IDS: Final = ("root_task_id", "forked_from_task_id")
"""The parameters that name one task. Of many, each would be a search of its own."""
T = TypeVar("T")
Q = TypeVar("Q")
CallRequest = TypeVar("CallRequest")
Answer = TypeVar("Answer")


class Stubs:
    """The gateway's services, in process. `asks_for_keys`: the gateway authenticates."""

    def __init__(self, server: RpcServer, *, asks_for_keys: bool) -> None:
        channel: Any = server.in_process(CALL_SECONDS)
        self._channel = channel
        self.asks_for_keys = asks_for_keys
        self.tasks: TaskServiceAsyncStub = TaskServiceStub(channel)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(channel)
        self.tenants: TenantServiceAsyncStub = TenantServiceStub(channel)
        self.agents: AgentServiceAsyncStub = AgentServiceStub(channel)

    def unary(self, method: str, request: type[Message], answer: type[Message]) -> Any:
        """Returns a unary method of any service. `method`: /package.Service/Method."""
        return self._channel.unary_unary(method, request.SerializeToString, answer.FromString)


class HttpCall:
    """A request, and the calls of the gRPC server that it makes, as its caller. Raises InvalidRequest, HttpRefusal."""

    def __init__(self, request: Request, stubs: Stubs, *, key: str = "") -> None:
        """`key`: the caller's, if the request has it elsewhere than usual."""
        self.request, self.stubs = request, stubs
        self.metadata = tuple(_metadata(request, key))

    def path(self, name: str) -> str:
        """Returns a part of the path."""
        return str(self.request.path_params[name])

    async def find_ids(self, query: Q) -> Q:
        """Replaces the first characters of a task's id in the path by the id, and returns the query with whole ids.

        Raises NotFound and InvalidRequest.
        """
        if "task_id" in self.request.path_params:
            self.request.path_params["task_id"] = await self._whole("task_id", self.path("task_id"))
        given = {name: value for name in _IDS if (value := getattr(query, name, ""))}
        whole = {name: await self._whole(name, value) for name, value in given.items()}
        return cast("Q", replace(cast("Any", query), **whole)) if whole else query

    async def _whole(self, name: str, text: str) -> str:
        async def list_tasks(message: api.ListTasksRequest) -> api.ListTasksResponse:
            return await self.one(self.stubs.tasks.ListTasks, message)

        return await find_task_id(list_tasks, text, field=name)

    @property
    def request_id(self) -> str:
        """The id that makes a repeat of the request safe; "" for none."""
        return self.request.headers.get(REQUEST_ID_HEADER, "")

    async def known(self) -> None:
        """Raises Unauthenticated for a request of an unknown caller whose body may be large, before it is read."""
        if self.stubs.asks_for_keys and may_be_large(self.request):
            await self.one(self.stubs.admin.GetCaller, admin_service_pb2.GetCallerRequest())

    async def one(
        self,
        method: UnaryUnaryMultiCallable[CallRequest, Answer],
        message: CallRequest,
        *,
        timeout: float | None = None,
    ) -> Answer:
        """Returns the answer of a unary method."""
        return await method(message, metadata=self.metadata, timeout=timeout)

    async def many(
        self, method: UnaryStreamMultiCallable[CallRequest, Answer], message: CallRequest
    ) -> AsyncGenerator[Answer]:
        """Yields the messages of a stream, and ends the call with the generator."""
        answers: Any = method(message, metadata=self.metadata)
        async with aclosing(answers):
            async for one in answers:
                yield one

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of a long work, and cancels the work, with its calls, when the client leaves.

        Raises ClientDisconnect then. Read the body of the request before.
        """
        working = asyncio.create_task(work)
        disconnect = asyncio.create_task(until_disconnected(self.request.receive))
        try:
            await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            for task in (working, disconnect):
                task.cancel()
            await asyncio.gather(working, disconnect, return_exceptions=True)


async def until_disconnected(receive: Receive) -> None:
    """Returns when the connection of a request is closed. `receive`: the request's (ASGI)."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _metadata(request: Request, key: str) -> list[tuple[str, str]]:
    metadata = [(PEER_KEY, _peer(request))]
    tenants = {*request.headers.getlist(TENANT_HEADER), *request.query_params.getlist(TENANT_PARAMETER)} - {""}
    if len(tenants) > 1:
        raise InvalidRequest(violations=[("tenant", "must be given once")])
    metadata += [(TENANT_KEY, _printable(tenant, "tenant")) for tenant in tenants]
    authorizations = [f"Bearer {key}"] if key else request.headers.getlist("authorization")
    if not authorizations and (of_session := key_of_session(request)):
        authorizations = [f"Bearer {of_session}"]
    metadata += [(AUTHORIZATION, _bearer(text)) for text in authorizations]
    if trace := request.headers.get(TRACEPARENT_KEY):
        metadata.append((TRACEPARENT_KEY, _printable(trace, TRACEPARENT_KEY)))
    return metadata


def _bearer(text: str) -> str:
    """Returns the authorization as gRPC callers write it: schemes of HTTP have no case."""
    scheme, _, rest = text.partition(" ")
    if len(text) > MAX_AUTHORIZATION:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise HttpRefusal(status, "HEADER_TOO_LARGE", "the authorization is too long")
    return _printable(f"Bearer {rest.strip()}" if scheme.lower() == "bearer" else text, AUTHORIZATION)


def _printable(text: str, name: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest(violations=[(name, "must be printable ASCII")])
    return text


def _peer(request: Request) -> str:
    """Returns the other end as gRPC names it."""
    client = request.client
    if client is None:
        return "unknown:"
    if ":" in client.host:
        return f"ipv6:{quote(f'[{client.host}]', safe=':')}:{client.port}"
    return f"ipv4:{client.host}:{client.port}"
