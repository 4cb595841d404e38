"""Reads from the variables of OpenTelemetry where OTLP over HTTP (http/protobuf) sends telemetry.

OTEL_EXPORTER_OTLP_NAME is for all signals, OTEL_EXPORTER_OTLP_TRACES_NAME (or METRICS) for one and counts more.
"""

from __future__ import annotations

import gzip
import logging
import ssl
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import httpx2
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

if TYPE_CHECKING:
    from collections.abc import Mapping


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


# Sends telemetry by OTLP over HTTP. It blocks for a bounded time, so its callers run in threads. Imported late, as all
# of OpenTelemetry's exporters are.
#
# `opentelemetry-exporter-otlp-proto-http` 1.45 is not used. A collector that sent its answer byte by byte held an
# export with a timeout of 3 s for as long as it sent, an answer of 400 MB took 800 MB of memory, and the target of a
# redirect counted as the collector. It also brings `requests`: 3 MB, and half a second of a start.

_log: Final = logging.getLogger(__name__)
_MAX_ANSWER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class OtlpAnswer:
    """The answer of the collector: the HTTP status, and the beginning of the body."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it took the request."""
        return 200 <= self.status < 300


class OtlpHttp:
    """A client of one collector for one signal."""

    def __init__(self, target: HttpTarget, timeout_seconds: float) -> None:
        """Raises OSError (also ssl.SSLError) for a certificate that cannot be read."""
        self._target, self._timeout_seconds = target, timeout_seconds
        self._client = httpx2.Client(
            verify=_tls_context(target), trust_env=False, timeout=timeout_seconds, headers=_fixed_headers(target)
        )

    def post(self, body: bytes) -> OtlpAnswer:
        """Sends a request within a bounded time. Raises httpx2.HTTPError when no answer comes."""
        ends_at = time.monotonic() + self._timeout_seconds
        content = gzip.compress(body, compresslevel=6) if self._target.compresses else body
        with self._client.stream("POST", self._target.url, content=content) as response:
            received = b""
            for part in response.iter_raw():
                received += part
                if len(received) > _MAX_ANSWER_BYTES or time.monotonic() > ends_at:
                    break
            return OtlpAnswer(response.status_code, received[:_MAX_ANSWER_BYTES])

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()


def _tls_context(target: HttpTarget) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate or None)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key or None)
    return context


def _fixed_headers(target: HttpTarget) -> dict[str, str]:
    fixed = {
        "content-type": "application/x-protobuf",
        "accept-encoding": "identity",
        "user-agent": f"tenure/{version('tenure')}",
    }
    return {**target.headers, **fixed, **({"content-encoding": "gzip"} if target.compresses else {})}


class HttpMetricExporter(MetricExporter):
    """Best effort: what a collector does not take is lost, and the next export has the totals."""

    def __init__(self, http: OtlpHttp) -> None:
        super().__init__()
        self._http = http

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:  # noqa: ARG002  the client has its own
        """Sends the metrics once."""
        try:
            answer = self._http.post(encode_metrics(metrics_data).SerializeToString())
        except (httpx2.HTTPError, OSError) as error:
            _log.warning("the collector of metrics cannot be reached", extra={"error": str(error)})
            return MetricExportResult.FAILURE
        if not answer.is_success:
            _log.warning("the collector does not take metrics", extra={"http_status": answer.status})
            return MetricExportResult.FAILURE
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:  # noqa: ARG002
        """Has nothing to flush."""
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:  # noqa: ARG002
        """Ends the connections."""
        self._http.close()
