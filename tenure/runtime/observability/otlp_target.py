"""Reads from the variables of OpenTelemetry where OTLP over HTTP (http/protobuf) sends telemetry.

OTEL_EXPORTER_OTLP_NAME is for all signals, OTEL_EXPORTER_OTLP_TRACES_NAME (or METRICS) for one and counts more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

PREFIX: Final = "OTEL_EXPORTER_OTLP_"
GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
PROTOCOLS: Final = (GRPC, HTTP)
_COMPRESSIONS: Final = ("", "none", "gzip")


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """The target of one signal: its URL, headers and options."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    compresses: bool = False


def variable_of(environment: Mapping[str, str], signal: str, name: str) -> str:
    """Returns the variable of one signal (TRACES, METRICS), or else that of all signals."""
    own = environment.get(f"{PREFIX}{signal}_{name}", "").strip()
    return own or environment.get(f"{PREFIX}{name}", "").strip()


def protocol_of(environment: Mapping[str, str], signal: str) -> str:
    """Returns the protocol of a signal: grpc unless a variable names another one."""
    return variable_of(environment, signal, "PROTOCOL") or GRPC


def http_target(environment: Mapping[str, str], signal: str) -> HttpTarget:
    """Returns where a signal goes. Raises ValueError, which names the malformed variable and shows no secret."""
    own = environment.get(f"{PREFIX}{signal}_ENDPOINT", "").strip()
    every = environment.get(f"{PREFIX}ENDPOINT", "").strip()
    url = own or f"{every.rstrip('/')}/v1/{signal.lower()}"
    if not _is_url(url):
        name = f"{signal}_ENDPOINT" if own else "ENDPOINT"
        raise ValueError(
            f"{PREFIX}{name}: the protocol {HTTP} needs a URL that begins with http:// or https://, such as "
            "http://collector:4318"
        )
    compression = variable_of(environment, signal, "COMPRESSION")
    if compression not in _COMPRESSIONS:
        raise ValueError(f"{PREFIX}COMPRESSION: {compression!r} is neither gzip nor none")
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (file := variable_of(environment, signal, name)) and not Path(file).is_file():
            raise ValueError(f"{PREFIX}{name}: the file {file} does not exist")
    return HttpTarget(
        url,
        _headers(variable_of(environment, signal, "HEADERS")),
        variable_of(environment, signal, "CERTIFICATE"),
        variable_of(environment, signal, "CLIENT_CERTIFICATE"),
        variable_of(environment, signal, "CLIENT_KEY"),
        compresses=compression == "gzip",
    )


def _is_url(text: str) -> bool:
    """Whether a request can be sent to the URL: the client reports other texts only when it sends one."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and text.isprintable()
            and " " not in text
        )
    except ValueError:  # a port that is not a number, or half of the brackets of an IPv6 address
        return False


def _headers(text: str) -> dict[str, str]:
    """Parses `name=value,name=value`, whose values are percent-encoded."""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition("=")
        if not (separator and name.strip() and name.isascii()):
            raise ValueError(f"{PREFIX}HEADERS: write it as name=value,name=value")
        headers[name.strip().lower()] = unquote(value.strip())
    return headers
