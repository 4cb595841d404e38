"""Who may call a method: identities, permissions, tenants, and the settings of a process's security."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from services.checkpoint.main import CheckpointSettings
from services.coordinator.settings import CoordinatorSettings
from tenure.domain.access import (
    Access,
    Permission,
    Principal,
    Role,
    check_access,
    check_holder,
    process_of,
    spiffe_id,
    with_included,
)
from tenure.domain.errors import PermissionDenied, Unauthenticated
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security import access_control
from tenure.runtime.security.access_control import AccessControl
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.certificates import make_certificates
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import Address, ConfigurationError, load
from tenure.wire.access import access_rules
from tests.support.patience import PATIENCE_SECONDS

READ = Access(frozenset({Role.GATEWAY}), Permission.READ)


def client(*permissions: Permission, tenant: str = "acme") -> Principal:
    return Principal("key k1", permissions=with_included(permissions), tenant=tenant)


def test_a_process_is_known_by_its_one_identity() -> None:
    worker = process_of([spiffe_id("acme", Role.WORKER, "w-1")], "acme")
    assert (worker.role, worker.name, worker.permissions) == (Role.WORKER, "spiffe://acme/worker/w-1", frozenset())
    assert Permission.OPERATE in process_of([spiffe_id("acme", Role.OPERATOR, "eve")], "acme").permissions


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["spiffe://acme/worker/a", "spiffe://acme/gateway/a"],
        ["spiffe://other/worker/a"],
        ["spiffe://acme/stranger/a"],
        ["spiffe://acme/WORKER/a"],
        ["spiffe://acme/worker"],
        ["spiffe://acme/worker/a/b"],
        ["spiffe://acme/worker/a\n"],
        ["https://acme/worker/a"],
        ["xspiffe://acme/worker/a"],
    ],
)
def test_other_names_are_not_an_identity(names: list[str]) -> None:
    with pytest.raises(Unauthenticated):
        process_of(names, "acme")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a" * 129, "ä"])
def test_a_process_has_a_name_that_fits_an_identity(name: str) -> None:
    with pytest.raises(ValueError, match="not an identity"):
        spiffe_id("acme", Role.WORKER, name)


def test_a_permission_includes_lesser_ones() -> None:
    assert with_included([Permission.WRITE]) == {Permission.WRITE, Permission.READ}
    assert with_included([Permission.APPROVE]) == {Permission.APPROVE, Permission.READ}
    assert Permission.OPERATE not in with_included([Permission.TENANT_ADMIN])
    assert with_included([Permission.OPERATE]) == set(Permission)


def test_a_client_acts_for_its_own_tenant_only() -> None:
    reader = client(Permission.READ)
    assert check_access(READ, reader, None, "default") == "acme"
    assert check_access(READ, reader, "acme", "default") == "acme"
    with pytest.raises(PermissionDenied):
        check_access(READ, reader, "other", "default")
    with pytest.raises(PermissionDenied):
        check_access(READ, reader, "", "default")


def test_a_method_is_for_its_roles_and_permission_only() -> None:
    gateway = process_of([spiffe_id("acme", Role.GATEWAY, "g")], "acme")
    assert check_access(READ, gateway, "any", "default") == "any"
    assert check_access(READ, gateway, None, "default") == "default"
    internal = Access(frozenset({Role.COORDINATOR}))
    for caller in (gateway, client(Permission.OPERATE), client()):
        with pytest.raises(PermissionDenied, match="coordinator"):
            check_access(internal, caller, None, "default")


@pytest.mark.parametrize(
    ("role", "name", "holder", "is_own"),
    [
        (Role.WORKER, "w-1", "w-1", True),
        (Role.WORKER, "pool", "pool-7f9c-x2", True),
        (Role.WORKER, "w-1", "w-10", False),
        (Role.WORKER, "w-1", "w", False),
        (Role.WORKER, "coordinator", "coordinator/c", False),
        (Role.COORDINATOR, "c", "coordinator/anything", True),
        (Role.COORDINATOR, "c", "w-1", False),
        (Role.GATEWAY, "g", "a lease's holder", True),
    ],
)
def test_a_process_acts_under_its_own_name_only(role: Role, name: str, holder: str, is_own: bool) -> None:
    process = process_of([spiffe_id("acme", role, name)], "acme")
    if is_own:
        check_holder(process, holder)
        return
    with pytest.raises(PermissionDenied) as refused:
        check_holder(process, holder)
    assert refused.value.reason == "OTHER_HOLDER"


def test_without_authentication_any_holder_is_believed() -> None:
    check_holder(client(), "w-1")


def test_a_method_without_a_rule_stops_the_start() -> None:
    with pytest.raises(ValueError, match=r"grpc\.health\.v1\.Health\.Check"):
        access_rules("grpc.health.v1.Health")


@dataclass(frozen=True)
class Settings:
    tls: MutualTlsSettings = field(default_factory=MutualTlsSettings)
    allow_insecure_network: bool = False


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_certificates(
        tmp_path, [(Role.WORKER, "w-1"), (Role.TOOLS, "tools")], installation="tenure", days=1, hosts=["localhost"]
    )
    return tmp_path


def tls_of(folder: Path, name: str, key: str = "", **changes: str) -> MutualTlsSettings:
    return MutualTlsSettings(
        certificate_file=folder / f"{name}.pem",
        key_file=folder / f"{key or name}.key.pem",
        ca_file=folder / "ca.pem",
        **changes,
    )


LOOPBACK = Address("127.0.0.1:1")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"])
def test_other_machines_are_not_served_without_tls(address: str) -> None:
    with pytest.raises(ConfigurationError, match="TENURE_TLS_CERTIFICATE_FILE"):
        Security.load(Settings(), Role.WORKER, Address(address), access_rules)
    Security.load(Settings(allow_insecure_network=True), Role.WORKER, Address(address), access_rules)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"])
def test_this_machine_is_served_without_tls(address: str) -> None:
    assert Security.load(Settings(), Role.WORKER, Address(address), access_rules).server_credentials() is None


def test_a_certificate_of_another_role_stops_the_start(certificates: Path) -> None:
    with pytest.raises(ConfigurationError, match="spiffe://tenure/tools/tools"):
        Security.load(Settings(tls_of(certificates, "tools")), Role.WORKER, LOOPBACK, access_rules)
    with pytest.raises(ConfigurationError, match="installation"):
        Security.load(Settings(tls_of(certificates, "w-1", installation="acme")), Role.WORKER, LOOPBACK, access_rules)


def test_files_that_do_not_fit_together_stop_the_start(certificates: Path) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        CertificateFiles(tls_of(certificates, "w-1", key="tools"))
    with pytest.raises(ConfigurationError, match=r"absent\.pem"):
        CertificateFiles(tls_of(certificates, "absent", key="tools"))
    assert list(MutualTlsSettings(ca_file=certificates / "ca.pem").problems())


def test_files_in_the_middle_of_a_replacement_change_nothing(certificates: Path) -> None:
    files = CertificateFiles(tls_of(certificates, "w-1"))
    before = files.read()
    (certificates / "w-1.key.pem").unlink()
    assert files.read() == before
    make_certificates(certificates, [(Role.WORKER, "w-1")], installation="tenure", days=1)
    after = files.read()
    assert after.certificate != before.certificate
    assert after.ca == before.ca
    assert all(path.stat().st_mode & 0o077 == 0 for path in certificates.glob("*.key.pem"))


def coordinator(endpoints: str, **settings: str) -> None:
    environment = {
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": "s",
        "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": "v",
        "TENURE_COORDINATOR_ETCD_ENDPOINTS": endpoints,
    }
    load(CoordinatorSettings, {**environment, **settings}, prefix="TENURE_COORDINATOR_")


ALLOWED = {"TENURE_ALLOW_INSECURE_NETWORK": "true"}


def test_etcd_on_another_machine_needs_tls() -> None:
    for refused in ("etcd:2379", "http://10.0.0.2:2379", "127.0.0.1:2379,10.0.0.2:2379", "[2001:db8::1]:2379"):
        with pytest.raises(ConfigurationError, match="ETCD_ENDPOINTS"):
            coordinator(refused)
        coordinator(refused, **ALLOWED)
    coordinator("https://etcd:2379")
    coordinator("etcd:2379", TENURE_COORDINATOR_ETCD_CA_FILE="ca.pem")
    for here in ("127.0.0.1:2379", "http://localhost:2379", "[::1]:2379"):
        coordinator(here)
    with pytest.raises(ConfigurationError, match="not an etcd endpoint"):
        coordinator("etcd")
    with pytest.raises(ConfigurationError, match="TENURE_COORDINATOR_ETCD_CA_FILE"):
        coordinator("http://127.0.0.1:2379", TENURE_COORDINATOR_ETCD_CA_FILE="ca.pem")


def checkpoint(dsn: str, **settings: str) -> None:
    environment = {"TENURE_CHECKPOINT_POSTGRES_DSN": dsn, "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": "v"}
    load(CheckpointSettings, {**environment, **settings}, prefix="TENURE_CHECKPOINT_")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p@db/t",
        "postgresql://u:p@db/t?sslmode=prefer",
        "postgresql://u:p@127.0.0.1,10.0.0.2/t",
        "host=10.0.0.2 dbname=t sslmode=disable",
        "host=localhost hostaddr=10.0.0.2",
    ],
)
def test_postgres_on_another_machine_needs_tls(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="POSTGRES_DSN") as refused:
        checkpoint(dsn)
    assert "u:p" not in str(refused.value)
    checkpoint(dsn, **ALLOWED)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p@db/t?sslmode=verify-full",
        "postgresql://u:p@db/t?sslmode=require",
        "postgresql://u:p@127.0.0.1:5432/t",
        "postgresql:///t?host=/run/postgresql",
        "dbname=t",
    ],
)
def test_postgres_by_tls_or_on_this_machine_is_accepted(dsn: str) -> None:
    checkpoint(dsn)


def test_the_environment_of_libpq_counts_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    with pytest.raises(ConfigurationError, match="db"):
        checkpoint("dbname=t")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    checkpoint("dbname=t")


async def test_a_revocation_counts_after_a_look_up_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the ledger, or its upgrade, ended the checks of an open stream, whose key could then be revoked."""
    monkeypatch.setattr(access_control, "READMIT_SECONDS", 0.0)
    answers: list[Exception] = [PeerFailed(grpc.StatusCode.INTERNAL, "a bug"), Unauthenticated("the key is revoked")]

    async def authenticate(_context: object, _metadata: object) -> Principal:
        raise answers.pop(0)

    access = AccessControl(lambda _service: {}, authenticate, serves_clients=True)
    with pytest.raises(Unauthenticated, match="revoked"):
        async with asyncio.timeout(PATIENCE_SECONDS), access.readmission("/s/m", None, None):
            await asyncio.Event().wait()
