"""The SMTP server of an installation, and where its e-mail may go."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenure.domain.email_addresses import domain_of, is_email_address
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.runtime.http.outbound_http import tls_context
from tenure.runtime.settings import Secret, setting

PREFIX: Final = "TENURE_CHECKPOINT_SMTP_"
STARTTLS: Final = "starttls"
IMPLICIT: Final = "implicit"
NO_TLS: Final = "none"
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
QUIT_SECONDS: Final = 1.0
"""How long the end of a connection may take, after the server has accepted the e-mail."""


@dataclass(frozen=True, kw_only=True)
class SmtpSettings:
    """TENURE_CHECKPOINT_SMTP_…"""

    host: str = setting("SMTP server for e-mail; empty: no e-mail", default="")
    port: int = setting("its port; 0: 587 for starttls, 465 for implicit, 25", default=0, minimum=0, maximum=65535)
    tls: str = setting("none: only for localhost", default=STARTTLS, choices=(STARTTLS, IMPLICIT, NO_TLS))
    ca_file: Path | None = setting("PEM of a further authority for its certificate", default=None)
    user: str = setting("login name; empty: no login", default="")
    password: Secret = setting("password of the login", default=Secret(""))
    from_address: str = setting("address of the sender; required with a host", default="")
    recipient_domains: tuple[str, ...] = setting("domains that e-mail may go to; empty: any", default=())
    timeout_seconds: float = setting("how long one e-mail may take", default=10.0, minimum=0.1, maximum=60)
    max_connections: int = setting("most connections of this process", default=10, minimum=1, maximum=100)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between the settings."""
        if not self.host:
            if self.from_address or self.user:
                yield f"{PREFIX}HOST is missing: e-mail needs a server"
            return
        if not is_email_address(self.from_address):
            yield f"{PREFIX}FROM_ADDRESS must be an e-mail address, such as tenure@example.com"
        if self.tls == NO_TLS and self.host not in _LOCAL_HOSTS:
            yield f"{PREFIX}TLS=none is only for localhost: anybody on the way could read and change the e-mail"
        if bool(self.password.reveal()) != bool(self.user):
            yield f"{PREFIX}USER needs {PREFIX}PASSWORD or {PREFIX}PASSWORD_FILE, and these need it"
        try:
            self.tls_context()
        except OSError as error:
            yield f"{PREFIX}CA_FILE: {self.ca_file} has no certificates: {error}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Returns the context that verifies the server; None: without TLS. Raises OSError for an invalid `ca_file`."""
        if not self.host or self.tls == NO_TLS:
            return None
        return tls_context(str(self.ca_file) if self.ca_file is not None else None)

    @property
    def longest_seconds(self) -> float:
        """The longest time that an e-mail takes; 0: this process sends none."""
        return self.timeout_seconds + QUIT_SECONDS if self.host else 0.0

    def check_recipients(self, addresses: Sequence[str]) -> None:
        """Raises WrongState (SMTP_NOT_CONFIGURED) without a server, and InvalidRequest for a domain that is not
        allowed.
        """
        if not self.host:
            raise WrongState(
                f"this installation sends no e-mail: its operator has to set {PREFIX}HOST and {PREFIX}FROM_ADDRESS",
                reason="SMTP_NOT_CONFIGURED",
                metadata={"setting": f"{PREFIX}HOST"},
            )
        refused = [address for address in addresses if not self.allows(address)]
        if refused:
            allowed = ", ".join(self.recipient_domains)
            raise InvalidRequest(violations=[("email_addresses", f"{refused[0]}: e-mail may only go to {allowed}")])

    def allows(self, address: str) -> bool:
        """Whether e-mail may go to the address."""
        return not self.recipient_domains or domain_of(address) in {one.lower() for one in self.recipient_domains}
