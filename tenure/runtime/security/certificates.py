"""Makes a certificate authority and the certificates of an installation's processes, to try mutual TLS.

In production, cert-manager or SPIRE issues the certificates: docs/security.md.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tenure.domain.access import Role, server_name, spiffe_id

_BACKDATED: Final = timedelta(minutes=5)
"""Certificates are valid from before they were made, for machines whose clocks are late."""
CA_DAYS: Final = 3650.0
_CURVE: Final = ec.SECP256R1()


_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class StoreCertificate:
    """The purpose of a certificate of `tenure keys certs stores`. `hosts`: DNS names and IP addresses."""

    name: str
    hosts: tuple[str, ...]
    usages: tuple[x509.ObjectIdentifier, ...]


def store_certificates(etcd_hosts: Iterable[str], postgres_hosts: Iterable[str]) -> list[StoreCertificate]:
    """Returns the certificates of etcd, of Postgres, and of etcd's clients, the coordinators.

    A member of etcd is a client of the other members, and of itself.
    """
    return [
        StoreCertificate("etcd", tuple(etcd_hosts), (_SERVER, _CLIENT)),
        StoreCertificate("etcd-client", (_COORDINATORS,), (_CLIENT,)),
        StoreCertificate("postgres", tuple(postgres_hosts), (_SERVER,)),
    ]


_COORDINATORS: Final = "coordinator"
"""etcd admits each client with a certificate of its authority; the name is for etcd's log."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, installation: str, days: float) -> Authority:
        """Makes an authority that signs processes only, no other authorities."""
        key = ec.generate_private_key(_CURVE)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tenure {installation}")])
        builder = (
            _builder(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, SHA256()), key)

    @classmethod
    def load(cls, certificate_path: Path, key_path: Path) -> Authority:
        """Reads an authority. Raises OSError and ValueError."""
        key = load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path} is not a key that `tenure keys certs` made")  # noqa: TRY004  of the file's content
        return cls(x509.load_pem_x509_certificate(certificate_path.read_bytes()), key)

    def save(self, certificate_path: Path, key_path: Path) -> None:
        """Writes both files; only the owner may read the key."""
        _write(certificate_path, self.certificate.public_bytes(Encoding.PEM), 0o644)
        _write(key_path, _pem(self.key), 0o400)

    def issue(
        self, role: Role, name: str, installation: str, days: float, hosts: Iterable[str] = ()
    ) -> tuple[bytes, bytes]:
        """Returns certificate and key of a process as PEM. `hosts`: DNS names and IP addresses that clients connect to.

        Raises ValueError for an unusable name.
        """
        names = [
            x509.UniformResourceIdentifier(spiffe_id(installation, role, name)),
            x509.DNSName(server_name(installation, role)),
            *(_host(host) for host in hosts),
        ]
        return self._sign(names, [_SERVER, _CLIENT], days)

    def issue_for_store(self, store: StoreCertificate, days: float) -> tuple[bytes, bytes]:
        """Returns certificate and key of a store or of a store's client as PEM: without an identity of Tenure."""
        return self._sign([_host(host) for host in store.hosts], list(store.usages), days)

    def _sign(
        self, names: list[x509.GeneralName], usages: list[x509.ObjectIdentifier], days: float
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(_CURVE)
        builder = (
            _builder(x509.Name([]), self.certificate.subject, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM), _pem(key)


def write_certificate(directory: Path, name: str, certificate: bytes, key: bytes) -> None:
    """Writes <name>.pem and <name>.key.pem, the key first: a process that reads both in between sees that they differ
    and waits.
    """
    _write(directory / f"{name}.key.pem", key, 0o400)
    _write(directory / f"{name}.pem", certificate, 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replaces the file atomically; it never has more permissions than `mode`."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)


def make_certificates(
    directory: Path, processes: Iterable[tuple[Role, str]], *, installation: str, days: float, hosts: Iterable[str] = ()
) -> None:
    """Makes ca.pem and ca.key.pem unless they exist, and for each process <name>.pem and <name>.key.pem, always anew.

    Raises OSError, and ValueError for an unusable name or authority.
    """
    authority = open_authority(directory, installation)
    named = list(hosts)
    for role, name in processes:
        certificate, key = authority.issue(role, name, installation, days, named)
        write_certificate(directory, name, certificate, key)


def make_store_certificates(
    directory: Path, stores: Iterable[StoreCertificate], *, installation: str, days: float
) -> None:
    """Makes ca.pem and ca.key.pem unless they exist, and for each store <name>.pem and <name>.key.pem, always anew.

    Use a directory of its own: etcd admits each client with a certificate of this authority.
    Raises OSError, and ValueError for an unusable authority.
    """
    authority = open_authority(directory, f"{installation} stores")
    for store in stores:
        certificate, key = authority.issue_for_store(store, days)
        write_certificate(directory, store.name, certificate, key)


def open_authority(directory: Path, installation: str) -> Authority:
    """Returns the authority of the directory, made anew if there is none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = directory / "ca.pem", directory / "ca.key.pem"
    if paths[1].exists():
        return Authority.load(*paths)
    authority = Authority.create(installation, CA_DAYS)
    authority.save(*paths)
    return authority
