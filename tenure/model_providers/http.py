"""Opens the HTTP client of a model provider."""

from __future__ import annotations

from typing import Final

import aiohttp
import httpx2

MAX_CONNECTIONS: Final = 4096
CONNECT_TIMEOUT_SECONDS: Final = 5.0

HTTP_ERRORS: Final = (httpx2.HTTPError, aiohttp.ClientError)
"""The errors of the client: the transport passes on those of aiohttp that httpx2 has no name for."""

_NO_CONNECTION: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def made_no_connection(error: BaseException | None) -> bool:
    """Whether an error says that no connection was made, so that no byte of the request was sent.

    It is known from the error of aiohttp: httpx2's ConnectError also stands for a server that closed the connection.
    """
    while error is not None and not isinstance(error, _NO_CONNECTION):
        error = error.__cause__
    return error is not None


def open_http_client(silence_seconds: float | None) -> httpx2.AsyncClient:
    """Returns a client with a pool of its own. `silence_seconds`: the longest wait for the next bytes; None: no limit.

    It is httpx2 with the transport of aiohttp. The transport of httpx2 itself looks at every connection for each
    request and parses in Python.
    """
    import anthropic  # slow to import: a process that calls no provider does without

    return anthropic.DefaultAioHttpClient(
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        timeout=httpx2.Timeout(silence_seconds, connect=CONNECT_TIMEOUT_SECONDS),
    )
