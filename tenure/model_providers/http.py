"""Opens the HTTP client of a model provider."""

from __future__ import annotations

from typing import Final

import aiohttp
import anthropic
import httpx2

MAX_CONNECTIONS: Final = 4096
CONNECT_TIMEOUT_SECONDS: Final = 5.0

HTTP_ERRORS: Final = (httpx2.HTTPError, aiohttp.ClientError)
"""The errors of the client: the transport passes on those of aiohttp that httpx2 has no name for."""


def open_http_client(silence_seconds: float) -> httpx2.AsyncClient:
    """Returns a client with a pool of its own. `silence_seconds`: the longest wait for the next bytes.

    It is httpx2 with the transport of aiohttp. The transport of httpx2 itself looks at every connection for each
    request and parses in Python.
    """
    return anthropic.DefaultAioHttpClient(
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        timeout=httpx2.Timeout(silence_seconds, connect=CONNECT_TIMEOUT_SECONDS),
    )
