from __future__ import annotations

from pathlib import Path

import pytest

from services.coordinator.etcd import endpoints
from services.coordinator.etcd.endpoints import Endpoints, TlsIdentity, parse_targets
from services.coordinator.lease_store import open_lease_store
from tenure.runtime.settings import ConfigurationError


@pytest.mark.parametrize(
    ("targets", "hosts", "secure"),
    [
        (["127.0.0.1:2379"], ["127.0.0.1:2379"], False),
        (["http://a:1", "b:2"], ["a:1", "b:2"], False),
        (["https://a:1/", " https://[::1]:2"], ["a:1", "[::1]:2"], True),
    ],
)
def test_endpoints_are_written_with_or_without_a_scheme(targets: list[str], hosts: list[str], secure: bool) -> None:
    assert parse_targets(targets) == (hosts, secure)


@pytest.mark.parametrize("targets", [[], ["localhost"], ["a:"], [":1"], ["ftp://a:1"], ["a:b"], ["https://a:1", "b:2"]])
def test_an_unusable_endpoint_is_refused(targets: list[str]) -> None:
    with pytest.raises(ValueError, match="etcd endpoint"):
        parse_targets(targets)


async def test_concurrent_failures_rotate_once() -> None:
    async with Endpoints(["a:1", "b:2", "c:3"]) as members:
        failed = members.current
        members.rotate(failed)
        members.rotate(failed)
        assert members.current.target == "b:2"
        members.rotate(members.current)
        members.rotate(members.current)
        assert members.current is failed


def test_pings_are_never_faster_than_etcd_permits() -> None:
    options = dict(endpoints.CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] > 5_000
    assert options["grpc.keepalive_permit_without_calls"] == 0
    assert options["grpc.http2.ping_timeout_ms"] <= 2_000


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="key"):
        TlsIdentity(certificate=b"pem")


async def test_a_tls_identity_is_not_silently_ignored() -> None:
    with pytest.raises(ValueError, match="http://"):
        Endpoints(["http://a:1"], TlsIdentity(ca=b"pem"))


async def test_a_missing_file_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    """The coordinator ended with a stack, and its log had neither the setting nor what the file is for."""
    absent = tmp_path / "absent.pem"
    store = open_lease_store(
        ["127.0.0.1:2379"], key_prefix="/tenure/", ca_file=absent, certificate_file=None, key_file=None
    )
    with pytest.raises(ConfigurationError, match=r"absent\.pem"):
        await store.__aenter__()
