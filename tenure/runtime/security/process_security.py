"""The security of one process: its certificate, the callers that its servers admit, and its channels to other
processes.

    security = Security.load(settings.common, Role.CHECKPOINT, settings.listen, access_rules)
    server = RpcServer(settings.listen, security=security)
    channel = open_channel(settings.tools_address, tls=security.peer(Role.TOOLS))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import grpc

from tenure.domain.access import Access, Role
from tenure.domain.outbound import is_loopback_host
from tenure.runtime.security.access_control import (
    AccessControl,
    Authenticate,
    by_connection,
    certificate_authentication,
)
from tenure.runtime.security.certificate_files import CertificateFiles, PeerTls, server_credentials
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import Address, ConfigurationError

_INSECURE: Final = (
    "{} can be reached from other machines, and this process has no TLS and no authentication: set "
    "TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE (`tenure keys certs` makes them), or set "
    "TENURE_ALLOW_INSECURE_NETWORK=true if the network admits only trusted machines"
)


_CLEAR_TEXT: Final = (
    "{}: {} is on another machine, and this process would reach it without TLS: set {}, or set "
    "TENURE_ALLOW_INSECURE_NETWORK=true if the network admits only trusted machines"
)


class SecuritySettings(Protocol):
    """The settings of a process that concern its security."""

    @property
    def tls(self) -> MutualTlsSettings: ...
    @property
    def allow_insecure_network(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Security:
    """`files` None: no TLS. `authenticate_client` None: callers are processes, known by their certificates if there is
    TLS. `serves_clients`: see AccessControl. `name`: the name in the certificate of this process, "" without TLS.
    `authenticate_in_process`: of callers in its process (by HTTP), who have no certificates; None: as all others.
    """

    rules_of: Callable[[str], Mapping[str, Access]]
    files: CertificateFiles | None = None
    serves_clients: bool = False
    authenticate_client: Authenticate | None = None
    name: str = ""
    authenticate_in_process: Authenticate | None = None

    @classmethod
    def load(
        cls,
        settings: SecuritySettings,
        role: Role,
        listen: Address,
        rules_of: Callable[[str], Mapping[str, Access]],
        *,
        serves_clients: bool = False,
    ) -> Security:
        """Reads the certificate files.

        Raises ConfigurationError for unusable files, for a certificate of another role, and without files for an
        address that other machines reach.
        """
        if settings.tls.certificate_file is None:
            if not is_loopback_host(listen.host) and not settings.allow_insecure_network:
                raise ConfigurationError([_INSECURE.format(listen)])
            return cls(rules_of, None, serves_clients)
        files = CertificateFiles(settings.tls)
        own = files.read().identity(files.installation)
        if own.role is not role:
            raise ConfigurationError(
                [f"TENURE_TLS_CERTIFICATE_FILE belongs to {own.name}; this process is a {role.lower()}"]
            )
        return cls(rules_of, files, serves_clients, name=own.name.rpartition("/")[2])

    @property
    def identity(self) -> str:
        """The SPIFFE ID in the certificate of this process; "" without TLS."""
        return "" if self.files is None else self.files.read().identity(self.files.installation).name

    def for_clients(self, authenticate: Authenticate) -> Security:
        """Returns the security of a server whose callers are clients without certificates."""
        return replace(self, authenticate_client=authenticate)

    def for_http_clients(self, authenticate: Authenticate) -> Security:
        """Returns the security of a server that knows callers by certificates, and those in its process by this."""
        return replace(self, authenticate_in_process=authenticate)

    def access_control(self) -> AccessControl:
        """Returns the access control for one server."""
        if self.authenticate_client is not None:
            return AccessControl(self.rules_of, self.authenticate_client, serves_clients=True)
        authenticate = None if self.files is None else certificate_authentication(self.files)
        if authenticate is not None and self.authenticate_in_process is not None:
            authenticate = by_connection(self.authenticate_in_process, authenticate)
        return AccessControl(self.rules_of, authenticate, serves_clients=self.serves_clients)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Returns the credentials for one server; None: without TLS."""
        if self.files is None:
            return None
        return server_credentials(self.files, demands_certificates=self.authenticate_client is None)

    def peer(self, role: Role) -> PeerTls | None:
        """Returns how channels connect to servers of the role; None: without TLS."""
        return None if self.files is None else PeerTls(self.files, role)


def clear_text_problems(settings: SecuritySettings, variable: str, hosts: Iterable[str], remedy: str) -> Iterator[str]:
    """Yields a problem for each host of another machine. `hosts`: those that `variable` names, reached without TLS.

    `remedy`: what to set.
    """
    if not settings.allow_insecure_network:
        for host in hosts:
            if not is_loopback_host(host):
                yield _CLEAR_TEXT.format(variable, host, remedy)


def peer_problems(settings: SecuritySettings, peers: Mapping[str, Iterable[Address]]) -> Iterator[str]:
    """Yields a problem for each address of another machine, by variable, that this process would reach without TLS."""
    if settings.tls.certificate_file is None:
        remedy = "TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE"
        for variable, addresses in peers.items():
            yield from clear_text_problems(settings, variable, (address.host for address in addresses), remedy)


def _no_rules(_service: str) -> Mapping[str, Access]:
    return {}


NO_SECURITY = Security(_no_rules)
"""For servers on loopback that serve no method of the contract."""
