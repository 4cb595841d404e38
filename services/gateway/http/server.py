"""Listens for HTTP in the event loop of the gateway, with its certificate, and within bounds for slow clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import chain
from typing import Any, Final

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.gateway.connection_limits import ConnectionLimits
from services.gateway.http.app import MAX_HEAD_BYTES, HttpApp
from services.gateway.http.call import Stubs
from services.gateway.http.connections import Acceptor
from services.gateway.http.edge import Door, HttpEdge
from services.gateway.http.settings import HttpSettings
from services.gateway.peers import Peers
from tenure.domain.errors import TenureError
from tenure.domain.outbound import is_loopback_host
from tenure.runtime.http.h11_patterns import StrictLines, read_in_one_pass
from tenure.runtime.listening import CannotListen
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import Address, ConfigurationError

_log: Final = logging.getLogger(__name__)
MAX_READ_BYTES: Final = 16 * 1024
"""The limit of one read. A client can cut these bytes into thousands of chunks, which the loop parses at once."""
HEAD_SECONDS: Final = 20.0
"""How long a connection may take for the head of a request."""
TAKE_SECONDS: Final = 60.0
"""How long a client may take nothing of an answer that is ready."""
KEEP_ALIVE_SECONDS: Final = 30
GRACE_SECONDS: Final = 10
START_SECONDS: Final = 10.0
_CLEAR_TEXT: Final = (
    "TENURE_GATEWAY_HTTP_LISTEN: {} can be reached from other machines, and API keys would cross the network without "
    "TLS: set TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE, or set "
    "TENURE_ALLOW_INSECURE_NETWORK=true if the network admits only trusted machines"
)


@asynccontextmanager
async def http_door(
    settings: HttpSettings,
    grpc_server: RpcServer,
    stopping: asyncio.Event,
    files: CertificateFiles | None,
    tls: MutualTlsSettings,
    *,
    is_authenticated: bool,
    allow_insecure_network: bool,
    peers: Peers,
    edges: Sequence[HttpEdge] = (),
) -> AsyncGenerator[str]:
    """Serves HTTP, by calls of the gateway's gRPC server in process. Yields the bound address.

    Raises ConfigurationError and CannotListen.
    """
    address = settings.listen
    assert address is not None, "the HTTP server needs an address"
    if files is None and not is_loopback_host(address.host) and not allow_insecure_network:
        raise ConfigurationError([_CLEAR_TEXT.format(address)])
    read_in_one_pass()
    async with AsyncExitStack() as opened:
        stubs = Stubs(grpc_server, asks_for_keys=is_authenticated)
        made = HttpApp(
            stubs,
            settings,
            stopping,
            is_authenticated=is_authenticated,
            any_name=allow_insecure_network,
            edge_routes=[route for edge in edges for route in edge.api_routes],
        )
        door = Door(stubs, peers, settings, made.check, is_authenticated)
        routes = [await opened.enter_async_context(edge.opened(door)) for edge in edges]
        app = made.asgi(chain.from_iterable(routes))
        listener = open_listener(address)
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        config.ssl = None if files is None else _tls_context(files, tls)
        logging.getLogger("uvicorn.error").addFilter(_BUGS)
        bound = f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
        limits = ConnectionLimits("HTTP", settings.connections, settings.address_connections, settings.proxies)
        server = _Server(config, listener, limits)
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(START_SECONDS):
                while not server.started and not serving.done():  # noqa: ASYNC110  uvicorn has no event for it
                    await asyncio.sleep(0.01)
            scheme = "http" if files is None else "https"
            _log.info("serving HTTP", extra={"address": bound, "url": f"{scheme}://{bound}"})
            yield bound
        finally:
            server.should_exit = True
            await serving


class _Bugs(logging.Filter):
    """Keeps the stacks of bugs. Malformed requests are the client's, and event_stream.py logs streams that are cut."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line of uvicorn is logged."""
        error = record.exc_info[1] if record.exc_info else None
        return isinstance(error, Exception) and not isinstance(error, TenureError | PeerFailed | ClientDisconnect)


_BUGS: Final = _Bugs()


class _Server(uvicorn.Server):
    """Accepts connections itself, within limits. The process has signal handlers of its own."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._listener, self._limits = listener, limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept. Uvicorn bounds no handshake, and at its limit refuses the requests of all clients."""
        assert sockets is None, "the listener is known"
        acceptor: Any = Acceptor(self._listener, self._protocol, self.config.ssl, self._limits)
        self.servers = [acceptor]
        self.started = True

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def open_listener(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(address, error.strerror or str(error)) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.bind(target)
        listener.listen()  # two sockets may be bound to one port, as long as none listens
    except OSError as error:
        listener.close()
        raise CannotListen(address, error.strerror or str(error)) from error
    return listener


def _tls_context(files: CertificateFiles, settings: MutualTlsSettings) -> ssl.SSLContext:
    """Returns the context of new connections. Each handshake gets the newest usable certificate."""
    current, context = files.read(), _context_of(settings)

    def renew(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal current, context
        newest = files.read()
        if newest != current:
            try:
                current, context = newest, _context_of(settings)
            except OSError as error:
                _log.error("the certificate cannot be used for HTTP", extra={"error": str(error)})
        connection.context = context

    first = context
    first.sni_callback = renew
    return first


def _context_of(settings: MutualTlsSettings) -> ssl.SSLContext:
    assert settings.certificate_file is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(settings.certificate_file, settings.key_file)
    return context


class BoundedProtocol(H11Protocol):
    """uvicorn's connection, which also ends for a client that is slow on purpose.

    Uvicorn waits for ever for the head of the first request, and for a client that takes nothing of an answer.
    """

    on_lost: Callable[[], None]
    _head_timer: asyncio.TimerHandle | None = None
    _take_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        reader: Any = getattr(transport, "_ssl_protocol", transport)
        reader.max_size = MAX_READ_BYTES
        self.conn._receive_buffer = StrictLines()  # noqa: SLF001  h11 has no setting for it
        super().connection_made(transport)
        self._await_head(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head_timer)
        self._stop(self._take_timer)
        super().connection_lost(exc)
        self.on_lost()

    def on_response_complete(self) -> None:
        self._await_head(KEEP_ALIVE_SECONDS + HEAD_SECONDS)
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._stop(self._take_timer)
        self._take_timer = self.loop.call_later(TAKE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop(self._take_timer)
        super().resume_writing()

    def _await_head(self, seconds: float) -> None:
        self._stop(self._head_timer)
        self._head_timer = self.loop.call_later(seconds, self._end_without_head)

    def _end_without_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
