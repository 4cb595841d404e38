"""The settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.gateway.client_addresses import Network, read_networks
from tenure.runtime.settings import Address, setting


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """The settings of the HTTP server, under TENURE_GATEWAY_HTTP_."""

    listen: Address | None = setting("the address to serve HTTP on; empty: no HTTP", default=None)
    mcp_max_cost: float = setting(
        "most dollars of one submit by the Model Context Protocol at /mcp; 0: no /mcp", default=1.0, minimum=0
    )
    mcp_approvals: bool = setting("clients of /mcp may answer waits for an approval, not only questions", default=False)
    cors_origins: tuple[str, ...] = setting("origins of web pages that may call, such as https://a.example", default=())
    trusted_proxies: tuple[str, ...] = setting(
        "networks of reverse proxies whose X-Forwarded-For counts, such as 10.0.0.0/8", default=()
    )
    connections: int = setting("most open connections", default=10_000, minimum=1)
    address_connections: int = setting(
        "most open connections of one address; a trusted proxy has no limit of its own", default=1000, minimum=1
    )

    @property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of trusted proxies."""
        return read_networks(self.trusted_proxies)

    def problems(self) -> Iterator[str]:
        """Yields the relations that do not hold."""
        for origin in self.cors_origins:
            if not _is_origin(origin):
                yield f"TENURE_GATEWAY_HTTP_CORS_ORIGINS: {origin} is not an origin; write for example https://a.example"
        for network in self.trusted_proxies:
            try:
                read_networks([network])
            except ValueError as error:
                yield f"TENURE_GATEWAY_HTTP_TRUSTED_PROXIES: {error}; write for example 10.0.0.0/8"


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:  # half of the brackets of an IPv6 address
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"
