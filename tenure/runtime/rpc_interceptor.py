"""What every RPC of a Tenure server goes through, in all four arities, exactly once.

Domain errors become statuses; anything else is a bug: INTERNAL, no detail out, stack in the log. The tenant and the
trace are put in their context variables, requests are validated, calls are counted under the names of
go-grpc-middleware.

Messages of a stream are validated and counted inside the (de)serializers: no extra await for a frame. So a stream's
handler meets an invalid message as InvalidRequest raised by its own read, and may answer it or let it end the stream.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from tenure.domain.errors import InvalidRequest, TenureError
from tenure.runtime import metrics
from tenure.runtime.request_context import continue_trace, set_tenant, tenant_from
from tenure.runtime.rpc_status import code_of, to_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

_log: Final = logging.getLogger(__name__)
_ARITY: Final = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
_GRPC_TYPE: Final = {
    "unary_unary": "unary",
    "unary_stream": "server_stream",
    "stream_unary": "client_stream",
    "stream_stream": "bidi_stream",
}


def accept_everything(_request: Any) -> None:
    """The validator of a server that has none."""


async def examine_nothing(_request: Any) -> None:
    """For a server whose requests need no check that takes time."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The one interceptor of our servers. `validate` raises InvalidRequest; it sees every request message.

    `examine` checks outside of the event loop what cannot be checked in it. It gets the requests of unary-request
    methods that `validate` has passed.
    """

    def __init__(
        self,
        validate: Callable[[Any], None] = accept_everything,
        examine: Callable[[Any], Awaitable[None]] = examine_nothing,
    ) -> None:
        self._validate, self._examine = validate, examine
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler with everything around it; built once per method."""
        handler = await continuation(handler_call_details)
        if handler is None:  # the server answers UNIMPLEMENTED by itself
            return handler
        method = str(handler_call_details.method)
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _wrap(self, method: str, handler: Handler) -> Handler:
        arity = _ARITY[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, arity)
        ours = not method.startswith("/grpc.")  # health and reflection know neither tenants nor our validators
        validate, examine = (self._validate, self._examine) if ours else (accept_everything, examine_nothing)
        call = _Method(_Meters.of(method, _GRPC_TYPE[arity]), validate, examine, ours)
        wrap = {
            "unary_unary": call.answering_once,
            "unary_stream": call.answering_many,
            "stream_unary": call.answering_once,
            "stream_stream": call.answering_many,
        }[arity]
        build = getattr(grpc, f"{arity}_rpc_method_handler")
        wrapped: Handler = build(
            wrap(behaviour, validates=not handler.request_streaming),
            request_deserializer=call.receiving(handler.request_deserializer, validates=handler.request_streaming),
            response_serializer=call.sending(handler.response_serializer),
        )
        return wrapped


@dataclass(frozen=True, slots=True)
class _Meters:
    """A method's cells, found once."""

    labels: dict[str, str]
    started: metrics.Cell
    received: metrics.Cell
    sent: metrics.Cell
    seconds: metrics.Histogram

    @classmethod
    def of(cls, method: str, grpc_type: str) -> _Meters:
        service, _, name = method.lstrip("/").partition("/")
        labels = {"grpc_type": grpc_type, "grpc_service": service, "grpc_method": name}
        return cls(
            labels,
            metrics.cell("grpc_server_started_total", **labels),
            metrics.cell("grpc_server_msg_received_total", **labels),
            metrics.cell("grpc_server_msg_sent_total", **labels),
            metrics.histogram("grpc_server_handling_seconds", **labels),
        )

    def handled(self, code: grpc.StatusCode, seconds: float) -> None:
        metrics.count("grpc_server_handled_total", grpc_code=code.name, **self.labels)
        self.seconds.observe(seconds)


@dataclass(frozen=True, slots=True)
class _Method:
    """Wraps the behaviour and the (de)serializers of one method."""

    meters: _Meters
    validate: Callable[[Any], None]
    examine: Callable[[Any], Awaitable[None]]
    has_tenant: bool

    def answering_once(self, behaviour: Callable[..., Any], *, validates: bool) -> Callable[..., Any]:
        _must_be(iscoroutinefunction(behaviour), behaviour)

        async def answer(request: Any, context: Context) -> Any:
            async with self._around(context):
                if validates:
                    self._check(request)
                    await self.examine(request)
                return await behaviour(request, context)

        return answer

    def answering_many(self, behaviour: Callable[..., Any], *, validates: bool) -> Callable[..., Any]:
        if not isasyncgenfunction(behaviour):  # it writes to the context: nothing is yielded, the shape is the same
            return self.answering_once(behaviour, validates=validates)

        async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
            async with self._around(context):
                if validates:
                    self._check(request)
                    await self.examine(request)
                async with aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        yield message

        return answer

    def receiving(self, deserialize: Callable[[bytes], Any] | None, *, validates: bool) -> Callable[[bytes], Any]:
        received, check = self.meters.received, self._check

        def receive(raw: bytes) -> Any:
            received.value += 1
            message = raw if deserialize is None else _parsed(deserialize, raw)
            if validates:
                check(message)
            return message

        return receive

    def _check(self, message: Any) -> None:
        if isinstance(message, _Unreadable):
            raise InvalidRequest(message.problem, reason="UNREADABLE_MESSAGE")
        self.validate(message)

    def sending(self, serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        sent = self.meters.sent

        def send(message: Any) -> bytes:
            sent.value += 1
            return message if serialize is None else serialize(message)

        return send

    @asynccontextmanager
    async def _around(self, context: Context) -> AsyncIterator[None]:
        """Tenant, trace, counters, and the one place where an exception becomes a status."""
        self.meters.started.value += 1
        began, code = perf_counter(), grpc.StatusCode.OK
        try:
            if self.has_tenant:
                metadata = context.invocation_metadata()
                set_tenant(tenant_from(metadata))
                continue_trace(metadata)
            yield
            code = _code_of_context(context)
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except TenureError as error:
            code = code_of(error)
            if context.done():
                raise asyncio.CancelledError from error  # nobody is left to be told
            await context.abort_with_status(to_status(error))
        except grpc.aio.AbortError:
            code = _code_of_context(context)
            raise
        except Exception as error:
            code = _code_of_bug(context, error)
            if code is grpc.StatusCode.CANCELLED:
                raise
            _log.exception(
                "unexpected error in %s/%s", self.meters.labels["grpc_service"], self.meters.labels["grpc_method"]
            )
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self.meters.handled(code, perf_counter() - began)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Bytes that are no message of the method's type. gRPC parses before the handler runs and answers an exception
    there with UNKNOWN and a stack in the log, so the refusal waits until the handler's first look at the request.
    """

    problem: str


def _parsed(deserialize: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return deserialize(raw)
    except DecodeError as error:
        return _Unreadable(f"the request is no message of its type: {error}")


_CODE_BY_NUMBER: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


def _must_be(is_async: bool, behaviour: Callable[..., Any]) -> None:
    """A handler that is not async would run in a thread, out of reach of the context and of cancellation."""
    if not is_async:
        raise TypeError(f"the handler {behaviour!r} must be async")


def _code_of_bug(context: Context, error: Exception) -> grpc.StatusCode:
    """A client that went away shows as gRPC's own internal error in the handler's write: nobody's bug."""
    gone = context.done() or (isinstance(error, grpc.aio.InternalError) and context.cancelled())
    return grpc.StatusCode.CANCELLED if gone else grpc.StatusCode.INTERNAL


def _code_of_context(context: Context) -> grpc.StatusCode:
    """What the handler itself set or aborted with; gRPC keeps it as a number, and 0 for nothing."""
    code: Any = context.code()
    return code if isinstance(code, grpc.StatusCode) else _CODE_BY_NUMBER.get(code or 0, grpc.StatusCode.UNKNOWN)
