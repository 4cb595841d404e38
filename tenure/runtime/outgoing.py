"""Bounded requests to strangers: to checked addresses, through no proxy, with no cookies, redirected nowhere."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import httpcore2

from tenure.runtime.checked_network import CheckedBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tenure.domain.urls import Url

FAILURES: Final = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, OSError)
"""What a request raises that failed. OSError: of TLS in the middle of an answer."""

READABLE_ENCODINGS: Final = "gzip, deflate"
"""For Accept-Encoding. Others cannot be unpacked within a bound by what every Python has."""

TINY_BYTES: Final = 32
MOST_TINY_PIECES: Final = 4096
"""Pieces of a body that have fewer than TINY_BYTES on average are taken up to so many: each costs what a long one does.
"""

_PIECES_A_TURN: Final = 128
_GOES_OUT: Final = "http11.send_request_headers.started"
_AUTOMATIC: Final = 32 + zlib.MAX_WBITS  # gzip or zlib, by what it begins with
_RAW: Final = -zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8
_GZIP: Final = b"\x1f\x8b"


class BadEncoding(ValueError):  # noqa: N818  it says what is bad
    """A body is encoded in a way that is not read, or not as it says."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, and its body, unread. Headers by their names in lower case, the last of each."""

    status: int
    headers: dict[str, str]
    response: httpcore2.Response

    async def read(self, most_bytes: int) -> Body:
        """At most so many bytes, received and unpacked; less of one that comes in endless tiny pieces. Raises
        BadEncoding, and what a request raises.
        """
        unpacking = _Unpacking(self.headers.get("content-encoding", ""), most_bytes)
        received_bytes = pieces = 0
        async for some in self.response.aiter_stream():
            received_bytes += len(some)
            pieces += 1
            unpacking.add(some)
            is_crumbled = pieces > MOST_TINY_PIECES + received_bytes // TINY_BYTES
            if received_bytes > most_bytes or unpacking.is_full or is_crumbled:
                return Body(bytes(unpacking.content[:most_bytes]), is_whole=False)
            if pieces % _PIECES_A_TURN == 0:
                await asyncio.sleep(0)  # none of them may have been waited for
        unpacking.end()
        return Body(bytes(unpacking.content), is_whole=True)


@dataclass(frozen=True, slots=True)
class Body:
    """Unpacked. `is_whole`: nothing is missing at its end."""

    content: bytes
    is_whole: bool


class Outgoing:
    """Connections to strangers, for one purpose, while its `async with` is open."""

    def __init__(
        self,
        backend: CheckedBackend,
        *,
        most_connections: int,
        kept_alive_seconds: float = 0.0,
        ca_file: str | None = None,
    ) -> None:
        self._backend = backend
        self._connections = httpcore2.AsyncConnectionPool(
            ssl_context=trust(ca_file),
            max_connections=most_connections,
            max_keepalive_connections=None if kept_alive_seconds else 0,
            keepalive_expiry=kept_alive_seconds,
            network_backend=backend,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()
        self._backend.close()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: Url,
        headers: Sequence[tuple[str, str]],
        body: bytes | None = b"",
        *,
        connect_seconds: float | None = None,
        going_out: Callable[[], None] | None = None,
    ) -> AsyncIterator[Answer]:
        """One request; the connection is given up when the block is left. The caller bounds the whole in time.
        `connect_seconds`: for a place in the pool, and for the connection. `going_out` is called right before the first
        byte of the request is written; before that nothing was sent.

        The URL's pieces are dialled as they are: nobody reads it a second time.
        """
        pieces = httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        )

        async def note(event: str, _told: dict[str, Any]) -> None:
            if event == _GOES_OUT and going_out is not None:
                going_out()

        async with self._connections.stream(
            method,
            pieces,
            headers=[("host", url.authority), *headers],
            content=body if method != "GET" else None,
            extensions={"timeout": dict.fromkeys(("connect", "pool"), connect_seconds), "trace": note},
        ) as response:
            told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            yield Answer(response.status, told, response)


def trust(ca_file: str | None = None) -> ssl.SSLContext:
    """What the machine trusts, and the authorities in the file. A certificate is for the names in its own list of them:
    that OpenSSL would else take its common name for one is a custom that browsers have given up.
    """
    context = httpcore2.default_ssl_context()
    context.hostname_checks_common_name = False
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


class _Unpacking:
    """Of one body, until more than `most_bytes` came out. A bomb is not unpacked beyond that."""

    def __init__(self, encoding: str, most_bytes: int) -> None:
        self.content = bytearray()
        self._most_bytes = most_bytes
        self._encoding = encoding.strip().lower()
        self._decoder: zlib._Decompress | None = None
        self._held = b""
        if self._encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise BadEncoding(f"its body is encoded as {self._encoding[:40]}, which is not read")

    @property
    def is_full(self) -> bool:
        return len(self.content) > self._most_bytes

    def add(self, some: bytes) -> None:
        if self._encoding in {"", "identity"}:
            self.content += some
            return
        some, self._held = self._held + some, b""
        try:
            while some and not self.is_full:
                some = self._unpack(some)
        except zlib.error as error:
            raise BadEncoding(f"its body is not {self._encoding} as it says") from error

    def end(self) -> None:
        """Nothing comes any more."""
        if self._decoder is not None and not self._decoder.eof:
            raise BadEncoding("its body ends in the middle")

    def _unpack(self, some: bytes) -> bytes:
        """What of it is left."""
        if self._decoder is not None and self._decoder.eof:
            if len(some) < len(_GZIP):
                self._held = some
            if not some.startswith(_GZIP):
                return b""  # filling
            self._decoder = None  # files of gzip may follow each other
        if self._decoder is None:
            self._decoder = zlib.decompressobj(self._window(some))
        self.content += self._decoder.decompress(some, self._most_bytes + 1 - len(self.content))
        return self._decoder.unconsumed_tail or self._decoder.unused_data

    def _window(self, some: bytes) -> int:
        """`deflate` is zlib by the standard, and raw by the habit of some."""
        is_zlib = some[0] & 0x0F == _ZLIB_METHOD and (len(some) < 2 or int.from_bytes(some[:2]) % 31 == 0)
        return _RAW if self._encoding == "deflate" and not is_zlib else _AUTOMATIC
