"""Calls of a server's methods inside of its process, through its interceptor: so HTTP has the same rules as gRPC.

    stub = TaskServiceStub(server.in_process())
    answer = await stub.GetTask(request, metadata=metadata)

Messages cross as bytes, as they cross a socket: a caller never shares a message with a servicer, and the limits of
sizes count the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Final, Never

import grpc

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.runtime.rpc.status import OUTCOME_UNKNOWN, from_rpc_error

PEER_KEY: Final = "x-tenure-peer"
"""The metadata key under which a caller in process names the other end of its own connection, as gRPC would name it."""
_AHEAD: Final = 4
"""The messages of a stream that wait for their reader."""
Metadata = tuple[tuple[str, str], ...]
Call = Callable[..., Any]


class InProcessContext:
    """The context of a call in process: what an interceptor and a servicer use of `grpc.aio.ServicerContext`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata, self._code, self._is_over = metadata, grpc.StatusCode.OK, False

    def invocation_metadata(self) -> Metadata:
        """Returns the metadata of the caller."""
        return self._metadata

    def peer(self) -> str:
        """Returns the other end of the caller's connection."""
        return next((value for key, value in self._metadata if key == PEER_KEY), "unknown:")

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Returns nothing: a caller in process has no certificate."""
        return {}

    def code(self) -> grpc.StatusCode:
        """Returns the code of an aborted call, else OK."""
        return self._code

    def done(self) -> bool:
        """Returns whether the caller waits no longer."""
        return self._is_over

    cancelled = done

    def leave(self) -> None:
        """Notes that the caller waits no longer."""
        self._is_over = True

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> Never:
        """Ends the call with an error."""
        self._code = code
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing_metadata, details)

    async def abort_with_status(self, status: grpc.Status) -> Never:
        """Ends the call with an error and its details."""
        await self.abort(status.code, status.details, status.trailing_metadata)


def connection_of(context: Any) -> str:
    """Returns the connection of a call, for limits. By HTTP/1.1 each stream has its own: an address counts as one."""
    peer = str(context.peer())
    return peer.rpartition(":")[0] if isinstance(context, InProcessContext) else peer


class InProcessChannel:
    """A channel for the generated stubs of a server's services. Their calls raise domain errors.

    `handler_of`: returns the handler of a method, with the interceptor around it.
    """

    def __init__(
        self, handler_of: Callable[[str], Any], *, default_timeout_seconds: float, max_message_bytes: int
    ) -> None:
        self._handler_of, self._seconds, self._max_bytes = handler_of, default_timeout_seconds, max_message_bytes
        self._context = copy_context()
        self._running = set[asyncio.Task[Any]]()

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Call:
        """Does the same as in gRPC."""

        async def call(request: Any, *, metadata: Metadata = (), timeout: float | None = None) -> Any:
            handler, context = self._handler_of(method), InProcessContext(metadata)
            raw = handler.request_deserializer(self._bounded(request_serializer(request)))
            answering = self._start(handler.unary_unary(raw, context))
            try:
                await asyncio.wait({answering}, timeout=self._seconds if timeout is None else timeout)
                answer = _result(answering)
            finally:
                context.leave()
                answering.cancel()
            return response_deserializer(self._bounded(handler.response_serializer(answer)))

        return call

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Call:
        """Does the same as in gRPC. The call ends with its iterator."""

        async def call(request: Any, *, metadata: Metadata = ()) -> AsyncGenerator[Any]:
            handler, context = self._handler_of(method), InProcessContext(metadata)
            raw = handler.request_deserializer(self._bounded(request_serializer(request)))
            queue = asyncio.Queue[bytes | None](_AHEAD)

            async def answer() -> None:
                async with aclosing(handler.unary_stream(raw, context)) as messages:
                    async for message in messages:
                        await queue.put(self._bounded(handler.response_serializer(message)))

            answering = self._start(answer())
            answering.add_done_callback(lambda _: None if queue.full() else queue.put_nowait(None))
            try:
                while not (answering.done() and queue.empty()):
                    if (sent := await queue.get()) is not None:
                        yield response_deserializer(sent)
                _result(answering)
            finally:
                context.leave()
                answering.cancel()

        return call

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Call:
        """Returns a call that raises: a stream of requests needs a connection."""

        def call(*_: Any, **__: Any) -> Never:
            raise NotImplementedError(f"{method} has a stream of requests")

        return call

    stream_stream = stream_unary

    def _bounded(self, raw: bytes) -> bytes:
        if len(raw) > self._max_bytes:
            problem = f"the message has {len(raw)} bytes; a message has at most {self._max_bytes}"
            raise InvalidRequest(problem, reason="MESSAGE_TOO_LARGE")
        return raw

    def _start(self, answering: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a handler as a gRPC server runs it: in a task of its own, without the context of its caller."""
        task = asyncio.create_task(answering, context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left


def _result(answering: asyncio.Task[Any]) -> Any:
    """Returns the answer of a handler. Raises the domain error of its status, as if it came from another process."""
    if not answering.done():
        raise Unavailable("Deadline Exceeded", reason="DEADLINE_EXCEEDED", metadata=OUTCOME_UNKNOWN)
    if answering.cancelled():
        raise Unavailable("the call was cancelled", reason="CANCELLED", metadata=OUTCOME_UNKNOWN)
    try:
        return answering.result()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
