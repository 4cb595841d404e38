"""Connections to strangers: made to the very address that was judged, however a name answers a moment later.

The name is resolved once, all its addresses are judged at that moment, and a judged address is dialled. TLS is still
spoken with the name: it is the name that the certificate has to be for.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import httpcore2

from tenure.runtime.h11_patterns import read_in_one_pass
from tenure.runtime.stranger_stream import StrangerStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tenure.domain.addresses import IPAddress, Networks

MOST_ADDRESSES: Final = 4
"""Of one host that are tried in turn."""
ADDRESS_SECONDS: Final = 2.0
"""For one address while there are others to be tried."""
MOST_LOOKUPS: Final = 16
"""At once: a name server that falls silent holds a thread for each."""

if TYPE_CHECKING:
    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(httpcore2.ConnectError):
    """No connection was made. `kind`: what kind of address the host leads to."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Unresolved(httpcore2.ConnectError):
    """The name has no address, or nobody who knows it answers."""


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to allowed addresses only. `what`: who goes there, in words, as in "webhooks"."""

    def __init__(
        self,
        networks: Networks,
        what: str,
        *,
        resolve: Resolve | None = None,
        dialer: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        read_in_one_pass()  # every client that strangers answer has this backend
        self._networks, self._what = networks, what
        self._dialer = dialer or httpcore2.AnyIOBackend()
        # Threads of its own: the default ones are shared with everything else that the process does.
        self._lookups = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="lookup")
        self._resolve = resolve or self._look_up

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises AddressRefused, Unresolved, ConnectError, and ConnectTimeout. `timeout`: for all of it, in seconds."""
        try:
            async with asyncio.timeout(timeout) as limit:
                judged = self._judged(await self._addresses(host, port))[:MOST_ADDRESSES]
                return await self._dial(judged, port, limit.when(), local_address, socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error

    async def _dial(
        self, addresses: Sequence[IPAddress], port: int, until: float | None, *how: Any
    ) -> httpcore2.AsyncNetworkStream:
        """The first that answers. One that is silent leaves the others their time."""
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            left_seconds = None if until is None else until - asyncio.get_running_loop().time()
            try:
                return StrangerStream(
                    await self._dialer.connect_tcp(str(address), port, _share_seconds(left_seconds, others), *how)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if not others:
                    raise
        raise AssertionError("there was an address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Never: it is on this machine."""
        raise AddressRefused(f"{self._what} may not reach sockets of this machine", "local")

    async def sleep(self, seconds: float) -> None:
        """Between attempts."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        """Each once. An address leads to itself."""
        try:
            return [ip_address(host)]
        except ValueError:
            found = await self._resolve(host, port)
        if not found:
            raise Unresolved(f"the name {host} has no address")
        return list(dict.fromkeys(ip_address(text.partition("%")[0]) for text in found))

    def _judged(self, addresses: list[IPAddress]) -> list[IPAddress]:
        refusals = {address: self._networks.refusal(address) for address in addresses}
        allowed = [address for address in addresses if refusals[address] is None]
        if allowed:
            return allowed
        shown = ", ".join(map(str, addresses[:MOST_ADDRESSES]))
        raise AddressRefused(f"{self._what} may not reach {shown}", refusals[addresses[0]] or "")

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise Unresolved(f"the name {host} cannot be resolved: {error}") from error
        return [str(place[0]) for *_, place in found]

    def close(self) -> None:
        """Look-ups under way are left to their end. That is not waited for here, but by the interpreter when it exits:
        a silent name server may hold it up for as long as the resolver's own timeout.
        """
        self._lookups.shutdown(wait=False, cancel_futures=True)


def _share_seconds(left_seconds: float | None, others: int) -> float | None:
    """Of the time that is left, for one address of several; None is without a bound of its own."""
    if not others:
        return left_seconds
    return ADDRESS_SECONDS if left_seconds is None else min(ADDRESS_SECONDS, max(left_seconds, 0.0) / (others + 1))
