"""The gRPC server of every Tenure process, with the error interceptor, health, reflection and an orderly drain.

    server = RpcServer("0.0.0.0:8472", security=security, validate=validate, stopping=process.stopping)
    server.add("tenure.v1.CheckpointService", servicer)
    async with server:
        …  # server.address is the bound address

As a context manager a server serves inside the block and drains at its end.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from tenure.domain.errors import LimitReached, NotFound, Unavailable
from tenure.runtime.listening import CannotListen
from tenure.runtime.rpc.call_limiter import CallLimiter
from tenure.runtime.rpc.in_process import InProcessChannel
from tenure.runtime.rpc.interceptor import ErrorInterceptor, Validate, accept_everything, examine_nothing, unbounded
from tenure.runtime.rpc.options import Keepalive, ServerLimits
from tenure.runtime.rpc.status import DRAINING, PeerFailed
from tenure.runtime.security.audit import Audit
from tenure.runtime.security.process_security import NO_SECURITY, Security

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tenure.runtime.rpc.interceptor import Handler


# `grpc.health.v1` for each service and for the whole server (""). The streams of watchers end when the server drains.

SERVICE_NAME = "grpc.health.v1.Health"
MAX_HEALTH_WATCHES: Final = 10_000
"""Open streams of Watch at one server, as many as its connections: callers without an identity may open them."""
_WATCH_RETRY_SECONDS: Final = 10.0
_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """Implements `grpc.health.v1`. At the start it knows only the whole server (""), which is NOT_SERVING."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {"": False}
        self._changed = asyncio.Condition()
        self._draining = False
        self._watches = 0

    async def set_serving(self, service: str, serving: bool) -> None:
        """Sets the status of one service. Has no effect when the server drains."""
        async with self._changed:
            if not self._draining:
                self._serving[service] = serving
                self._changed.notify_all()

    async def set_all_serving(self, serving: bool) -> None:
        """Sets the status of every service that the server has. Has no effect before it serves, or when it drains."""
        async with self._changed:
            if not self._draining and len(self._serving) > 1:
                self._serving = dict.fromkeys(self._serving, serving)
                self._changed.notify_all()

    async def drain(self) -> None:
        """Sets every service to NOT_SERVING for good, sends this status to watchers and ends their streams."""
        async with self._changed:
            self._draining = True
            self._serving = dict.fromkeys(self._serving, False)
            self._changed.notify_all()

    async def Check(self, request: Any, _context: Any) -> Any:  # noqa: N802  the name on the wire
        """Returns the status of one service. Raises NotFound for an unknown service."""
        if request.service not in self._serving:
            raise NotFound(f"this server has no service {request.service!r}")
        return _Response(status=self._status(request.service))

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802  the name on the wire
        """Returns the statuses of all services."""
        statuses = {service: _Response(status=self._status(service)) for service in self._serving}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802  the name on the wire
        """Yields the current status and each new one. Raises LimitReached (HEALTH_WATCHES)."""
        if self._watches >= MAX_HEALTH_WATCHES:
            message = f"this server has {MAX_HEALTH_WATCHES} open streams of health already: use Check"
            raise LimitReached(message, reason="HEALTH_WATCHES", retry_after_seconds=_WATCH_RETRY_SECONDS)
        self._watches += 1
        try:
            last_status = None
            while not (self._draining and last_status is not None):
                status = await self._next_status(request.service, last_status)
                if status != last_status:
                    yield _Response(status=status)
                last_status = status
        finally:
            self._watches -= 1

    async def _next_status(self, service: str, last_status: Any) -> Any:
        """Returns the status when it differs from `last_status`, or when the server drains."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._draining or self._status(service) != last_status)
            return self._status(service)

    def _status(self, service: str) -> Any:
        if service not in self._serving:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._serving[service] else _Response.NOT_SERVING


_log: Final = logging.getLogger(__name__)
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


class RpcServer:
    """A gRPC server on one address.

    `stopping` is set at the latest when draining begins: handlers of streams watch it and end with `draining()`.
    `serving` False: health reports NOT_SERVING as long as the server runs, and the servicers say why.
    """

    def __init__(
        self,
        address: str,
        *,
        security: Security = NO_SECURITY,
        validate: Validate = accept_everything,
        examine: Callable[[Any], Awaitable[None]] = examine_nothing,
        stopping: asyncio.Event | None = None,
        limits: ServerLimits | None = None,
        keepalive: Keepalive | None = None,
        audit: Audit | None = None,
        limiter: CallLimiter | None = None,
        longest_request: Callable[[str], int | None] = unbounded,
        reflection_enabled: bool = True,
        serving: bool = True,
        grace_seconds: float = 10.0,
    ) -> None:
        self._access = security.access_control()
        self._limits = limits or ServerLimits()
        options = [*self._limits.options(), *(keepalive or Keepalive()).options()]
        self._interceptor = ErrorInterceptor(self._access, validate, examine, audit, limiter, longest_request)
        self._server = grpc.aio.server(interceptors=[self._interceptor], options=options)
        self._address_setting, self._credentials = address, security.server_credentials()
        self._reflection_enabled, self._grace_seconds = reflection_enabled, grace_seconds
        self._serving = serving
        self._services: list[str] = []
        self._registered = _Registered(self._server)
        self._port = 0
        self.health = Health()
        self.stopping = stopping or asyncio.Event()

    def add(self, service: str, servicer: object, register: Callable[[Any, Any], None] | None = None) -> None:
        """Registers `servicer` for `service`, a full name. Raises ValueError for a method without an access rule.

        `register`: instead of the function that is generated for a service of the contract.
        """
        self._access.add(service)
        (register or _registering(service))(servicer, self._registered)
        self._services.append(service)

    def in_process(self, default_timeout_seconds: float) -> InProcessChannel:
        """Returns a channel to the methods of this server that needs no socket. It has the same interceptor."""
        return InProcessChannel(
            cache(lambda method: self._interceptor.wrapped(method, self._registered.handler(method))),
            default_timeout_seconds=default_timeout_seconds,
            max_message_bytes=self._limits.max_message_bytes,
        )

    @property
    def address(self) -> str:
        """The bound "host:port", with the real port if port 0 was configured."""
        return f"{self._address_setting.rpartition(':')[0]}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def max_connections(self) -> int:
        return self._limits.max_connections

    async def start(self) -> str:
        """Binds, serves and sets health. Returns the bound address. Raises CannotListen."""
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        if self._reflection_enabled:
            self._add_reflection()
        self._port = self._bind()
        await self._server.start()
        for service in ("", SERVICE_NAME, *self._services):
            await self.health.set_serving(service, serving=self._serving)
        status = "serving" if self._serving else "not serving"
        _log.info(status, extra={"address": self.address, "services": self._services})
        return self.address

    async def drain(self) -> None:
        """Sets NOT_SERVING, then `stopping`, then refuses new calls. Running calls get the grace period. Repeatable."""
        await self.health.drain()
        self.stopping.set()
        await self._server.stop(self._grace_seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    def _bind(self) -> int:
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(self._address_setting)
            return self._server.add_secure_port(self._address_setting, self._credentials)
        except RuntimeError as error:
            raise CannotListen(self._address_setting) from error

    def _add_reflection(self) -> None:
        """Adds reflection under v1alpha, which older grpcurls use, and under v1, which has the same messages."""
        servicer = ReflectionServicer((*self._services, SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION_V1))
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for name in (reflection.SERVICE_NAME, REFLECTION_V1):
            generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            self._server.add_generic_rpc_handlers((generic,))


class _Registered:
    """Adds handlers to a server, and remembers them."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._services: list[grpc.GenericRpcHandler] = []
        self.add_registered_method_handlers = server.add_registered_method_handlers

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(services)
        self._services += services

    def handler(self, method: str) -> Handler:
        """Returns the handler of a method. Raises PeerFailed for an unknown one."""
        details: Any = SimpleNamespace(method=method)
        for service in self._services:
            if (handler := service.service(details)) is not None:
                return handler
        raise PeerFailed(grpc.StatusCode.UNIMPLEMENTED, f"method {method} not found")


def _registering(service: str) -> Callable[[Any, Any], None]:
    """Returns the function `add_…Servicer_to_server`, which is generated beside the messages of the service."""
    described = descriptor_pool.Default().FindServiceByName(service)
    generated = import_module(f"{described.file.name.removesuffix('.proto').replace('/', '.')}_pb2_grpc")
    register: Callable[[Any, Any], None] = getattr(generated, f"add_{described.name}Servicer_to_server")
    return register


def draining(retry_after_seconds: float = 0.2) -> Unavailable:
    """Returns the error with which a stream ends when its server drains. The client then calls another replica."""
    return Unavailable("the server is draining", reason=DRAINING, retry_after_seconds=retry_after_seconds)
