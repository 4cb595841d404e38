"""TLS of clients and channels, and the settings of mutual TLS. A process's own certificate: `certificate_files.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.runtime.settings import ConfigurationError, setting


@dataclass(frozen=True, kw_only=True)
class MutualTlsSettings:
    """The settings of mutual TLS, under TENURE_TLS_. All three files, or none."""

    certificate_file: Path | None = setting("certificate of this process, with its chain, as PEM", default=None)
    key_file: Path | None = setting("private key of the certificate, as PEM", default=None)
    ca_file: Path | None = setting("certificates of the authorities that sign other processes, as PEM", default=None)
    installation: str = setting("trust domain of all certificates", default=DEFAULT_INSTALLATION)

    def problems(self) -> Iterator[str]:
        """Yields the relations that do not hold."""
        files = {"CERTIFICATE_FILE": self.certificate_file, "KEY_FILE": self.key_file, "CA_FILE": self.ca_file}
        missing = [f"TENURE_TLS_{name}" for name, file in files.items() if file is None]
        if 0 < len(missing) < len(files):
            yield f"{' and '.join(missing)} must be set too: mutual TLS needs a certificate, its key and the CA"


PemFiles = tuple[bytes | None, bytes | None, bytes | None]
"""Authorities, key and certificate chain, in the order of `grpc.ssl_channel_credentials`."""


class ChannelTls(Protocol):
    """The TLS parameters of a channel."""

    def read(self) -> PemFiles: ...
    def options(self) -> list[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS parameters of a client. `ca_file` None: the usual authorities of the internet.

    `server_name`: the name in the server's certificate, if it is not the name that the client connects to.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def read(self) -> PemFiles:
        """Returns the present contents of the files. Raises ConfigurationError for a missing file."""
        try:
            ca, key, certificate = (
                None if path is None else path.read_bytes()
                for path in (self.ca_file, self.key_file, self.certificate_file)
            )
        except OSError as error:
            raise ConfigurationError([f"a file for TLS cannot be read: {error}"]) from error
        return ca, key, certificate

    def options(self) -> list[tuple[str, str]]:
        """Returns the channel arguments."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


SERVICE: Final = "{service}"
"""Stands for the name of each service in paths of `tenure serve all`: such a path is not of a client."""


def client_tls_of(environment: Mapping[str, str]) -> ClientTls:
    """Returns the TLS parameters that TENURE_TLS_CA_FILE, …CERTIFICATE_FILE and …KEY_FILE give a client."""
    ca, certificate, key = (
        Path(path) if (path := environment.get(f"TENURE_TLS_{name}_FILE")) and SERVICE not in path else None
        for name in ("CA", "CERTIFICATE", "KEY")
    )
    return ClientTls(ca, certificate, key)
