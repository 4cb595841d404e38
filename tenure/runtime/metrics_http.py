"""Exports metrics by OTLP over HTTP. Imported late, as all of OpenTelemetry's exporters are."""

from __future__ import annotations

import logging
from typing import Any, Final

import httpx2
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from tenure.runtime.otlp_http import OtlpHttp

_log: Final = logging.getLogger(__name__)


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
