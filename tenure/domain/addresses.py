"""Where requests to strangers may go: public addresses, and networks that the operator allows.

Python's own `is_global` differs between its releases, so the special ranges are written down here, as IANA's registries
of special-purpose addresses have them, with the addresses at which clouds serve their machines' credentials.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

IPAddress: TypeAlias = IPv4Address | IPv6Address

EVERYWHERE: Final = ("0.0.0.0/0", "::/0")
"""Allowed networks for addresses that an operator has written down personally."""

_KINDS_V4: Final = {
    "unspecified": ("0.0.0.0/8",),
    "loopback": ("127.0.0.0/8",),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    "link-local": ("169.254.0.0/16",),
    "carrier-grade NAT": ("100.64.0.0/10",),
    "cloud metadata": ("168.63.129.16/32",),
    "multicast": ("224.0.0.0/4",),
    "reserved": ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4"),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
}
_KINDS_V6: Final = {
    "unspecified": ("::/128",),
    "loopback": ("::1/128",),
    "private": ("fc00::/7", "fec0::/10", "64:ff9b:1::/48"),
    "link-local": ("fe80::/10",),
    "multicast": ("ff00::/8",),
    "tunnel": ("2001::/32", "2002::/16"),  # Teredo and 6to4 lead to a machine of the old world, through strangers
    "documentation": ("2001:db8::/32", "3fff::/20"),
    "reserved": ("2001::/23",),
}
_SPECIAL_V4: Final = [(kind, IPv4Network(text)) for kind, texts in _KINDS_V4.items() for text in texts]
_SPECIAL_V6: Final = [(kind, IPv6Network(text)) for kind, texts in _KINDS_V6.items() for text in texts]
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOOPBACK: Final = IPv4Address("127.0.0.1")


class Networks:
    """What may be reached besides public addresses. Raises ValueError for what is no network."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = [ip_network(text) for text in allowed]

    def allow(self, address: IPAddress) -> bool:
        """Whether a connection may be made to it."""
        return self.refusal(address) is None

    def refusal(self, address: IPAddress) -> str | None:
        """What kind of address it is that a connection may not be made to; None for one that may be reached.

        An address of the old world is judged by itself, however the new world spells it.
        """
        if any(address.version == one.version and address in one for one in self._allowed):
            return None
        if isinstance(address, IPv4Address):
            return next((kind for kind, network in _SPECIAL_V4 if address in network), None)
        inner = _inner(address)
        if inner is not None:
            return self.refusal(inner)
        special = next((kind for kind, network in _SPECIAL_V6 if address in network), None)
        return special or (None if address in _GLOBAL_V6 else "reserved")

    def may_be(self, host: str) -> bool:
        """Whether the host of a URL may be sent to, as far as it can be told without resolving it."""
        try:
            return self.allow(ip_address(host))
        except ValueError:
            name = host.rstrip(".").lower()
            return not (name == "localhost" or name.endswith(".localhost")) or self.allow(_LOOPBACK)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The address of the old world that this one is only another spelling of."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
