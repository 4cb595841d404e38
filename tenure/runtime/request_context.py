"""Whose request this is: read from the call's metadata, kept in a context variable, sent along to the next service."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenure.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.context import Context

TENANT_KEY: Final = "x-tenure-tenant"
DEFAULT_TENANT: Final = "default"
_TENANT: ContextVar[str] = ContextVar("tenant", default=DEFAULT_TENANT)
_SHAPE: Final = re.compile(r"[a-z0-9-]{1,63}")


def current_tenant() -> str:
    """The tenant of the request being answered; `default` outside of one."""
    return _TENANT.get()


def set_tenant(tenant: str) -> None:
    """From here on in this task (and the tasks it starts) requests belong to `tenant`. Raises InvalidRequest."""
    if _SHAPE.fullmatch(tenant) is None:
        raise InvalidRequest(violations=[(TENANT_KEY, "must be 1 to 63 characters of a-z, 0-9 and -")])
    _TENANT.set(tenant)


@contextmanager
def as_tenant(tenant: str) -> Iterator[None]:
    """Inside, requests belong to `tenant`: for work that nobody's request started. Raises InvalidRequest."""
    before = _TENANT.get()
    set_tenant(tenant)
    try:
        yield
    finally:
        _TENANT.set(before)


def tenant_from(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The tenant a call names, `default` if it names none. Naming two is refused: which one counts would be a guess."""
    named = {value for key, value in metadata or () if key == TENANT_KEY}
    if not named:
        return DEFAULT_TENANT
    if len(named) > 1:
        raise InvalidRequest(violations=[(TENANT_KEY, "must be given once")])
    value = named.pop()
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


# A trace goes on in the next service: W3C `traceparent` out of the current span, and back into the context.

TRACEPARENT_KEY: Final = "traceparent"
"""Of gRPC metadata; the name that W3C gives the header."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Exporting:
    """The process's tracer; None while nothing is exported."""

    tracer: trace.Tracer | None = None


def traceparent() -> str:
    """The current span for who is called, "" outside of one."""
    if Exporting.tracer is None:
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get(TRACEPARENT_KEY, "")


def context_of(header: str) -> Context | None:
    """The context in which a span becomes the child of the one told of; None: the current context."""
    return _PROPAGATOR.extract({TRACEPARENT_KEY: header}, context.get_current()) if header else None


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """What a call of ours takes along."""
    header = traceparent()
    return ((TRACEPARENT_KEY, header),) if header else ()


def continue_trace(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """From here on in this task (and the tasks it starts) spans are children of the one that the caller tells of."""
    if Exporting.tracer is None:
        return
    header = next((value for key, value in metadata or () if key == TRACEPARENT_KEY), "")
    if isinstance(header, str) and (parent := context_of(header)) is not None:
        context.attach(parent)
