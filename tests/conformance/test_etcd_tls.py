"""Mutual TLS with a real etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from devstack.etcd import EtcdProcess, find_etcd, free_ports, plan_members
from services.coordinator.etcd.calls import EtcdUnavailable
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.endpoints import TlsIdentity
from tests.support.certificates import Identity, issue

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = ("127.0.0.1",)


@dataclass(frozen=True)
class _SecureEtcd:
    process: EtcdProcess
    authority: Identity
    endpoint: str


@pytest.fixture(scope="module")
def secure_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_SecureEtcd]:
    """An etcd that serves TLS to those who show a certificate of its authority, and its readiness in the clear."""
    folder, authority = tmp_path_factory.mktemp("tls"), issue("authority")
    server = issue("etcd", HERE, authority)
    for name, content in {
        "ca.pem": authority.certificate_pem,
        "server.pem": server.certificate_pem,
        "server.key": server.key_pem,
    }.items():
        (folder / name).write_bytes(content)
    (member,) = plan_members(folder / "data", 1)
    (secure_port,) = free_ports(1)
    arguments = [
        f"--listen-client-urls=http://127.0.0.1:{member.client_port},https://127.0.0.1:{secure_port}",
        "--client-cert-auth",
        f"--trusted-ca-file={folder / 'ca.pem'}",
        f"--cert-file={folder / 'server.pem'}",
        f"--key-file={folder / 'server.key'}",
    ]
    process = EtcdProcess(member, find_etcd(), arguments)
    process.start()
    try:
        process.wait_ready()
        yield _SecureEtcd(process, authority, f"https://127.0.0.1:{secure_port}")
    finally:
        process.stop()


async def test_a_client_with_a_certificate_is_served_over_tls(secure_etcd: _SecureEtcd) -> None:
    authority = secure_etcd.authority
    ours = issue("coordinator", HERE, authority)
    tls = TlsIdentity(ca=authority.certificate_pem, certificate=ours.certificate_pem, key=ours.key_pem)
    async with EtcdClient([secure_etcd.endpoint], tls=tls) as client:
        await client.put(b"/k", b"v")
        lease = await client.grant(60)
        assert await client.keep_alive(lease.id) == 60
    async with EtcdClient([secure_etcd.process.endpoint]) as plain:
        assert await plain.get(b"/k") is not None


async def test_a_client_without_a_certificate_is_not_served(secure_etcd: _SecureEtcd) -> None:
    tls = TlsIdentity(ca=secure_etcd.authority.certificate_pem)
    async with EtcdClient([secure_etcd.endpoint], tls=tls) as client:
        with pytest.raises(EtcdUnavailable):
            await client.get(b"/k")


async def test_an_etcd_of_an_unknown_authority_is_not_trusted(secure_etcd: _SecureEtcd) -> None:
    ours = issue("coordinator", HERE, secure_etcd.authority)
    stranger = issue("stranger")
    tls = TlsIdentity(ca=stranger.certificate_pem, certificate=ours.certificate_pem, key=ours.key_pem)
    async with EtcdClient([secure_etcd.endpoint], tls=tls) as client:
        with pytest.raises(EtcdUnavailable):
            await client.get(b"/k")
