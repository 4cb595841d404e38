"""Limits the calls of clients at one server, each client by itself and all clients of a tenant together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from tenure.domain.access import Principal
from tenure.domain.call_limits import Call, CallLimits, CallUsage

_SPARE: Final = 100
"""Clients and tenants that are remembered although they are unused, beside as many as are used."""


class CallLimiter:
    """Counts running calls and rates. Principals without a tenant (operators, processes) have no limits.

    `client_percent`: the part of the tenant's limits that one client may use.
    """

    def __init__(self, limits: CallLimits, client_percent: int, clock: Callable[[], float] = monotonic) -> None:
        self._tenant_limits, self._client_limits = limits, limits.part(client_percent)
        self._clock = clock
        self._usages: dict[str, CallUsage] = {}
        self._most_usages = _SPARE

    @contextmanager
    def running(self, principal: Principal, *, is_stream: bool, request: Any, connection: str) -> Iterator[None]:
        """Counts a call while the block runs. Raises LimitReached if it may not begin.

        `request`: a message, or the iterator of a stream of messages, whose bytes are not counted.
        """
        if principal.tenant is None:
            yield
            return
        call = Call(is_stream, connection, request.ByteSize() if hasattr(request, "ByteSize") else 0)
        now_seconds = self._clock()
        self._forget_unused(now_seconds)
        usages = [
            self._usage(f"the client {principal.name} of the tenant {principal.tenant}", self._client_limits),
            self._usage(f"the tenant {principal.tenant}", self._tenant_limits),
        ]
        for usage in usages:
            usage.check(call, now_seconds)
        for usage in usages:
            usage.begin(call)
        try:
            yield
        finally:
            for usage in usages:
                usage.end(call)

    def _usage(self, owner: str, limits: CallLimits) -> CallUsage:
        usage = self._usages.get(owner)
        if usage is None:
            usage = self._usages[owner] = CallUsage(owner, limits)
        return usage

    def _forget_unused(self, now_seconds: float) -> None:
        if len(self._usages) >= self._most_usages:
            self._usages = {owner: one for owner, one in self._usages.items() if not one.is_unused(now_seconds)}
            self._most_usages = 2 * len(self._usages) + _SPARE
