"""Mutual TLS between the processes of an installation, with certificates that can be replaced while it runs.

A server takes new files with the next connection, and refuses further calls of a caller whose authority was withdrawn.
A channel replaces its connections: `tenure/runtime/rpc/client.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tenure.domain.access import Principal, Role, process_of, server_name
from tenure.domain.errors import Unauthenticated
from tenure.runtime.security.tls import MutualTlsSettings, PemFiles
from tenure.runtime.settings import ConfigurationError

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the three files at one moment."""

    certificate: bytes
    key: bytes
    ca: bytes

    def identity(self, installation: str) -> Principal:
        """Returns the process that the certificate names. Raises ConfigurationError."""
        try:
            certificate = x509.load_pem_x509_certificates(self.certificate)[0]
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            return process_of(names.get_values_for_type(x509.UniformResourceIdentifier), installation)
        except (ValueError, x509.ExtensionNotFound, Unauthenticated) as error:
            raise ConfigurationError([f"TENURE_TLS_CERTIFICATE_FILE has no identity: {error}"]) from error


class CertificateFiles:
    """The files of one process. `read` returns their contents, again when one of them has changed."""

    def __init__(self, settings: MutualTlsSettings) -> None:
        certificate, key, ca = settings.certificate_file, settings.key_file, settings.ca_file
        if certificate is None or key is None or ca is None:
            raise ConfigurationError(list(settings.problems()))
        self._paths = (certificate, key, ca)
        self.installation = settings.installation
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._credentials = self._load()

    def read(self) -> Credentials:
        """Returns the newest usable contents. Files that do not fit together change nothing and are logged: they may
        be in the middle of a replacement.
        """
        try:
            if self._current_stamp() != self._stamp:
                self._credentials = self._load()
        except (OSError, ConfigurationError) as error:
            _log.error("the certificate files cannot be used; the previous ones stay in use", extra={"error": error})
        return self._credentials

    def _current_stamp(self) -> tuple[tuple[int, int], ...]:
        return tuple((path.stat().st_mtime_ns, path.stat().st_ino) for path in self._paths)

    def _load(self) -> Credentials:
        """Raises ConfigurationError for files that are missing, malformed or do not fit together."""
        try:
            stamp = self._current_stamp()
            loaded = Credentials(*(path.read_bytes() for path in self._paths))
            key = load_pem_private_key(loaded.key, None).public_key()
            certificate = x509.load_pem_x509_certificates(loaded.certificate)[0]
            x509.load_pem_x509_certificates(loaded.ca)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError([f"the files of TENURE_TLS_ cannot be used: {error}"]) from error
        if certificate.public_key() != key:
            raise ConfigurationError([f"{self._paths[1]} is not the key of the certificate {self._paths[0]}"])
        self._stamp = stamp
        return loaded


def server_credentials(files: CertificateFiles, *, demands_certificates: bool = True) -> grpc.ServerCredentials:
    """Returns credentials that take new files with the next connection.

    `demands_certificates`: each client needs a certificate; otherwise none has one.
    """
    offered = files.read()

    def renewed() -> Any:
        """Returns the configuration for the next connection; None: as before."""
        nonlocal offered
        if (current := files.read()) == offered:
            return None
        offered = current
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(offered), renewed, require_client_authentication=demands_certificates
    )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.certificate)], credentials.ca)


class TrustedCallers:
    """Refuses callers whose certificate expired or whose authority was withdrawn while their connection was open.

    gRPC verifies a certificate once, in the handshake, and gives a server the caller's certificate without its chain.
    So a caller whose certificate an intermediate authority signed keeps its connection until the server ends it.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._ca = b""
        self._read_at = -_REREAD_SECONDS
        self._current: list[x509.Certificate] = []
        self._former: list[x509.Certificate] = []
        self._ends_at: dict[bytes, float] = {}

    def check(self, certificate: bytes) -> None:
        """Raises Unauthenticated. `certificate`: the caller's, as PEM."""
        self._reread()
        ends_at = self._ends_at.get(certificate)
        if ends_at is None:
            if len(self._ends_at) >= _MAX_CALLERS:
                self._ends_at.clear()
            ends_at = self._ends_at[certificate] = self._end_of(x509.load_pem_x509_certificate(certificate))
        if ends_at == _WITHDRAWN:
            raise Unauthenticated(
                "the authority of the caller's certificate was withdrawn", reason="CERTIFICATE_WITHDRAWN"
            )
        if ends_at < time():
            raise Unauthenticated("the caller's certificate has expired", reason="CERTIFICATE_EXPIRED")

    def _reread(self) -> None:
        if monotonic() - self._read_at < _REREAD_SECONDS:
            return
        self._read_at = monotonic()
        if (ca := self._files.read().ca) != self._ca:
            authorities = x509.load_pem_x509_certificates(ca)
            self._former = [each for each in [*self._former, *self._current] if each not in authorities]
            self._ca, self._current = ca, authorities
            self._ends_at.clear()

    def _end_of(self, certificate: x509.Certificate) -> float:
        """Returns when the certificate ends, in seconds since 1970."""
        if _is_signed_by(certificate, self._former) and not _is_signed_by(certificate, self._current):
            return _WITHDRAWN
        return certificate.not_valid_after_utc.timestamp()


_REREAD_SECONDS: Final = 1.0
_MAX_CALLERS: Final = 10_000
_WITHDRAWN: Final = 0.0


def _is_signed_by(certificate: x509.Certificate, authorities: list[x509.Certificate]) -> bool:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The TLS parameters of a channel that connects with this process's certificate, to a server of a role."""

    files: CertificateFiles
    role: Role

    def read(self) -> PemFiles:
        """Returns the present contents of the files."""
        current = self.files.read()
        return current.ca, current.key, current.certificate

    def options(self) -> list[tuple[str, str]]:
        """Returns the channel arguments. gRPC verifies a DNS name only, and the addresses of replicas are others."""
        return [("grpc.ssl_target_name_override", server_name(self.files.installation, self.role))]
