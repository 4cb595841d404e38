"""Parses URLs from untrusted sources strictly, and decides which addresses may be connected to.

URL parsers disagree about unusual URLs, so a check of one parser's result does not protect a connection made with
another's. A URL is parsed once, into the pieces that are used for the connection. A URL with two possible readings is
refused, not repaired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable


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
