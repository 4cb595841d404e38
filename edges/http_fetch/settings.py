"""Defines the section `http_fetch` of the config file, and the rule which URLs it allows."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, field_validator

from services.tools.sources import Section
from tenure.domain.outbound import Networks, Url, UrlRefused, parse_host, parse_url
from tenure.runtime.release import VERSION

ANY_HOST: Final = "*"
_SUBDOMAINS: Final = "*."
_HEADER_VALUE: Final = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"
_AMBIGUOUS: Final = ("%2f", "%5c", "%25")  # a server might decode these once more


class AllowedHost(Section):
    """One allowed host.

    host: a name, `*.` and a name for all its subdomains, `*` for all names, or an IP address.
    paths: the allowed paths; each includes the paths below it.
    """

    host: str
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (80, 443)
    paths: tuple[str, ...] = ("/",)

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if host == ANY_HOST:
            return host
        if host.startswith(_SUBDOMAINS):
            return _SUBDOMAINS + parse_host(host.removeprefix(_SUBDOMAINS))
        return parse_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)

    @field_validator("paths")
    @classmethod
    def _are_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or str(parse_url(f"http://host{path}")) != f"http://host{path}" or "?" in path:
                raise ValueError(f"a path must begin with /, be percent-encoded and have no query: change {path}")
        return paths

    def covers(self, url: Url) -> bool:
        """Whether this entry covers the URL's host. `*` covers names only: an IP address needs its own entry."""
        if self.host.startswith(ANY_HOST):
            return not url.is_address and (self.host == ANY_HOST or url.host.endswith(self.host[1:]))
        return url.host == self.host

    def has_path(self, url: Url) -> bool:
        """Whether the path is equal to an allowed path or below one.

        Refuses paths that a server might decode again or resolve to another path.
        """
        if "/" in self.paths:
            return True
        if any(mark in url.path.lower() for mark in _AMBIGUOUS):
            return False
        if any(unquote(segment).partition(";")[0] in {".", ".."} for segment in url.path.split("/")):
            return False
        return any(url.path == path or url.path.startswith(path.rstrip("/") + "/") for path in self.paths)


def _canonical(entry: Any) -> Any:
    return {"host": entry} if isinstance(entry, str) else entry


class HttpFetchSettings(Section):
    """The section `http_fetch`.

    allowed_networks: the private networks that a host's name may resolve to.
    ca_file: certificate authorities that are trusted besides the system's.
    max_bytes: the size limit of a body; larger bodies would block the process longer while they become text.
    """

    allow: tuple[Annotated[AllowedHost, BeforeValidator(_canonical)], ...]
    allowed_networks: tuple[str, ...] = ()
    max_bytes: Annotated[int, Field(ge=1024, le=4 * 1024 * 1024)] = 1024 * 1024
    timeout_seconds: Annotated[float, Field(ge=0.1, le=300)] = 20.0
    max_redirects: Annotated[int, Field(ge=0, le=20)] = 5
    user_agent: Annotated[str, Field(max_length=200, pattern=_HEADER_VALUE)] = f"tenure/{VERSION}"
    ca_file: Path | None = None

    @field_validator("allowed_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        Networks(networks)
        return networks

    @field_validator("ca_file")
    @classmethod
    def _is_ca_file(cls, path: Path | None) -> Path | None:
        try:
            if path is not None:
                ssl.create_default_context(cafile=path)
        except OSError as error:
            raise ValueError(f"cannot read certificates from this file: {error.strerror or error}") from error
        return path

    def check(self, url: Url) -> None:
        """Raises UrlRefused with HOST_NOT_ALLOWED, PORT_NOT_ALLOWED or PATH_NOT_ALLOWED for a forbidden URL."""
        covering = [entry for entry in self.allow if entry.covers(url)]
        if not covering:
            raise UrlRefused("HOST_NOT_ALLOWED", f"{url.host} is not an allowed host.")
        open_ports = [entry for entry in covering if url.port in entry.ports]
        if not open_ports:
            raise UrlRefused("PORT_NOT_ALLOWED", f"Port {url.port} of {url.host} is not an allowed port.")
        if not any(entry.has_path(url) for entry in open_ports):
            raise UrlRefused("PATH_NOT_ALLOWED", f"This path of {url.host} is not an allowed path.")
