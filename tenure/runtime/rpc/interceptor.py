"""The interceptor of every Tenure server: access, limits, errors, tenant, trace, validation and metrics of each RPC.

It wraps the handlers of all four arities exactly once. A call is admitted, then its request is parsed, then it is
counted against its client's limits, then its request is validated, then it is recorded if its method is audited,
then its handler runs. So a caller without an identity costs neither the parsing nor a walk of its request. Domain
errors become statuses. Any other exception is a bug: the client gets INTERNAL without details, and the log gets the
stack. The interceptor sets the context variables of tenant and trace, and counts calls under the metric names of
go-grpc-middleware.

Messages of a stream are validated and counted inside the (de)serializers, which saves an await per frame. So the read
of a stream's handler raises InvalidRequest for an invalid message, and the handler may answer it or let it end the
stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from tenure.domain.audit import is_denial
from tenure.domain.call_limits import InFlight
from tenure.domain.errors import InvalidRequest, TenureError
from tenure.runtime.observability import metrics
from tenure.runtime.observability.request_log import log_request
from tenure.runtime.request_context import continue_trace, set_tenant
from tenure.runtime.rpc.call_limiter import Answered, CallLimiter, uncounted
from tenure.runtime.rpc.in_process import connection_of
from tenure.runtime.rpc.status import code_of, to_status
from tenure.runtime.rpc.stream_rules import StreamRules, set_stream_rules
from tenure.runtime.security.access_control import AccessControl, Metadata, current_principal
from tenure.runtime.security.audit import Audit, NoAudit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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


def accept_everything(_request: Any, _size_bytes: int) -> None:
    """Accepts every request, for a server without a validator."""


def unbounded(_method: str) -> int | None:
    """Bounds no request, for a server without a validator."""
    return None


async def examine_nothing(_request: Any) -> None:
    """Checks nothing, for a server whose requests need no slow check."""


Admission = Callable[[Any, Metadata], Awaitable[str | None]]
"""Returns the tenant of a call, or None for a method without tenants. Raises the refusal."""


def _no_readmission(_context: Any, _metadata: Metadata) -> AbstractAsyncContextManager[None]:
    return nullcontext()


Validate = Callable[[Any, int], None]
"""Raises InvalidRequest for a request, from the message and the bytes that it had on the wire."""

Running = Callable[[int | None, Any], AbstractAsyncContextManager[Answered]]
"""Returns the context in which a request runs, from its bytes (None: a stream of requests) and gRPC's context. Entering
raises LimitReached."""


def _without_limits(_size_bytes: int | None, _context: Any) -> AbstractAsyncContextManager[Answered]:
    return nullcontext(uncounted)


async def _admit_everyone(_context: Any, _metadata: Metadata) -> None:
    """Admits every call."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor. `access` admits each call; `validate` gets every request message and raises InvalidRequest.

    `longest_request` returns the most bytes of a request of a method, or None. A longer request is not parsed.

    `examine` makes checks that must not run in the event loop. It gets the requests of methods with a single request,
    after `validate` has accepted them.
    """

    def __init__(
        self,
        access: AccessControl,
        validate: Validate = accept_everything,
        examine: Callable[[Any], Awaitable[None]] = examine_nothing,
        audit: Audit | None = None,
        limiter: CallLimiter | None = None,
        longest_request: Callable[[str], int | None] = unbounded,
    ) -> None:
        self._access, self._validate, self._examine, self._limiter = access, validate, examine, limiter
        self._longest_request = longest_request
        self._audit = audit or NoAudit()
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns the wrapped handler of a method that the server has."""
        handler = await continuation(handler_call_details)
        if handler is None:  # the server itself answers UNIMPLEMENTED
            return handler
        return self.wrapped(str(handler_call_details.method), handler)

    def wrapped(self, method: str, handler: Handler) -> Handler:
        """Returns the wrapped handler, which is built once per method."""
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _admission(self, method: str) -> Admission:
        if not method.startswith("/grpc."):
            return partial(self._access.admit, method)
        if method.startswith("/grpc.reflection."):
            return self._access.admit_reflection
        return _admit_everyone  # health, for load balancers

    def _running(self, *, is_long: bool) -> Running:
        limiter = self._limiter
        if limiter is None:
            return _without_limits

        def running(size_bytes: int | None, context: Any) -> AbstractAsyncContextManager[Answered]:
            return limiter.running(
                current_principal(), is_long=is_long, size_bytes=size_bytes, connection=connection_of(context)
            )

        return running

    def _in_flight(self) -> InFlight:
        """Returns the requests in flight of the current caller's streams."""
        return InFlight.unlimited() if self._limiter is None else self._limiter.in_flight(current_principal())

    def _wrap(self, method: str, handler: Handler) -> Handler:
        arity = _ARITY[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, arity)
        is_tenure = not method.startswith("/grpc.")  # health and reflection have no tenants and no validators
        validate, examine = (self._validate, self._examine) if is_tenure else (accept_everything, examine_nothing)
        is_long = is_tenure and (arity != "unary_unary" or self._access.is_long_poll(method))
        readmission = partial(self._access.readmission, method) if is_long else _no_readmission
        admission = self._admission(method)
        metrics_of_method = _MethodMetrics.of(method, _GRPC_TYPE[arity])
        is_audited = self._access.is_audited(method)
        running = self._running(is_long=is_long) if is_tenure else _without_limits
        in_flight = self._in_flight if handler.request_streaming else None
        call = _Method(
            method,
            metrics_of_method,
            validate,
            examine,
            admission,
            running,
            readmission,
            in_flight,
            self._audit,
            is_audited,
            self._access.audited_fields(method),
            is_tenure,
            handler.request_deserializer or bytes,
            self._longest_request(method) if is_tenure else None,
            bool(handler.request_streaming),
        )
        wrap = {
            "unary_unary": call.answering_once,
            "unary_stream": call.answering_many,
            "stream_unary": call.answering_once,
            "stream_stream": call.answering_many,
        }[arity]
        build = getattr(grpc, f"{arity}_rpc_method_handler")
        wrapped: Handler = build(
            wrap(behaviour),
            request_deserializer=call.receive_frame if handler.request_streaming else call.receive,
            response_serializer=call.sending(handler.response_serializer),
        )
        return wrapped


@dataclass(frozen=True, slots=True)
class _MethodMetrics:
    """The metric cells of one method, looked up once."""

    labels: dict[str, str]
    started: metrics.Cell
    received: metrics.Cell
    sent: metrics.Cell
    seconds: metrics.Histogram

    @classmethod
    def of(cls, method: str, grpc_type: str) -> _MethodMetrics:
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
    """Wraps the behaviour and the (de)serializers of one method.

    `in_flight`: of the caller's streams, for a method with a stream of requests; else None. `is_tenure`: it is a method
    of the contract, and not of health or reflection.
    """

    name: str
    metrics: _MethodMetrics
    validate: Validate
    examine: Callable[[Any], Awaitable[None]]
    admit: Admission
    running: Running
    readmission: Callable[[Any, Metadata], AbstractAsyncContextManager[None]]
    in_flight: Callable[[], InFlight] | None
    audit: Audit
    is_audited: bool
    audited_fields: tuple[str, ...]
    is_tenure: bool
    deserialize: Callable[[bytes], Any]
    max_bytes: int | None
    streams_in: bool

    def answering_once(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        _must_be(iscoroutinefunction(behaviour), behaviour)

        async def answer(received: Any, context: Context) -> Any:
            async with self._around(received, context) as (request, _answered):
                await self._accept(request, received, context)
                return await behaviour(request, context)

        return answer

    def answering_many(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        if not isasyncgenfunction(behaviour):  # a handler that writes to the context and yields nothing
            return self.answering_once(behaviour)

        async def answer(received: Any, context: Context) -> AsyncIterator[Any]:
            async with self._around(received, context) as (request, answered):
                await self._accept(request, received, context)
                async with aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        answered()
                        yield message

        return answer

    async def _accept(self, request: Any, received: Any, context: Context) -> None:
        """Validates a single request, and records the call of an audited method, or with an audited field."""
        if not self.streams_in:
            self.validate(request, len(received))
            await self.examine(request)
        if self.is_audited or any(request.HasField(name) for name in self.audited_fields):
            await self.audit.admitted(self.name, request, context.peer())

    def receive(self, raw: bytes) -> bytes:
        """Counts a single request, which is parsed once its call is admitted."""
        self.metrics.received.value += 1
        return raw

    def receive_frame(self, raw: bytes) -> Any:
        """Returns a message of a stream, whose call is admitted already. Raises InvalidRequest."""
        self.metrics.received.value += 1
        message = self._parsed(raw)
        self.validate(message, len(raw))
        return message

    def _parsed(self, raw: bytes) -> Any:
        """Raises InvalidRequest for bytes that are not a message of the method's type, or more than it may have."""
        if self.max_bytes is not None and len(raw) > self.max_bytes:
            problem = f"the request has {len(raw)} bytes; a request of this method has at most {self.max_bytes}"
            raise InvalidRequest(problem, reason="REQUEST_TOO_LARGE")
        try:
            return self.deserialize(raw)
        except DecodeError as error:
            raise InvalidRequest(
                f"the request is not a message of its type: {error}", reason="UNREADABLE_MESSAGE"
            ) from error

    def _target(self, received: Any) -> Any:
        """Returns the request of a refused call for its record: of a known caller, and only a short one."""
        if self.streams_in or not current_principal().name or len(received) > _LONGEST_TARGET_BYTES:
            return None
        with suppress(InvalidRequest):
            return self._parsed(received)
        return None

    def sending(self, serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        sent = self.metrics.sent

        def send(message: Any) -> bytes:
            sent.value += 1
            return message if serialize is None else serialize(message)

        return send

    def _note(self, peer: str, request: Any, error: TenureError) -> None:
        if is_denial(error):
            self.audit.refused(self.name, request, peer, error)

    @asynccontextmanager
    async def _around(self, received: Any, context: Context) -> AsyncIterator[tuple[Any, Answered]]:
        """Admits the call, sets its tenant and trace, parses and counts it, and converts its exception to a status.

        `received`: the bytes of a single request, or the iterator of a stream of requests.
        """
        request: Any = None
        self.metrics.started.value += 1
        began, code = perf_counter(), grpc.StatusCode.OK
        refusal: TenureError | None = None
        try:
            metadata = context.invocation_metadata()
            if (tenant := await self.admit(context, metadata)) is not None:
                set_tenant(tenant)
                continue_trace(metadata)
            if self.in_flight is not None:
                set_stream_rules(StreamRules(partial(self._note, context.peer()), self.in_flight()))
            request = received if self.streams_in else self._parsed(received)
            size_bytes = None if self.streams_in else len(received)
            async with self.running(size_bytes, context) as answered, self.readmission(context, metadata):
                yield request, answered
            code = _code_of_context(context)
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except TenureError as error:
            code, refusal = code_of(error), error
            self._note(context.peer(), request or self._target(received), error)
            if context.done():
                raise asyncio.CancelledError from error  # the client is gone
            await context.abort_with_status(to_status(error))
        except grpc.aio.AbortError:
            code = _code_of_context(context)
            raise
        except Exception as error:
            code = _code_of_bug(context, error)
            if code is grpc.StatusCode.CANCELLED:
                raise
            _log.exception(
                "unexpected error in %s/%s", self.metrics.labels["grpc_service"], self.metrics.labels["grpc_method"]
            )
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            seconds = perf_counter() - began
            self.metrics.handled(code, seconds)
            if self.is_tenure:
                log_request(self.name, request, code, seconds, refusal)


_LONGEST_TARGET_BYTES: Final = 64 * 1024
_CODE_BY_NUMBER: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


def _must_be(is_async: bool, behaviour: Callable[..., Any]) -> None:
    """Raises TypeError for a handler that is not async: it would run in a thread, without context and cancellation."""
    if not is_async:
        raise TypeError(f"the handler {behaviour!r} must be async")


def _code_of_bug(context: Context, error: Exception) -> grpc.StatusCode:
    """Returns CANCELLED if the client went away, else INTERNAL.

    When the client is gone, gRPC raises its own internal error in the handler's write, which is not a bug.
    """
    gone = context.done() or (isinstance(error, grpc.aio.InternalError) and context.cancelled())
    return grpc.StatusCode.CANCELLED if gone else grpc.StatusCode.INTERNAL


def _code_of_context(context: Context) -> grpc.StatusCode:
    """Returns the code that the handler set or aborted with. gRPC stores it as a number, 0 for none."""
    code: Any = context.code()
    return code if isinstance(code, grpc.StatusCode) else _CODE_BY_NUMBER.get(code or 0, grpc.StatusCode.UNKNOWN)
