"""Parses URLs from untrusted sources strictly, and decides which addresses may be connected to.

URL parsers disagree about unusual URLs, so a check of one parser's result does not protect a connection made with
another's. A URL is parsed once, into the pieces that are used for the connection. A URL with two possible readings is
refused, not repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit

# Allowed addresses: public ones, and networks that the operator allows.

IPAddress: TypeAlias = IPv4Address | IPv6Address

EVERYWHERE: Final = ("0.0.0.0/0", "::/0")
"""All networks: for addresses from the operator's own configuration."""

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
    "tunnel": ("2001::/32", "2002::/16"),  # Teredo and 6to4 lead to an IPv4 host through relays of third parties
    "documentation": ("2001:db8::/32", "3fff::/20"),
    "reserved": ("2001::/23",),
}
_SPECIAL_V4: Final = [(kind, IPv4Network(text)) for kind, texts in _KINDS_V4.items() for text in texts]
_SPECIAL_V6: Final = [(kind, IPv6Network(text)) for kind, texts in _KINDS_V6.items() for text in texts]
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOOPBACK: Final = IPv4Address("127.0.0.1")


class Networks:
    """The allowed addresses: public ones and `allowed`. Raises ValueError for an invalid network."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = [ip_network(text) for text in allowed]

    def allow(self, address: IPAddress) -> bool:
        """Whether a connection to the address is allowed."""
        return self.refusal(address) is None

    def refusal(self, address: IPAddress) -> str | None:
        """Returns the kind of a refused address, such as `loopback`, or None if the address is allowed.

        An IPv4 address inside an IPv6 address (mapped or NAT64) is checked as an IPv4 address.
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

    def may_reach_host(self, host: str) -> bool:
        """Whether the host of a URL may be reached, as far as this is known without resolving the name."""
        try:
            return self.allow(ip_address(host))
        except ValueError:
            name = host.rstrip(".").lower()
            return not (name == "localhost" or name.endswith(".localhost")) or self.allow(_LOOPBACK)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address that the IPv6 address contains, or None."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped


MAX_CHARACTERS: Final = 4096
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(:(?P<port>[1-9][0-9]{0,4}))?")
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NUMBER: Final = re.compile(r"([0-9]+|0x[0-9a-f]*)")
_SPACE_AND_CONTROL: Final = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")
_KEPT_IN_PATH: Final = "/%:@!$&'()*+,;=~"
_MAX_HOST_CHARACTERS: Final = 253


class UrlRefused(ValueError):  # noqa: N818  a ValueError, so that settings can be checked with parse_url
    """The URL is refused. `reason` is a code; the message is for people and models."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL. `host`: a name in lower case without a final dot, or a canonical address without brackets.

    `path` begins with a slash and has no dot segments.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def is_address(self) -> bool:
        """Whether the host is an address, not a name."""
        return ":" in self.host or self.host.replace(".", "").isdigit()

    @property
    def target(self) -> str:
        """The path and the query, as in the request line."""
        return self.path + (f"?{self.query}" if self.query else "")

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Parses a URL. Raises UrlRefused: BAD_URL, SCHEME_REFUSED, CREDENTIALS_IN_URL, ODD_HOST."""
    if len(text) > MAX_CHARACTERS:
        raise UrlRefused("BAD_URL", f"The URL is longer than {MAX_CHARACTERS} characters.")
    if _SPACE_AND_CONTROL.search(text):
        raise UrlRefused("BAD_URL", "The URL contains a space or a control character. Escape it, for example as %20.")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlRefused("BAD_URL", "This is not a complete URL. A URL begins with http:// or https:// and a host.")
    scheme = match["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise UrlRefused("SCHEME_REFUSED", f"Only http and https are supported, not {scheme[:40]}.")
    if not match["slashes"]:
        raise UrlRefused("BAD_URL", f"Two slashes must follow {scheme}:.")
    host, port = _read_authority(match["authority"])
    path, _, query = match["rest"].partition("#")[0].partition("?")
    return Url(scheme, host, port or DEFAULT_PORTS[scheme], _read_path(path), quote(query, safe=_KEPT_IN_PATH + "?"))


def is_loopback_host(host: str) -> bool:
    """Whether only processes of this machine are at the host: `localhost` or a loopback address, without brackets."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_clear_text(url: str) -> bool:
    """Whether others may read what is sent to the URL: it is http://, and not to this machine.

    Invalid URLs are not clear text: their readers refuse them.
    """
    try:
        parts = urlsplit(url.strip())
        return parts.scheme == "http" and not is_loopback_host(parts.hostname or "")
    except ValueError:
        return False


def origin_only(url: str) -> str:
    """Returns `https://host/…`: a URL without the parts that may be a secret. Invalid URLs are hidden completely."""
    scheme, separator, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}/…" if separator else "…"


def follow(base: Url, location: str) -> Url:
    """Returns the target of a redirect. Raises UrlRefused."""
    if _SPACE_AND_CONTROL.search(location):
        raise UrlRefused("BAD_URL", "The target of the redirect contains a space or a control character.")
    try:
        return parse_url(urljoin(str(base), location))
    except UrlRefused:
        raise
    except ValueError as error:  # of urljoin, for brackets that hold no address
        raise UrlRefused("BAD_URL", "The address it redirects to is not a URL.") from error


def parse_host(text: str) -> str:
    """Returns the canonical name or address. Raises UrlRefused (ODD_HOST) for any other notation."""
    if text.startswith("["):
        return _read_address_v6(text[1:-1])
    name = text.lower().removesuffix(".")
    if not name.isascii():
        raise UrlRefused("ODD_HOST", "The host must be in ASCII; write an international name in its xn-- form.")
    if len(name) > _MAX_HOST_CHARACTERS or not _NAME.fullmatch(name):
        raise UrlRefused("ODD_HOST", "The host is neither a name nor an address.")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _read_address_v4(name)
    return name


def _read_authority(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise UrlRefused("CREDENTIALS_IN_URL", "The URL must not hold a user, a password or an @ before the host.")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise UrlRefused("ODD_HOST", "The URL needs a host, and after a colon only a port.")
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > 0xFFFF:
        raise UrlRefused("BAD_URL", "The port must be at most 65535.")
    return parse_host(match["host"]), port


def _read_address_v4(text: str) -> str:
    """Accepts four decimal parts only. Resolvers also accept one number, hexadecimal and octal parts."""
    try:
        return str(IPv4Address(text))
    except ValueError as error:
        raise UrlRefused("ODD_HOST", "An IPv4 address must have four decimal parts.") from error


def _read_address_v6(text: str) -> str:
    try:
        return str(IPv6Address(text))
    except ValueError as error:
        raise UrlRefused("ODD_HOST", "The text between the brackets is not an IPv6 address.") from error


def _read_path(text: str) -> str:
    """Returns the path without dot segments, also escaped ones, and with the necessary escapes."""
    kept: list[str] = []
    segments = text.split("/")[1:]
    for position, segment in enumerate(segments):
        dots = unquote(segment)
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
            continue
        if position == len(segments) - 1:
            kept.append("")
    return quote("/" + "/".join(kept), safe=_KEPT_IN_PATH)


# Decides to which addresses of workers a gateway may connect for live text.
#
# A worker chooses its address, so without these rules it could make gateways connect anywhere.

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
