"""The tenant and the trace of a request: read from gRPC metadata; tenant and trace are passed on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

from tenure.domain.access import TENANT_NAME
from tenure.domain.errors import InvalidRequest
from tenure.domain.spans import parse_traceparent

TENANT_KEY: Final = "x-tenure-tenant"
DEFAULT_TENANT: Final = "default"
_TENANT: ContextVar[str] = ContextVar("tenant", default=DEFAULT_TENANT)


def current_tenant() -> str:
    """Returns the tenant of the current request, or `default` outside of a request."""
    return _TENANT.get()


def set_tenant(tenant: str) -> None:
    """Sets the tenant for this asyncio task and the tasks that it starts from now on. Raises InvalidRequest."""
    if TENANT_NAME.fullmatch(tenant) is None:
        raise InvalidRequest(violations=[(TENANT_KEY, "must be 1 to 63 characters of a-z, 0-9 and -")])
    _TENANT.set(tenant)


@contextmanager
def as_tenant(tenant: str) -> Iterator[None]:
    """Sets the tenant inside the block, for work that no request started. Raises InvalidRequest."""
    before = _TENANT.get()
    set_tenant(tenant)
    try:
        yield
    finally:
        _TENANT.set(before)


def named_tenant(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Returns the tenant that a call's metadata names, or None. Raises InvalidRequest for two different tenants."""
    named = {value for key, value in metadata or () if key == TENANT_KEY}
    if not named:
        return None
    if len(named) > 1:
        raise InvalidRequest(violations=[(TENANT_KEY, "must be given once")])
    value = named.pop()
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


# A trace continues in the next service: the W3C `traceparent` header names the span to which a request belongs. The
# services make no spans: the ledger's projection does (tenure/domain/traces.py). They pass the header on, from a client
# to the ledger, and from a tool call to its tool. Clients import this module without OpenTelemetry.

TRACEPARENT_KEY: Final = "traceparent"
"""The key in gRPC metadata, equal to the name of the W3C header."""
_TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")


class Exporting:
    """Whether traces are exported, by the variables of OpenTelemetry: only then do tool calls carry a traceparent."""

    traces: bool = False


def traceparent() -> str:
    """Returns the traceparent of the application's current span, or else of the current request or call, or ""."""
    return _of_application() or _TRACEPARENT.get()


def _of_application() -> str:
    """Returns the current span of an application that uses OpenTelemetry. Nothing is imported for it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    span = trace.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else ""


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Returns the gRPC metadata that carries the current trace to the next service."""
    header = traceparent()
    return ((TRACEPARENT_KEY, header),) if header else ()


def continue_trace(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Makes the caller's span that of this asyncio task and of the tasks that it starts."""
    for key, value in metadata or ():
        if key == TRACEPARENT_KEY and isinstance(value, str) and parse_traceparent(value) is not None:
            _TRACEPARENT.set(value)


_NO_TRACE: Final = nullcontext()


def within_trace(header: str) -> AbstractContextManager[None]:
    """Makes a span the parent of what happens in the block, also for libraries with spans of their own. "": none."""
    ids = parse_traceparent(header) if header else None
    return _NO_TRACE if ids is None else _within(header, ids)


@contextmanager
def _within(header: str, ids: tuple[str, str]) -> Iterator[None]:
    token, detach = _TRACEPARENT.set(header), _attach(*ids)
    try:
        yield
    finally:
        detach()
        _TRACEPARENT.reset(token)


def _attach(trace_id: str, span_id: str) -> Callable[[], None]:
    """Makes a span current for OpenTelemetry, if the process uses it. Returns what undoes this."""
    if "opentelemetry.trace" not in sys.modules:
        return lambda: None
    from opentelemetry import context, trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    span = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
    return lambda: context.detach(token)
