"""The connections of the HTTP server: their limits, their handshakes, trusted proxies, and heads with two readings."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx2
import pytest
from starlette.routing import BaseRoute

from edges.answer_links.door import answer_routes
from edges.answer_links.pages import AnswerPage
from edges.gateway import http_edges
from services.gateway.http import connections, server
from services.gateway.http.edge import Door, HttpEdge
from services.gateway.http.origins import is_this_machine
from services.gateway.http.settings import HttpSettings
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import Address, ConfigurationError, load
from tests.support.certificates import issue
from tests.support.patience import CALL_SECONDS

NO_PEERS: Any = None
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def http_server(
    *, tls: MutualTlsSettings | None = None, edges: Sequence[HttpEdge] | None = None, **settings: Any
) -> AsyncGenerator[int]:
    """Opens an HTTP server in front of nothing. Yields its port."""
    async with server.http_door(
        HttpSettings(listen=Address("127.0.0.1:0"), **settings),
        RpcServer("127.0.0.1:0"),
        asyncio.Event(),
        None if tls is None else CertificateFiles(tls),
        tls or MutualTlsSettings(),
        is_authenticated=True,
        allow_insecure_network=False,
        peers=NO_PEERS,
        edges=http_edges() if edges is None else edges,
    ) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
def certificate(tmp_path: Path) -> MutualTlsSettings:
    authority = issue("authority")
    pair = issue("localhost", ("localhost",), authority).write(tmp_path / "server.pem")
    return MutualTlsSettings(certificate_file=pair, key_file=pair, ca_file=authority.write(tmp_path / "ca.pem"))


async def answer(port: int, raw: bytes) -> bytes:
    """What a connection gets until its end."""
    async with asyncio.timeout(CALL_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        got = b""
        with suppress(ConnectionError):
            writer.write(raw)
            got = await reader.read()
        writer.close()
        return got


POST = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"Connection: close\r\n"


async def test_an_address_has_a_limit_of_connections() -> None:
    async with http_server(address_connections=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:  # both count, once they are answered
            writer.write(HEAD + b"\r\n")
            assert b" 200 " in await reader.readline()
        assert await answer(port, HEAD + CLOSE + b"\r\n") == b""
        held[0][1].write(HEAD + b"\r\n")  # the open ones are served on
        held[1][1].close()
        async with asyncio.timeout(CALL_SECONDS):
            while b" 200 " not in await answer(port, HEAD + CLOSE + b"\r\n"):
                await asyncio.sleep(0.02)
        held[0][1].close()


async def test_a_connection_beyond_the_limit_of_all_is_refused() -> None:
    """Those within it are served: before, all got 503."""
    async with http_server(connections=1, trusted_proxies=("127.0.0.1",), address_connections=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            async with asyncio.timeout(CALL_SECONDS):
                assert b" 200 " in await reader.readline()
                await reader.readuntil(b"}")
            assert await answer(port, HEAD + CLOSE + b"\r\n") == b""
        writer.close()


async def test_a_trusted_proxy_has_no_limit_of_its_own() -> None:
    async with http_server(address_connections=1, trusted_proxies=("127.0.0.0/8",)) as port:
        _, held = await asyncio.open_connection("127.0.0.1", port)
        assert b" 200 " in await answer(port, HEAD + CLOSE + b"\r\n")
        held.close()


async def test_a_connection_without_a_handshake_ends(
    certificate: MutualTlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from its first packet on, and counts no more when it has ended."""
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.3)
    async with http_server(tls=certificate, address_connections=1) as port:
        assert await answer(port, b"") == b""
        assert await answer(port, b"no handshake\r\n\r\n") != b"HTTP"
        assert await is_served(port, certificate)


async def is_served(port: int, certificate: MutualTlsSettings) -> bool:
    context = ssl.create_default_context(cafile=str(certificate.ca_file))
    async with (
        asyncio.timeout(CALL_SECONDS),
        httpx2.AsyncClient(verify=context, timeout=CALL_SECONDS, trust_env=False) as http,
    ):
        return (await http.get(f"https://localhost:{port}/healthz")).status_code == 200


# What the door believes.


@pytest.mark.parametrize(
    ("trusted", "address", "scheme"),
    [((), "127.0.0.1", "http"), (("127.0.0.1",), "203.0.113.5", "https")],
)
async def test_only_a_trusted_proxy_names_the_client(trusted: tuple[str, ...], address: str, scheme: str) -> None:
    pages = Mock(show=AsyncMock(return_value=AnswerPage(200, "")))

    @asynccontextmanager
    async def opened(_door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
        yield answer_routes(pages)

    headers = {"X-Forwarded-For": "198.51.100.1, 203.0.113.5", "X-Forwarded-Proto": "https", "Host": "a.example"}
    async with (
        http_server(edges=[HttpEdge(opened=opened)], trusted_proxies=trusted) as port,
        httpx2.AsyncClient(verify=http_tls_context(), timeout=CALL_SECONDS, trust_env=False) as http,
    ):
        response = await http.get(f"http://127.0.0.1:{port}/a/token", headers=headers)
    assert pages.show.await_args.args[1] == address
    assert ("strict-transport-security" in response.headers) == (scheme == "https")


@pytest.mark.parametrize("host", ["gateway.example", "localhost"])
async def test_pages_by_tls_are_not_opened_in_clear_text_again(certificate: MutualTlsSettings, host: str) -> None:
    """But a name that all programs of a machine share has no such promise."""
    context = ssl.create_default_context(cafile=str(certificate.ca_file))
    async with (
        http_server(tls=certificate) as port,
        httpx2.AsyncClient(verify=context, timeout=CALL_SECONDS, trust_env=False) as http,
    ):
        response = await http.get(f"https://localhost:{port}/console/", headers={"Host": f"{host}:{port}"})
    assert ("strict-transport-security" in response.headers) == (host != "localhost")


@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxy.example", "10.0.0.0/33"])
def test_a_proxy_is_a_network(network: str) -> None:
    with pytest.raises(ConfigurationError, match="TRUSTED_PROXIES"):
        load(HttpSettings, {"X_TRUSTED_PROXIES": network}, prefix="X_")


# Heads with two readings. What follows such a request could be one that a proxy has never seen.


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_head_with_two_readings_ends_its_connection(raw: bytes) -> None:
    async with http_server() as port:
        got = await answer(port, raw + HEAD + CLOSE + b"\r\n")
    assert got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"HTTP/1.1") == 1


async def test_requests_that_follow_each_other_are_answered() -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: y\r\n\r\n"
    async with http_server() as port:
        got = await answer(port, HEAD + b"\r\n" + chunked + HEAD + CLOSE + b"\r\n")
    assert got.count(b"HTTP/1.1") == 3


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8480", "console.localhost:1", "127.0.0.1", "127.0.0.1:8480", "[::1]", "[::1]:8480"],
)
def test_this_machine_has_these_hosts(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host",
    [
        *("[::1].evil.example", "evil.example\\.localhost", "evil.example/.localhost", "evil.example#.localhost"),
        *("user@localhost", "localhost.evil.example", "[::1", "::1", "1", "0x7f.1", "localhost:", "127.0.0.1:x", ""),
    ],
)
def test_other_hosts_are_not_this_machine(host: str) -> None:
    assert not is_this_machine(host)
