"""Whose request arrives: the client's address behind trusted proxies, and the part of it that limits count by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Returns networks, such as 10.0.0.0/8, or single addresses. Raises ValueError."""
    return tuple(map(ip_network, texts))


def client_address(peer: str, forwarded_for: Iterable[str], trusted: Sequence[Network]) -> str:
    """Returns the address of the client: of the peer, or the one that trusted proxies name.

    Each proxy adds the address that it sees at the end of X-Forwarded-For. So the last address that is not a trusted
    proxy's is the client's; what stands before it is the client's own text. `forwarded_for`: the headers, in order.
    """
    client = peer
    named = ",".join(forwarded_for).split(",")
    while named and is_trusted(client, trusted):
        address = _read_address(named.pop().strip())
        if address is None:  # no proxy writes this: the address of the proxy is all that is known
            break
        client = str(address)
    return client


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Whether the address is that of a trusted proxy."""
    read = _read_address(address)
    return read is not None and any(read.version == one.version and read in one for one in trusted)


def limited_place(address: str) -> str:
    """Returns what has one limit: an address, or the network of 64 bits that one customer has by IPv6."""
    read = _read_address(address)
    return str(IPv6Network((int(read) >> 64 << 64, 64)) if isinstance(read, IPv6Address) else read or address)


def _read_address(text: str) -> IPv4Address | IPv6Address | None:
    """Returns the address in a text, which may have a port. An IPv4 address inside of IPv6 is an IPv4 address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
