"""SOCKS proxies in the environment, which the clients of models cannot use as they are. Imports no provider."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_LIBRARIES: Final = ("pydantic_ai", "agents")
"""The libraries of agents, which make HTTP clients of their own."""


def problem_of_proxy(url: str) -> str | None:
    """Returns why an endpoint cannot be reached; "": a vendor's own. Its client speaks no SOCKS."""
    parts, proxies = urlsplit(url), getproxies()
    name = parts.scheme or "https"
    proxy = proxies.get(name) or proxies.get("all", "")
    if not _is_socks(proxy) or (parts.hostname and proxy_bypass(parts.hostname)):
        return None
    host = parts.hostname or "the provider's host"
    return (
        f"a SOCKS proxy is set ({name.upper()}_PROXY or ALL_PROXY), and calls of models cannot use one: set "
        f"{name.upper()}_PROXY to a proxy that speaks HTTP, or add {host} to NO_PROXY"
    )


def problem_of_agents_proxy() -> str | None:
    """Returns why the agents of this process could call no model: each task would fail when it makes its client."""
    if not any(map(_is_socks, getproxies().values())) or not any(map(sys.modules.__contains__, _LIBRARIES)):
        return None
    if find_spec("socksio") is not None:
        return None
    return (
        "a SOCKS proxy is set (ALL_PROXY, HTTPS_PROXY or HTTP_PROXY), and the clients of agents need the package "
        "socksio for it: install it, or set a proxy that speaks HTTP"
    )


def _is_socks(proxy: str) -> bool:
    return proxy.lower().startswith("socks")
