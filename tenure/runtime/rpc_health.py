"""`grpc.health.v1`: per service and for the whole server (""). Watchers end when the server drains.

Written on the generated base: the packaged servicer keeps its Watch streams open while draining, so that a server with
one watcher would always wait out its whole grace.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.domain.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICE_NAME = "grpc.health.v1.Health"
_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """What `Check`, `List` and `Watch` answer. Starts with nothing known but "" = NOT_SERVING."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {"": False}
        self._changed = asyncio.Condition()
        self._draining = False

    async def set_serving(self, service: str, serving: bool) -> None:
        """Say whether one service answers; without effect once the server drains."""
        async with self._changed:
            if not self._draining:
                self._serving[service] = serving
                self._changed.notify_all()

    async def drain(self) -> None:
        """Everything is NOT_SERVING from now on, and watchers are told so and ended."""
        async with self._changed:
            self._draining = True
            self._serving = dict.fromkeys(self._serving, False)
            self._changed.notify_all()

    async def Check(self, request: Any, _context: Any) -> Any:  # noqa: N802  the name on the wire
        """One service's status; NOT_FOUND for one this server does not have."""
        if request.service not in self._serving:
            raise NotFound(f"no service {request.service!r} here")
        return _Response(status=self._status(request.service))

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802  the name on the wire
        """All services' statuses."""
        statuses = {service: _Response(status=self._status(service)) for service in self._serving}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802  the name on the wire
        """The status now and at every change."""
        told = None
        while not (self._draining and told is not None):
            status = await self._next_status(request.service, told)
            if status != told:
                yield _Response(status=status)
            told = status

    async def _next_status(self, service: str, told: Any) -> Any:
        """The status once it is another one than the watcher was told, or the server drains."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._draining or self._status(service) != told)
            return self._status(service)

    def _status(self, service: str) -> Any:
        if service not in self._serving:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._serving[service] else _Response.NOT_SERVING
