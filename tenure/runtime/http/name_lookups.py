"""Looks up the addresses of names that strangers chose. A name whose servers are silent delays no other name.

The resolver of the machine would hold a thread for each look-up, and cannot be cancelled.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import ip_address
from socket import SOCK_STREAM
from typing import Final, NamedTuple, Self

import aiodns
import httpcore2

from tenure.domain.outbound import IPAddress

LOOKUP_SECONDS: Final = 5.0
"""The limit of one look-up, however many name servers are asked."""
FAILURE_SECONDS: Final = 5.0
"""How long a failure is the answer for the same name: a name that fails is not asked for again at once."""
MAX_FAILURES: Final = 1024
_TRY_SECONDS: Final = 2.0
_TRIES: Final = 2


class Unresolved(httpcore2.ConnectError):
    """The name has no address, or no name server answers."""


class _Answer(NamedTuple):
    """The addresses of a name, or why there is none and until when that is the answer."""

    addresses: list[str]
    problem: str = ""
    until: float = 0.0


@dataclass(slots=True)
class NameLookups:
    """The look-ups of one event loop: at most one of each name at a time, by DNS and the file of hosts."""

    _running: dict[str, asyncio.Task[_Answer]] = field(default_factory=dict)
    _failures: OrderedDict[str, _Answer] = field(default_factory=OrderedDict)
    _resolver: aiodns.DNSResolver | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ip_addresses(self, host: str, within_seconds: float) -> list[IPAddress]:
        """Returns the addresses of a name. Raises Unresolved, also when the time is over."""
        try:
            async with asyncio.timeout(within_seconds):
                return [ip_address(each) for each in await self.addresses(host, 0)]
        except TimeoutError:
            raise Unresolved(f"the name {host} was not resolved within {within_seconds:g} s") from None

    async def addresses(self, host: str, _port: int) -> list[str]:
        """Returns the addresses of a name within LOOKUP_SECONDS. Raises Unresolved."""
        answer = self._failures.get(host)
        if answer is None or answer.until <= asyncio.get_running_loop().time():
            # others may wait for it too, so it outlives a caller that is cancelled
            answer = await asyncio.shield(self._one_at_a_time(host))
        if answer.problem:
            raise Unresolved(f"the name {host} cannot be resolved: {answer.problem}")
        return answer.addresses

    def _one_at_a_time(self, host: str) -> asyncio.Task[_Answer]:
        running = self._running.get(host)
        if running is None:
            running = self._running[host] = asyncio.ensure_future(self._look_up(host))
            running.add_done_callback(lambda _: self._running.pop(host))
        return running

    async def _look_up(self, host: str) -> _Answer:
        if self._resolver is None:
            self._resolver = aiodns.DNSResolver(timeout=_TRY_SECONDS, tries=_TRIES)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                resolved = await self._resolver.getaddrinfo(host, type=SOCK_STREAM)
        except TimeoutError:
            return self._failed(host, f"no name server answered within {LOOKUP_SECONDS:g} s")
        except (aiodns.error.DNSError, UnicodeError) as error:
            return self._failed(host, str(error.args[-1]))
        addresses = [node.addr[0].decode() for node in resolved.nodes]
        return _Answer(addresses) if addresses else self._failed(host, "it has no address")

    def _failed(self, host: str, problem: str) -> _Answer:
        answer = _Answer([], problem, asyncio.get_running_loop().time() + FAILURE_SECONDS)
        self._failures[host] = answer
        self._failures.move_to_end(host)
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        return answer

    async def close(self) -> None:
        """Ends running look-ups."""
        for running in self._running.values():
            running.cancel()
        if self._resolver is not None:
            await self._resolver.close()
