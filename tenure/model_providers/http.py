"""Opens the HTTP client of a model provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import httpx2

from tenure.model_providers.stream import MAX_STREAM_BYTES
from tenure.runtime.http.body_decoder import READABLE_ENCODINGS, BadEncoding, BodyDecoder
from tenure.runtime.http.outbound_http import http_tls_context

MAX_CONNECTIONS: Final = 4096
CONNECT_TIMEOUT_SECONDS: Final = 5.0
MAX_BODY_BYTES: Final = 2 * MAX_STREAM_BYTES
"""The limit of a body: above that of a stream, which has its own words for it."""
MAX_REFUSAL_BYTES: Final = 64 * 1024
"""How much is read of the body of a refusal. The status decides, and the ledger keeps 2,000 characters."""

HTTP_ERRORS: Final = (httpx2.HTTPError, aiohttp.ClientError)
"""The errors of the client: the transport passes on those of aiohttp that httpx2 has no name for."""

LARGE_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 256 * 1024

_NO_CONNECTION: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def made_no_connection(error: BaseException | None) -> bool:
    """Whether an error says that no connection was made, so that no byte of the request was sent.

    It is known from the error of aiohttp: httpx2's ConnectError also stands for a server that closed the connection.
    """
    while error is not None and not isinstance(error, _NO_CONNECTION):
        error = error.__cause__
    return error is not None


def timeout_of(silence_seconds: float | None) -> httpx2.Timeout:
    """Returns the timeout of a request. `silence_seconds`: the longest wait for the next bytes; None: no limit."""
    return httpx2.Timeout(silence_seconds, connect=CONNECT_TIMEOUT_SECONDS)


def open_http_client() -> httpx2.AsyncClient:
    """Returns a client with a pool of its own. Each request sets its timeout.

    It is httpx2 with the transport of aiohttp. The transport of httpx2 itself looks at every connection for each
    request and parses in Python.
    """
    import anthropic  # slow to import: a process that calls no provider does without

    return anthropic.DefaultAioHttpClient(
        verify=http_tls_context(),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        timeout=timeout_of(None),
        follow_redirects=False,  # the prompt, the key and all other headers would go to any host
        headers={"accept-encoding": READABLE_ENCODINGS},
        event_hooks={"request": [_send_in_pieces], "response": [_bound_body]},
    )


async def _send_in_pieces(request: httpx2.Request) -> None:
    """Sends a large body, such as one with images, in pieces: other calls go on meanwhile."""
    content = request.content
    if len(content) > LARGE_BYTES:
        request.stream = _Pieces(content)
        del request._content  # noqa: SLF001  what is read already is sent at once


class _Pieces(httpx2.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the pieces."""
        for at in range(0, len(self._content), PIECE_BYTES):
            yield bytes(self._content[at : at + PIECE_BYTES])


# The libraries of the vendors read the body of a refusal whole, and unpack it: an endpoint could fill the memory.


async def _bound_body(response: httpx2.Response) -> None:
    """Bounds the body, as received and as unpacked, before the library reads it."""
    inner, encoding = response.stream, response.headers.pop("content-encoding", "")
    assert isinstance(inner, httpx2.AsyncByteStream)
    response.stream = _BoundedBody(inner, encoding, is_refusal=not response.is_success)


class _BoundedBody(httpx2.AsyncByteStream):
    """An unpacked body. One of a refusal ends at its limit, because the status is enough; an answer breaks there."""

    def __init__(self, inner: httpx2.AsyncByteStream, encoding: str, *, is_refusal: bool) -> None:
        self._inner, self._encoding, self._is_refusal = inner, encoding, is_refusal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the unpacked body. Raises httpx2.ReadError."""
        try:
            async for chunk in self._unpacked():
                yield chunk
        except BadEncoding as error:
            if not self._is_refusal:
                raise httpx2.ReadError(f"the provider's answer cannot be read: {error}") from error

    async def _unpacked(self) -> AsyncIterator[bytes]:
        most_bytes = MAX_REFUSAL_BYTES if self._is_refusal else MAX_BODY_BYTES
        decoder = BodyDecoder(self._encoding, most_bytes)
        async for chunk in self._inner:
            decoder.add(chunk)
            yield decoder.take()
            if decoder.is_full:
                raise BadEncoding(f"its body has more than {most_bytes} bytes")
        decoder.end()

    async def aclose(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        await self._inner.aclose()
