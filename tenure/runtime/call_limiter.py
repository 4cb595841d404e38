"""Limits the calls at one server, per client and per tenant.

A call beyond the limit of running calls waits for its turn, fairly between the clients of the tenant, because a client
that is refused at once repeats the call at once. All other limits refuse.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any, Final

from tenure.domain.access import Principal
from tenure.domain.call_limits import FREE_RETRY_SECONDS, Call, CallUsage, ClientCallLimits, limit_reached

TURN_SECONDS: Final = 5.0
"""How long a call waits for its turn before it is refused."""
MAX_WAITING: Final = 1000
"""The waiting calls of a tenant, and of one client half of them; beyond it, a call is refused at once."""
OPENING_SECONDS: Final = 1.0
"""How long a stream or long poll counts as running at most: it may have no message for minutes."""
_SPARE: Final = 100
"""Clients and tenants that are remembered although they are unused, beside as many as are used."""

Answered = Callable[[], None]


def uncounted() -> None:
    """Is called with each message of a stream without limits."""


class Turns:
    """The running calls of one tenant, and the calls that wait for their turn."""

    def __init__(self, owner: str, most: int, most_of_client: int) -> None:
        self._owner, self._most, self._most_of_client = owner, most, most_of_client
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_unused(self) -> bool:
        """Whether no call runs or waits."""
        return not self._running and not self._waiting

    async def take(self, client: str) -> None:
        """Waits until a call of the client may run, and counts it. Raises LimitReached."""
        if client not in self._waiting and self._is_free(client):
            self._running[client] += 1
            return
        of_client = len(self._waiting.get(client, ()))
        if of_client >= MAX_WAITING // 2 or sum(map(len, self._waiting.values())) >= MAX_WAITING:
            raise self._refusal()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await asyncio.wait([turn], timeout=TURN_SECONDS)
        except asyncio.CancelledError:
            self._leave(client, turn)
            raise
        if not turn.done():
            self._leave(client, turn)
            raise self._refusal()

    def give(self, client: str) -> None:
        """Counts the end of a running call, and lets the next one run."""
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        following = next((name for name in self._waiting if self._is_free(name)), None)
        if following is not None:
            turn = self._waiting[following].popleft()
            self._waiting.move_to_end(following)
            self._drop_if_empty(following)
            self._running[following] += 1
            turn.set_result(None)

    def _is_free(self, client: str) -> bool:
        return self._running.total() < self._most and self._running[client] < self._most_of_client

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self.give(client)
        else:
            self._waiting[client].remove(turn)
            self._drop_if_empty(client)

    def _drop_if_empty(self, client: str) -> None:
        if not self._waiting[client]:
            del self._waiting[client]

    def _refusal(self) -> Exception:
        text = f"{self._most} running calls, or {self._most_of_client} of one client,"
        return limit_reached(self._owner, "RUNNING_CALLS", text, FREE_RETRY_SECONDS)


class CallLimiter:
    """Counts calls and rates. Principals without a tenant (operators, processes) have no limits.

    `client_percent`: the part of the tenant's limits that one client may use.
    """

    def __init__(self, limits: ClientCallLimits, client_percent: int, clock: Callable[[], float] = monotonic) -> None:
        self._tenant_limits, self._client_limits = limits, limits.part(client_percent)
        self._clock = clock
        self._turns: dict[str, Turns] = {}
        self._usages: dict[str, CallUsage] = {}
        self._most_usages = _SPARE

    @asynccontextmanager
    async def running(
        self, principal: Principal, *, is_long: bool, request: Any, connection: str
    ) -> AsyncIterator[Answered]:
        """Counts a call while the block runs, after it waited for its turn. Raises LimitReached.

        Yields a function to call with each message of a stream. `is_long`: a stream or a long poll. `request`: a
        message, or the iterator of a stream of messages, whose bytes are not counted.
        """
        tenant, name = principal.tenant, principal.name
        if tenant is None:
            yield uncounted
            return
        call = Call(is_long, connection, request.ByteSize() if hasattr(request, "ByteSize") else 0)
        usages = self._begin(tenant, name, call)
        try:
            turns = self._turns.get(tenant)
            if turns is None:
                most, most_of_client = self._tenant_limits.calls, self._client_limits.calls
                turns = self._turns[tenant] = Turns(f"the tenant {tenant}", most, most_of_client)
            await turns.take(name)
            turn = _Turn(partial(turns.give, name))
            opened = asyncio.get_running_loop().call_later(OPENING_SECONDS, turn.end) if is_long else None
            try:
                yield turn.end if is_long else uncounted
            finally:
                turn.end()
                if opened is not None:
                    opened.cancel()
        finally:
            for usage in usages:
                usage.end(call)
            if (turns := self._turns.get(tenant)) is not None and turns.is_unused:
                del self._turns[tenant]

    def _begin(self, tenant: str, name: str, call: Call) -> list[CallUsage]:
        now_seconds = self._clock()
        self._forget_unused(now_seconds)
        usages = [
            self._usage(f"the client {name} of the tenant {tenant}", self._client_limits),
            self._usage(f"the tenant {tenant}", self._tenant_limits),
        ]
        for usage in usages:
            usage.check(call, now_seconds)
        for usage in usages:
            usage.begin(call)
        return usages

    def _usage(self, owner: str, limits: ClientCallLimits) -> CallUsage:
        usage = self._usages.get(owner)
        if usage is None:
            usage = self._usages[owner] = CallUsage(owner, limits)
        return usage

    def _forget_unused(self, now_seconds: float) -> None:
        if len(self._usages) >= self._most_usages:
            self._usages = {owner: one for owner, one in self._usages.items() if not one.is_unused(now_seconds)}
            self._most_usages = 2 * len(self._usages) + _SPARE


class _Turn:
    """A call's turn, which ends once: with a stream's first message, after `OPENING_SECONDS`, or with the call."""

    def __init__(self, give: Callable[[], None]) -> None:
        self._give = give
        self._has_ended = False

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._give()
