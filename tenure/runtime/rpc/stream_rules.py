"""The state that a server keeps for a stream of requests: refusals, and the requests in flight.

The interceptor sees a stream as one call. The handler of the stream asks here for what the interceptor does for calls
of one request each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from tenure.domain.call_limits import InFlight
from tenure.domain.errors import TenureError


def _ignore(_request: Any, _refusal: TenureError) -> None:
    """Notes nothing, for a stream outside of a server."""


@dataclass(frozen=True, slots=True)
class StreamRules:
    """`refused`: notes the refusal of one request of the stream, for the audit; call it where the request was refused.

    `in_flight`: the requests of the caller without a result, over all its streams at this server.
    """

    refused: Callable[[Any, TenureError], None]
    in_flight: InFlight


_RULES: Final[ContextVar[StreamRules | None]] = ContextVar("stream_rules", default=None)


def set_stream_rules(rules: StreamRules) -> None:
    """Sets the rules for the handler of the current call, and for the asyncio tasks that it starts."""
    _RULES.set(rules)


def current_stream_rules() -> StreamRules:
    """Returns the rules of the current stream; outside of a server, rules without limits."""
    return _RULES.get() or StreamRules(_ignore, InFlight.unlimited())
