"""Decides to which addresses of workers a gateway may connect for live text.

A worker chooses its address, so without these rules it could make gateways connect anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote

from tenure.domain.outbound import IPAddress, Networks, UrlRefused, parse_host

if TYPE_CHECKING:
    from collections.abc import Iterable

SESSION: Final = "session"
"""In the setting of the networks: the address from which the session's connection comes."""

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):(?P<port>[1-9][0-9]{0,4})")
_PEER: Final = re.compile(r"ipv[46]:(?P<host>.+):[0-9]+")
_SCHEMES: Final = frozenset(("dns", "google-c2p", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds"))
"""Names that gRPC reads as the scheme of a target: `unix:1` is a socket in the file system."""
_KINDS: Final = Networks()
_NEVER: Final = frozenset({"unspecified", "link-local", "cloud metadata", "multicast", "tunnel"})
_METADATA: Final = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Addresses of clouds' metadata services in networks that are otherwise private."""
_BROADCAST: Final = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class LiveAddress:
    """An address of a worker. `host`: a name in lower case, or a canonical IP address without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads host:port. Raises ValueError with a message for people, also for addresses that are never allowed."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 0xFFFF or match["host"].lower() in _SCHEMES:
            raise ValueError("must be host:port, with a DNS name, an IPv4 address or an IPv6 address in brackets")
        try:
            address = cls(parse_host(match["host"]), int(match["port"]))
        except UrlRefused as error:
            raise ValueError(str(error)) from error
        if address.ip is not None and (kind := _kind_never_allowed(address.ip)):
            raise ValueError(f"{address.host} is refused ({kind}): gateways do not connect to such an address")
        return address

    @property
    def ip(self) -> IPAddress | None:
        """The IP address; None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    def at(self, ip: IPAddress) -> LiveAddress:
        """Returns the same port of an IP address that the name resolved to."""
        return LiveAddress(str(ip), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def problem_of(text: str) -> str | None:
    """Returns what is wrong with an address that a worker wants to advertise, or None."""
    try:
        LiveAddress.parse(text)
    except ValueError as error:
        return str(error)
    return None


def refusal_of(ip: IPAddress, *, allows_loopback: bool) -> str | None:
    """Returns why a gateway must not connect to the address, or None if it may."""
    kind = _kind_never_allowed(ip)
    if kind is None and not allows_loopback and _is_loopback(ip):
        kind = "loopback"
    return None if kind is None else f"{ip} is refused ({kind})"


def peer_ip(peer: str) -> IPAddress | None:
    """Returns the IP address of a connection as gRPC names it (`ipv4:10.0.0.1:4711`); None: it has none."""
    match = _PEER.fullmatch(peer)
    try:
        return _plain(ip_address(unquote(match["host"]).strip("[]"))) if match else None
    except ValueError:
        return None


def is_from_this_machine(connected_from: IPAddress | None) -> bool:
    """Whether a connection comes from the machine of the server."""
    return connected_from is not None and _is_loopback(connected_from)


class LiveNetworks:
    """The setting that limits live addresses further. Empty: all that `refusal_of` allows.

    `allowed`: networks (`10.0.0.0/8`), and `session`. Raises ValueError for another text.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        texts = tuple(allowed)
        self._networks = [_network(text) for text in texts if text != SESSION]
        self._allows_session = SESSION in texts

    def __bool__(self) -> bool:
        """Whether there is a limit."""
        return bool(self._networks) or self._allows_session

    def allow(self, ip: IPAddress, connected_from: IPAddress | None) -> bool:
        """Whether a worker that connects from `connected_from` may advertise the address."""
        if not self:
            return True
        return (self._allows_session and _plain(ip) == connected_from) or any(
            _plain(ip).version == network.version and _plain(ip) in network for network in self._networks
        )


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither {SESSION!r} nor a network such as 10.0.0.0/8 ({error})") from error


def _kind_never_allowed(ip: IPAddress) -> str | None:
    kind = _KINDS.refusal(_plain(ip))
    if _plain(ip) in _METADATA:
        return "cloud metadata"
    if _plain(ip) == _BROADCAST:
        return "broadcast"
    return kind if kind in _NEVER else None


def _is_loopback(ip: IPAddress) -> bool:
    return _KINDS.refusal(_plain(ip)) == "loopback"


def _plain(ip: IPAddress) -> IPAddress:
    """Returns an IPv4 address that is written as an IPv6 address as an IPv4 address."""
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if mapped is None else mapped
