"""A trace goes on in the next service: W3C `traceparent` out of the current span, and back into the context.

While this process exports nothing, none of this does anything. A text that is none is ignored: no call fails over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.context import Context

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


def context_of(told: str) -> Context | None:
    """The context in which a span becomes the child of the one told of; None: the current context."""
    return _PROPAGATOR.extract({TRACEPARENT_KEY: told}, context.get_current()) if told else None


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """What a call of ours takes along."""
    told = traceparent()
    return ((TRACEPARENT_KEY, told),) if told else ()


def continue_trace(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """From here on in this task (and the tasks it starts) spans are children of the one that the caller tells of."""
    if Exporting.tracer is None:
        return
    told = next((value for key, value in metadata or () if key == TRACEPARENT_KEY), "")
    if isinstance(told, str) and (found := context_of(told)) is not None:
        context.attach(found)
