"""An HTTP client for untrusted servers: checked addresses, bounded answers, no proxy, no cookies, no redirects."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self

import httpcore2

from tenure.runtime.http.body_decoder import BodyDecoder
from tenure.runtime.http.h11_patterns import read_in_one_pass
from tenure.runtime.http.name_lookups import NameLookups, Unresolved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from tenure.domain.outbound import IPAddress, Networks, Url


_log: Final = logging.getLogger(__name__)

# A connection to an untrusted server, bounded in its use of the event loop and of sockets.

MAX_READ_BYTES: Final = 16 * 1024
"""The limit of one read. A server can cut these bytes into thousands of chunks, which one iteration of the event loop
parses.
"""


class Closings:
    """The streams that are being closed.

    The pool closes the connections that it has given up in a loop, and a cancellation of a wait in that loop would
    leave the others open. So a close begins at once, and only the end of the pool waits for it.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, stream: httpcore2.AsyncNetworkStream) -> None:
        """Begins to close the stream."""
        closing = asyncio.ensure_future(_closed(stream))
        self._running.add(closing)
        closing.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Waits until each stream is closed. A cancellation ends the wait, and no close."""
        if self._running:
            await asyncio.wait(self._running)


async def _closed(stream: httpcore2.AsyncNetworkStream) -> None:
    with suppress(*FAILURES):  # the server has ended the connection itself
        await stream.aclose()


class UntrustedStream(httpcore2.AsyncNetworkStream):
    """Wraps a newly connected stream."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, closings: Closings) -> None:
        self._inner, self._closings = inner, closings

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Returns a part of the received bytes, after an iteration of the event loop.

        Without that iteration, reads of bytes that TLS has already buffered would not yield to the loop.
        """
        await asyncio.sleep(0)
        return await self._inner.read(min(max_bytes, MAX_READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes to the wrapped stream."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Begins to close the wrapped stream."""
        self._closings.begin(self._inner)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Starts TLS. Closes the socket on a failure and also on a cancellation.

        The wrapped stream closes the socket only on failures, and the caller does not have the TLS stream yet.
        """
        try:
            secured = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            self._closings.begin(self._inner)
            raise
        return UntrustedStream(secured, self._closings)

    def get_extra_info(self, info: str) -> Any:
        """Returns the extra information of the wrapped stream."""
        return self._inner.get_extra_info(info)


# Connections go to the very address that was checked, even if the name resolves to another address a moment later.

MAX_ADDRESSES: Final = 4
"""How many addresses of one host are tried one after another."""
ADDRESS_SECONDS: Final = 2.0
"""The limit of a connect to one address while other addresses remain."""

if TYPE_CHECKING:
    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(httpcore2.ConnectError):
    """No connection was made, because no address is allowed.

    `kind`: the kind of the host's address, such as "local".
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class CheckedNetworkBackend(httpcore2.AsyncNetworkBackend):
    """Connects only to allowed addresses. `what`: the plural subject of error messages, for example "webhooks"."""

    def __init__(
        self,
        networks: Networks,
        what: str,
        *,
        resolve: Resolve | None = None,
        dialer: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        read_in_one_pass()  # every client of untrusted servers has this backend
        self._networks, self._what = networks, what
        self._dialer = dialer or httpcore2.AnyIOBackend()
        self._lookups = NameLookups()
        self._closings = Closings()
        self._resolve = resolve or self._lookups.addresses

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connects to an allowed address of `host`. `timeout`: seconds for lookup and connects together.

        Raises AddressRefused, Unresolved, ConnectError and ConnectTimeout.
        """
        try:
            async with asyncio.timeout(timeout) as limit:
                allowed = self._allowed(host, await self._addresses(host, port))[:MAX_ADDRESSES]
                return await self._dial(allowed, port, limit.when(), local_address, socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error

    async def _dial(
        self, addresses: Sequence[IPAddress], port: int, until: float | None, *how: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Connects to the first address that answers. A silent address does not use up the time of the others."""
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            left_seconds = None if until is None else until - asyncio.get_running_loop().time()
            try:
                connected = await self._dialer.connect_tcp(
                    str(address), port, _share_seconds(left_seconds, others), *how
                )
                return UntrustedStream(connected, self._closings)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if not others:
                    raise
        raise AssertionError("unreachable: there is at least one address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Raises AddressRefused, because a Unix socket belongs to this machine."""
        raise AddressRefused(f"{self._what} may not reach sockets of this machine", "local")

    async def sleep(self, seconds: float) -> None:
        """Sleeps between connection attempts."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        """Returns the addresses of the host without duplicates. A host may be an address itself."""
        try:
            return [ip_address(host)]
        except ValueError:
            addresses = await self._resolve(host, port)
        if not addresses:
            raise Unresolved(f"the name {host} has no address")
        return list(dict.fromkeys(ip_address(text.partition("%")[0]) for text in addresses))

    def _allowed(self, host: str, addresses: list[IPAddress]) -> list[IPAddress]:
        """Returns the allowed addresses. Raises AddressRefused.

        Its message does not name the addresses: strangers read it, and must not learn the addresses of internal names.
        """
        refusals = {address: self._networks.refusal(address) for address in addresses}
        allowed = [address for address in addresses if refusals[address] is None]
        if allowed:
            return allowed
        shown = ", ".join(map(str, addresses[:MAX_ADDRESSES]))
        _log.info("the addresses of a host are not allowed", extra={"host": host, "addresses": shown})
        raise AddressRefused(f"{self._what} may not reach {host}", refusals[addresses[0]] or "")

    async def close(self) -> None:
        """Ends running look-ups, and waits until each stream is closed that was given up."""
        await self._lookups.close()
        await self._closings.end()


def _share_seconds(left_seconds: float | None, others: int) -> float | None:
    """Returns the time limit for one address of several, or None for no separate limit."""
    if not others:
        return left_seconds
    return ADDRESS_SECONDS if left_seconds is None else min(ADDRESS_SECONDS, max(left_seconds, 0.0) / (others + 1))


FAILURES: Final = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, OSError)
"""The exceptions of a failed request. OSError comes from TLS in the middle of an answer."""

TINY_BYTES: Final = 32
MAX_TINY_PIECES: Final = 4096
"""How many chunks of a body may have fewer than TINY_BYTES on average.

A tiny chunk costs as much time as a long one.
"""

_CHUNKS_PER_TURN: Final = 128
_REQUEST_STARTED: Final = "http11.send_request_headers.started"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The head of an answer whose body is unread.

    Headers are by lower-case name; the last of a repeated header counts.
    """

    status: int
    headers: dict[str, str]
    response: httpcore2.Response

    async def read(self, most_bytes: int) -> Body:
        """Reads at most `most_bytes` bytes, both received and decoded. Reads less if the body comes in tiny chunks.

        Raises BadEncoding and FAILURES.
        """
        decoding = BodyDecoder(self.headers.get("content-encoding", ""), most_bytes)
        received_bytes = chunks = 0
        async for chunk in self.response.aiter_stream():
            received_bytes += len(chunk)
            chunks += 1
            decoding.add(chunk)
            is_crumbled = chunks > MAX_TINY_PIECES + received_bytes // TINY_BYTES
            if decoding.is_full or is_crumbled:
                return Body(bytes(decoding.content[:most_bytes]), is_whole=False)
            if chunks % _CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)  # buffered chunks do not yield to the event loop
        decoding.end()
        return Body(bytes(decoding.content), is_whole=True)


@dataclass(frozen=True, slots=True)
class Body:
    """A decoded body. `is_whole`: its end is not cut off."""

    content: bytes
    is_whole: bool


class Outgoing:
    """A pool of connections to untrusted servers, open inside its `async with`."""

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
            ssl_context=http_tls_context(ca_file),
            max_connections=most_connections,
            max_keepalive_connections=None if kept_alive_seconds else 0,
            keepalive_expiry=kept_alive_seconds,
            network_backend=backend,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()
        await self._backend.close()

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
        """Sends one request and yields the answer. The connection is released at the end of the block.

        The caller bounds the total time. `connect_seconds`: the limit of the wait for a free slot of the pool, and of
        the connect. `going_out` is called right before the first byte of the request is written; before that call
        nothing was sent.

        The connection uses the parsed parts of the URL: no code parses the URL a second time, with another result.
        """
        target = httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        )

        async def note(event: str, _info: dict[str, Any]) -> None:
            if event == _REQUEST_STARTED and going_out is not None:
                going_out()

        async with self._connections.stream(
            method,
            target,
            headers=[("host", url.authority), *headers],
            content=body if method != "GET" else None,
            extensions={"timeout": dict.fromkeys(("connect", "pool"), connect_seconds), "trace": note},
        ) as response:
            response_headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            yield HttpResponse(response.status, response_headers, response)


def http_tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Returns the context of all connections of this process that speak HTTP: its authorities take 20 ms to load."""
    return _contexts(ca_file)  # a cache counts a default and a given None as two arguments


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Returns a TLS context that trusts the machine's authorities and those in `ca_file`.

    A certificate is valid only for its subject alternative names: OpenSSL's fallback to the common name is obsolete,
    and browsers have dropped it.
    """
    context = httpcore2.default_ssl_context()
    context.hostname_checks_common_name = False
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


_contexts: Final = cache(tls_context)
