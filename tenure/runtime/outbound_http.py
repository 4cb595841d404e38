"""Bounded requests to strangers: to checked addresses, through no proxy, with no cookies, redirected nowhere."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self

import httpcore2
from h11 import _readers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from tenure.domain.outbound import IPAddress, Networks, Url


# h11 reads header lines and chunk headers with patterns that strangers can make take the square of a line's length.

# By the name in h11, what of the pattern is ambiguous, and the same without that.
_LINEAR: Final = {
    "header_field_re": (rb":[ \t]*(?P<field_value>", rb":[ \t]*+(?P<field_value>"),
    "chunk_header_re": (rb"(?P<chunk_ext>;.*)?[ \t]*\r\n", rb"(?:(?P<chunk_ext>;.*)|[ \t]*)\r\n"),
}


def read_in_one_pass() -> None:
    """For the whole process, and every client in it that speaks through h11. To be called before one connects; again
    does nothing. A release of h11 that has other patterns keeps them: tests say whether they are any better.
    """
    for name, (ambiguous, linear) in _LINEAR.items():
        pattern: re.Pattern[bytes] | None = getattr(_readers, name, None)
        if pattern is not None and ambiguous in pattern.pattern:
            setattr(_readers, name, re.compile(pattern.pattern.replace(ambiguous, linear)))


# A connection to a stranger that takes no more than its share of the process: the event loop's time, and sockets.

MOST_READ_BYTES: Final = 16 * 1024
"""At once. A stranger may cut them into thousands of pieces, which are all taken apart in one turn of the loop."""


class UntrustedStream(httpcore2.AsyncNetworkStream):
    """Wraps one that was just connected."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """A part of what came, in a turn of its own: what TLS holds ready would be handed out without one."""
        await asyncio.sleep(0)
        return await self._inner.read(min(max_bytes, MOST_READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As the one within."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """As the one within."""
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """The socket is closed when it does not come to that, also when nobody waits for it any more: the one within
        closes it on failures only, and whoever asked for TLS does not have it yet.
        """
        try:
            secured = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._inner.aclose()
            raise
        return UntrustedStream(secured)

    def get_extra_info(self, info: str) -> Any:
        """As the one within."""
        return self._inner.get_extra_info(info)


# Connections to strangers: made to the very address that was judged, however a name answers a moment later.

MOST_ADDRESSES: Final = 4
"""Of one host that are tried in turn."""
ADDRESS_SECONDS: Final = 2.0
"""For one address while there are others to be tried."""
MOST_LOOKUPS: Final = 16
"""At once: a name server that falls silent holds a thread for each."""

if TYPE_CHECKING:
    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(httpcore2.ConnectError):
    """No connection was made. `kind`: what kind of address the host leads to."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Unresolved(httpcore2.ConnectError):
    """The name has no address, or nobody who knows it answers."""


class CheckedNetworkBackend(httpcore2.AsyncNetworkBackend):
    """Connects to allowed addresses only. `what`: who goes there, in words, as in "webhooks"."""

    def __init__(
        self,
        networks: Networks,
        what: str,
        *,
        resolve: Resolve | None = None,
        dialer: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        read_in_one_pass()  # every client that strangers answer has this backend
        self._networks, self._what = networks, what
        self._dialer = dialer or httpcore2.AnyIOBackend()
        # Threads of its own: the default ones are shared with everything else that the process does.
        self._lookups = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="lookup")
        self._resolve = resolve or self._look_up

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises AddressRefused, Unresolved, ConnectError, and ConnectTimeout. `timeout`: for all of it, in seconds."""
        try:
            async with asyncio.timeout(timeout) as limit:
                judged = self._judged(await self._addresses(host, port))[:MOST_ADDRESSES]
                return await self._dial(judged, port, limit.when(), local_address, socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error

    async def _dial(
        self, addresses: Sequence[IPAddress], port: int, until: float | None, *how: Any
    ) -> httpcore2.AsyncNetworkStream:
        """The first that answers. One that is silent leaves the others their time."""
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            left_seconds = None if until is None else until - asyncio.get_running_loop().time()
            try:
                return UntrustedStream(
                    await self._dialer.connect_tcp(str(address), port, _share_seconds(left_seconds, others), *how)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if not others:
                    raise
        raise AssertionError("there was an address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Never: it is on this machine."""
        raise AddressRefused(f"{self._what} may not reach sockets of this machine", "local")

    async def sleep(self, seconds: float) -> None:
        """Between attempts."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        """Each once. An address leads to itself."""
        try:
            return [ip_address(host)]
        except ValueError:
            addresses = await self._resolve(host, port)
        if not addresses:
            raise Unresolved(f"the name {host} has no address")
        return list(dict.fromkeys(ip_address(text.partition("%")[0]) for text in addresses))

    def _judged(self, addresses: list[IPAddress]) -> list[IPAddress]:
        refusals = {address: self._networks.refusal(address) for address in addresses}
        allowed = [address for address in addresses if refusals[address] is None]
        if allowed:
            return allowed
        shown = ", ".join(map(str, addresses[:MOST_ADDRESSES]))
        raise AddressRefused(f"{self._what} may not reach {shown}", refusals[addresses[0]] or "")

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.run_in_executor(
                self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise Unresolved(f"the name {host} cannot be resolved: {error}") from error
        return [str(place[0]) for *_, place in infos]

    def close(self) -> None:
        """Look-ups under way are left to their end. That is not waited for here, but by the interpreter when it exits:
        a silent name server may hold it up for as long as the resolver's own timeout.
        """
        self._lookups.shutdown(wait=False, cancel_futures=True)


def _share_seconds(left_seconds: float | None, others: int) -> float | None:
    """Of the time that is left, for one address of several; None is without a bound of its own."""
    if not others:
        return left_seconds
    return ADDRESS_SECONDS if left_seconds is None else min(ADDRESS_SECONDS, max(left_seconds, 0.0) / (others + 1))


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
class HttpResponse:
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
        backend: CheckedNetworkBackend,
        *,
        most_connections: int,
        kept_alive_seconds: float = 0.0,
        ca_file: str | None = None,
    ) -> None:
        self._backend = backend
        self._connections = httpcore2.AsyncConnectionPool(
            ssl_context=tls_context(ca_file),
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
    ) -> AsyncIterator[HttpResponse]:
        """One request; the connection is given up when the block is left. The caller bounds the whole in time.
        `connect_seconds`: for a place in the pool, and for the connection. `going_out` is called right before the first
        byte of the request is written; before that nothing was sent.

        The URL's pieces are dialled as they are: nobody reads it a second time.
        """
        pieces = httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        )

        async def note(event: str, _info: dict[str, Any]) -> None:
            if event == _GOES_OUT and going_out is not None:
                going_out()

        async with self._connections.stream(
            method,
            pieces,
            headers=[("host", url.authority), *headers],
            content=body if method != "GET" else None,
            extensions={"timeout": dict.fromkeys(("connect", "pool"), connect_seconds), "trace": note},
        ) as response:
            response_headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            yield HttpResponse(response.status, response_headers, response)


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
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
