"""Where webhooks may go: public addresses, and those that the installation's operator allows.

The name is resolved and its addresses are judged at the moment of connecting, and the connection is made to the very
address that was judged: a name that answers differently a moment later leads nowhere else.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final

import httpcore2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    IPAddress = IPv4Address | IPv6Address

MOST_ADDRESSES: Final = 4
"""Of one host that are tried in turn."""
MOST_LOOKUPS: Final = 16
"""At once: a name server that falls silent holds a thread for each."""

_NAT64: Final = IPv6Network("64:ff9b::/96")


class Networks:
    """What may be reached besides public addresses. Raises ValueError for what is no network."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = [ip_network(text) for text in allowed]

    def allow(self, address: IPAddress) -> bool:
        """Whether a connection may be made to it."""
        if any(address.version == one.version and address in one for one in self._allowed):
            return True
        inner = _inner(address)
        if inner is not None:
            return self.allow(inner)
        return address.is_global and not address.is_multicast

    def may_be(self, host: str) -> bool:
        """Whether the host of a URL may be sent to, as far as it can be told without resolving it."""
        try:
            return self.allow(ip_address(host))
        except ValueError:
            return host.rstrip(".") != "localhost" or self.allow(IPv4Address("127.0.0.1"))


def _inner(address: IPAddress) -> IPv4Address | None:
    """The address of the old world that one of the new one leads to."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to allowed addresses only."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._inner = httpcore2.AnyIOBackend()
        # Threads of its own: the default ones are shared with everything else that the process does.
        self._lookups = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="webhook-lookup")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises ConnectError, and ConnectTimeout for a single address. The caller bounds the whole."""
        addresses = await self._resolve(host, port)
        allowed = [one for one in addresses if self._networks.allow(one)]
        if not allowed:
            raise httpcore2.ConnectError(f"webhooks may not reach {', '.join(map(str, addresses[:MOST_ADDRESSES]))}")
        problem: Exception | None = None
        for address in allowed[:MOST_ADDRESSES]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        assert problem is not None, "there was an address"
        raise problem

    async def _resolve(self, host: str, port: int) -> Sequence[IPAddress]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"the name {host} cannot be resolved: {error}") from error
        return list(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in found))

    def close(self) -> None:
        """Look-ups under way are left to their end; nothing waits for them."""
        self._lookups.shutdown(wait=False, cancel_futures=True)
