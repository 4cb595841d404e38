"""Laws of certificates that are replaced, over real sockets: channels take them, former authorities count no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from tenure.domain.access import DEFAULT_INSTALLATION, Access, Role
from tenure.domain.errors import Unauthenticated, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc import channels as channel_renewal
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.rpc.options import ServerLimits
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.certificate_files import CertificateFiles, PeerTls, TrustedCallers
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.tls import MutualTlsSettings
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

SERVICE = "tenure.test.Echo"


def rules_of(_service: str) -> Mapping[str, Access]:
    return dict.fromkeys(("Ask", "Hold"), Access(frozenset({Role.GATEWAY})))


def pem(*authorities: Authority) -> bytes:
    return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in authorities)


@dataclass
class Folder:
    """The certificate files of a server (checkpoint) and of a caller (gateway)."""

    path: Path
    authority: Authority = field(default_factory=lambda: Authority.create(DEFAULT_INSTALLATION, 1))

    def __post_init__(self) -> None:
        self.trust(self.authority)
        self.issue(self.authority)

    def trust(self, *authorities: Authority, by: str = "") -> None:
        """Both sides trust these, or only the one."""
        for name in [by] if by else ["checkpoint", "gateway"]:
            (self.path / "new").write_bytes(pem(*authorities))
            (self.path / "new").replace(self.path / f"{name}.ca.pem")

    def issue(self, authority: Authority, *roles: Role, days: float = 1) -> None:
        for role in roles or (Role.CHECKPOINT, Role.GATEWAY):
            issued = authority.issue(role, role.lower(), DEFAULT_INSTALLATION, days)
            write_certificate(self.path, role.lower(), *issued)

    def files(self, name: str) -> CertificateFiles:
        certificate, key, ca = (self.path / f"{name}.{suffix}" for suffix in ("pem", "key.pem", "ca.pem"))
        return CertificateFiles(MutualTlsSettings(certificate_file=certificate, key_file=key, ca_file=ca))


class Echo:
    """Answers with the serial number of the caller's certificate."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.holding = asyncio.Event()

    async def ask(self, request: bytes, context: Any) -> bytes:
        if request == b"held":
            self.holding.set()
            await self.let_go.wait()
        return serial_of(context.auth_context()["x509_pem_cert"][0])

    async def hold(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b""
        await self.let_go.wait()


def serial_of(certificate: bytes) -> bytes:
    return str(x509.load_pem_x509_certificate(certificate).serial_number).encode()


@dataclass
class Pair:
    """A server and a channel to it, with certificates."""

    folder: Folder
    echo: Echo
    channel: TenureChannel

    async def ask(self, request: bytes = b"") -> bytes:
        return bytes(await self.channel.unary_unary(f"/{SERVICE}/Ask")(request, timeout=CALL_SECONDS))

    def own_serial(self) -> bytes:
        return serial_of((self.folder.path / "gateway.pem").read_bytes())

    async def until_asked_with(self, serial: bytes) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.ask() != serial:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    folder, echo = Folder(path), Echo()
    server = RpcServer(
        "127.0.0.1:0",
        security=Security(rules_of, folder.files("checkpoint")),
        reflection_enabled=False,
        grace_seconds=0.1,
    )
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Ask": grpc.unary_unary_rpc_method_handler(echo.ask),
        "Hold": grpc.unary_stream_rpc_method_handler(echo.hold),
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    server.add(SERVICE, handler, lambda one, to: to.add_generic_rpc_handlers((one,)))
    tls = PeerTls(folder.files("gateway"), Role.CHECKPOINT)
    async with server, open_channel(server.address, tls=tls) as channel:
        yield Pair(folder, echo, channel)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_renewal, "CHECK_SECONDS", 0.05)


async def test_a_new_certificate_is_used_and_running_calls_end_well(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        former = both.own_serial()
        held = asyncio.create_task(both.ask(b"held"))
        await both.echo.holding.wait()
        both.folder.issue(both.folder.authority)
        await both.until_asked_with(both.own_serial())
        both.echo.let_go.set()
        assert await held == former != both.own_serial()


async def test_a_stream_on_the_former_connection_ends_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_renewal, "DRAIN_SECONDS", 0.3)
    async with pair(tmp_path) as both:
        stream = both.channel.unary_stream(f"/{SERVICE}/Hold")(b"")
        assert await stream.read() == b""
        both.folder.issue(both.folder.authority)
        with pytest.raises(Unavailable, match="cancelled on this side"):
            await asyncio.wait_for(stream.read(), PATIENCE_SECONDS)
        assert await both.ask() == both.own_serial()


async def test_a_channel_that_closes_keeps_no_former_connection(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        stream = both.channel.unary_stream(f"/{SERVICE}/Hold")(b"")
        assert await stream.read() == b""
        both.folder.issue(both.folder.authority)
        await both.until_asked_with(both.own_serial())
        await asyncio.wait_for(both.channel.close(), PATIENCE_SECONDS)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(stream.read(), PATIENCE_SECONDS)


async def test_files_that_do_not_fit_together_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(tmp_path) as both:
        serial, key = both.own_serial(), both.folder.path / "gateway.key.pem"
        good = key.read_bytes()
        key.unlink()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "cannot be used" not in caplog.text:
                await asyncio.sleep(0.02)
        assert await both.ask() == serial
        key.write_bytes(good)


async def test_certificates_that_no_server_accepts_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority of the former files may be withdrawn, so these do not stay in use."""
    monkeypatch.setattr(channel_renewal, "CONNECT_SECONDS", 0.3)
    async with pair(tmp_path) as both:
        both.folder.issue(Authority.create(DEFAULT_INSTALLATION, 1), Role.GATEWAY)
        with pytest.raises(Unavailable):
            await both.until_asked_with(b"never")
        both.folder.issue(both.folder.authority, Role.GATEWAY)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await retrying(both.ask, RetryPolicy(max_attempts=1000), on=(Unavailable,))
        await both.until_asked_with(both.own_serial())


async def test_a_stream_ends_when_its_authority_is_withdrawn(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        stream = both.channel.unary_stream(f"/{SERVICE}/Hold")(b"")
        assert await stream.read() == b""
        new = Authority.create(DEFAULT_INSTALLATION, 1)
        both.folder.trust(new, by="checkpoint")
        with pytest.raises(Unauthenticated) as ended:
            await asyncio.wait_for(stream.read(), PATIENCE_SECONDS)
        assert ended.value.reason == "CERTIFICATE_WITHDRAWN"


# The rule, without a server.


def leaf(authority: Authority, days: float = 1) -> bytes:
    return authority.issue(Role.GATEWAY, "gateway", DEFAULT_INSTALLATION, days)[0]


def test_a_caller_is_trusted_as_long_as_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.runtime.security.certificate_files._REREAD_SECONDS", 0.0)
    folder, other = Folder(tmp_path), Authority.create(DEFAULT_INSTALLATION, 1)
    trusted = TrustedCallers(folder.files("checkpoint"))
    own, others = leaf(folder.authority), leaf(other)
    trusted.check(own)
    with pytest.raises(Unauthenticated, match="has expired"):
        trusted.check(leaf(folder.authority, days=-0.001))
    folder.trust(folder.authority, other)
    trusted.check(own)
    trusted.check(others)
    folder.trust(other)
    trusted.check(others)
    with pytest.raises(Unauthenticated, match="was withdrawn"):
        trusted.check(own)
    folder.trust(folder.authority)
    trusted.check(own)


def test_an_authority_that_is_renewed_with_its_key_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.runtime.security.certificate_files._REREAD_SECONDS", 0.0)
    folder = Folder(tmp_path)
    trusted = TrustedCallers(folder.files("checkpoint"))
    own = leaf(folder.authority)
    trusted.check(own)
    former = folder.authority.certificate
    builder = x509.CertificateBuilder(former.issuer, former.subject, former.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC)).not_valid_after(datetime.now(UTC) + timedelta(days=2))
    for extension in former.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    folder.trust(Authority(builder.sign(folder.authority.key, SHA256()), folder.authority.key))
    trusted.check(own)


def test_a_certificate_of_an_intermediate_is_left_to_tls(tmp_path: Path) -> None:
    trusted = TrustedCallers(Folder(tmp_path).files("checkpoint"))
    trusted.check(leaf(Authority.create(DEFAULT_INSTALLATION, 1)))


async def test_a_caller_that_never_begins_tls_loses_its_connection(tmp_path: Path) -> None:
    security = Security(rules_of, Folder(tmp_path).files("checkpoint"))
    server = RpcServer("127.0.0.1:0", security=security, limits=ServerLimits(handshake_seconds=0.5))
    async with server, asyncio.timeout(60):  # not the two minutes of gRPC
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
