"""The tenant, the other end and the trace of a request: read from gRPC metadata; tenant and trace are passed on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

TENANT_KEY: Final = "x-tenure-tenant"
DEFAULT_TENANT: Final = "default"
_TENANT: ContextVar[str] = ContextVar("tenant", default=DEFAULT_TENANT)
_SHAPE: Final = re.compile(r"[a-z0-9-]{1,63}")


def current_tenant() -> str:
    """Returns the tenant of the current request, or `default` outside of a request."""
    return _TENANT.get()


def set_tenant(tenant: str) -> None:
    """Sets the tenant for this asyncio task and the tasks that it starts from now on. Raises InvalidRequest."""
    if _SHAPE.fullmatch(tenant) is None:
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


# The other end of a call. The HTTP door of a gateway calls its gRPC server over a Unix socket, for callers of its own.

PEER_KEY: Final = "x-tenure-peer"
"""The key under which the HTTP door names the other end of its connection, as gRPC would name it."""
_LOCAL_SOCKET: Final = "unix:"


def is_local(peer: str) -> bool:
    """Returns whether a call came over a Unix socket, whose folder only the account of the process may enter."""
    return peer.startswith(_LOCAL_SOCKET)


def peer_of(context: Any) -> str:
    """Returns the other end of a call. Only a call over the server's own Unix socket may name another one."""
    peer = str(context.peer())
    if is_local(peer):
        named = [value for key, value in context.invocation_metadata() or () if key == PEER_KEY]
        return str(named[0]) if named else peer
    return peer


def connection_of(context: Any) -> str:
    """Returns the connection of a call, for limits. By HTTP/1.1 each stream has its own: an address counts as one."""
    peer = peer_of(context)
    return peer.rpartition(":")[0] if is_local(str(context.peer())) else peer


# A trace continues in the next service: the W3C `traceparent` header carries the current span. Clients import this
# module without OpenTelemetry, which only services have: so the functions import it when a span exists.

TRACEPARENT_KEY: Final = "traceparent"
"""The key in gRPC metadata, equal to the name of the W3C header."""


class Exporting:
    """The tracer of the process, or None while no spans are exported."""

    tracer: Tracer | None = None


def traceparent() -> str:
    """Returns the `traceparent` of the current span, or "" without a span or an exporter."""
    if Exporting.tracer is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT_KEY, "")


def context_of(header: str) -> Context | None:
    """Returns a context whose new spans are children of the span in `header`, or None (the current context) for ""."""
    if not header:
        return None
    from opentelemetry.context import get_current
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({TRACEPARENT_KEY: header}, get_current())


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Returns the gRPC metadata that carries the current trace to the next service."""
    header = traceparent()
    return ((TRACEPARENT_KEY, header),) if header else ()


def continue_trace(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Makes the caller's span the parent of the spans of this asyncio task and of the tasks that it starts."""
    if Exporting.tracer is None:
        return
    header = next((value for key, value in metadata or () if key == TRACEPARENT_KEY), "")
    if isinstance(header, str) and (parent := context_of(header)) is not None:
        from opentelemetry.context import attach

        attach(parent)
