"""Sends telemetry by OTLP over HTTP. It blocks for a bounded time, so its callers run in threads.

Imported late: `httpx2` and OpenTelemetry's encoders are for processes that export.

`opentelemetry-exporter-otlp-proto-http` 1.45 is not used. A collector that sent its answer byte by byte held an export
with a timeout of 3 s for as long as it sent, an answer of 400 MB took 800 MB of memory, and the target of a redirect
counted as the collector. It also brings `requests`: 3 MB, and half a second of a start.
"""

from __future__ import annotations

import gzip
import logging
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from tenure.runtime.release import VERSION

if TYPE_CHECKING:
    from tenure.runtime.observability.otlp_target import HttpTarget

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
        "user-agent": f"tenure/{VERSION}",
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
