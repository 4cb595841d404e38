"""Traces reach a collector by OTLP over HTTP as they do over gRPC, whatever it answers meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from services.checkpoint.traces import exporting
from services.checkpoint.traces.settings import TraceSettings
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.observability.telemetry import telemetry
from tenure.runtime.security.certificates import StoreCertificate, open_authority, write_certificate
from tenure.runtime.settings import ConfigurationError, load
from tests.conformance.test_traces_exported import ended, named, worked_off
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_collector import Collector, spans_in
from tests.support.http_stub import HttpStub, Seen, page
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first

EXPORT_PREFIX = "TENURE_CHECKPOINT_TRACES_"


class HttpCollector(Collector):
    """Takes spans by HTTP. `refuses`: the status that it answers to a request with these spans, or "" to take it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.http = HttpStub(self.answer, tls)
        self.refuses: Any = lambda _spans: ""
        self.rejects = 0

    def answer(self, seen: Seen) -> bytes:
        body = gzip.decompress(seen.body) if seen.headers.get("content-encoding") == "gzip" else seen.body
        spans = spans_in(ExportTraceServiceRequest.FromString(body))
        self.arrived.set()
        if status := self.refuses(spans):
            self.refused += 1
            return page("not these", status)
        self.spans += spans
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.rejects
        return page(answer.SerializeToString(), content_type="application/x-protobuf")

    @property
    def variables(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.http.url(), "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}

    def settings(self, **more: str) -> TraceSettings:
        return load(TraceSettings, {**self.variables, **more}, prefix=EXPORT_PREFIX)


@pytest.fixture
async def receiver() -> AsyncIterator[HttpCollector]:
    made = HttpCollector()
    async with made.http:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "AGAIN", RetryPolicy(initial_seconds=0.01, factor=1.0, cap_seconds=0.01))


async def test_spans_come_by_http(checkpoint: MakeCheckpoint, receiver: HttpCollector) -> None:
    more = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20sk-1,x-team=ops",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
    }
    ledger = await checkpoint(traces=receiver.settings(**more))
    spans = await ended(receiver, await worked_off(ledger, 2))
    assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (2, 2)
    seen = receiver.http.seen[0]
    assert (seen.method, seen.target) == ("POST", "/v1/traces")
    assert seen.headers["content-type"] == "application/x-protobuf"
    assert seen.headers["content-encoding"] == "gzip"
    assert (seen.headers["authorization"], seen.headers["x-team"]) == ("Bearer sk-1", "ops")


@pytest.mark.parametrize(
    "status", first(["503 Service Unavailable", "429 Too Many Requests", "401 Unauthorized", "302 Found"])
)
async def test_failing_collector_delays_spans_only(
    checkpoint: MakeCheckpoint, receiver: HttpCollector, status: str
) -> None:
    receiver.refuses = lambda _spans: status
    ledger = await checkpoint(traces=receiver.settings())
    task_id = await worked_off(ledger, 2)
    await receiver.until(lambda: receiver.refused > 5)
    assert receiver.spans == []
    receiver.refuses = lambda _spans: ""
    spans = await ended(receiver, task_id)
    assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (2, 2)


@pytest.mark.parametrize("status", first(["413 Content Too Large", "400 Bad Request"]))
async def test_a_span_that_it_refuses_is_left_out(
    checkpoint: MakeCheckpoint, receiver: HttpCollector, status: str
) -> None:
    receiver.refuses = lambda spans: (
        status if any(one.attributes.get("tenure.call.id") == "2.0" for one in spans) else ""
    )
    left_out = metrics.cell("tenure_trace_spans_left_out_total").value
    ledger = await checkpoint(traces=receiver.settings())
    spans = await ended(receiver, await worked_off(ledger, 3))
    assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (3, 2)
    assert metrics.cell("tenure_trace_spans_left_out_total").value == left_out + 1


async def test_spans_left_out_of_a_taken_request_are_counted(
    checkpoint: MakeCheckpoint, receiver: HttpCollector
) -> None:
    receiver.rejects = 1
    left_out = metrics.cell("tenure_trace_spans_left_out_total").value
    ledger = await checkpoint(traces=receiver.settings())
    await ended(receiver, await worked_off(ledger, 1))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while metrics.cell("tenure_trace_spans_left_out_total").value < left_out + len(receiver.http.seen):
            await asyncio.sleep(0.05)
    assert len(receiver.spans) == len(receiver.by_id)  # and none is sent again


async def test_collector_certificate_is_verified(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "authority", "collector")
    store = StoreCertificate("collector", ("127.0.0.1",), (ExtendedKeyUsageOID.SERVER_AUTH,))
    write_certificate(tmp_path, "collector", *authority.issue_for_store(store, 1))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "collector.pem", tmp_path / "collector.key.pem")
    receiver = HttpCollector(context)
    async with receiver.http:
        stranger = await checkpoint(traces=receiver.settings())
        await worked_off(stranger, 1)
        failures = metrics.cell("tenure_trace_export_failures_total").value
        async with asyncio.timeout(PATIENCE_SECONDS):
            while metrics.cell("tenure_trace_export_failures_total").value < failures + 3:
                await asyncio.sleep(0.05)
        assert receiver.http.seen == []
        known = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "authority" / "ca.pem")}
        ledger = await checkpoint(traces=receiver.settings(**known))
        await ended(receiver, await worked_off(ledger, 1))


async def test_metrics_come_by_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.runtime.observability.telemetry._FLUSH_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    names: set[str] = set()

    def answer(seen: Seen) -> bytes:
        assert (seen.method, seen.target) == ("POST", "/v1/metrics")
        request = ExportMetricsServiceRequest.FromString(seen.body)
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                names.update(metric.name for metric in scope.metrics)
        return page(b"", content_type="application/x-protobuf")

    async with HttpStub(answer) as stub:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": stub.url(), "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        async with telemetry("checkpoint", variables):
            metrics.count("tenure_trace_spans_left_out_total", 0)
            is_linked = True
            metrics.gauge("tenure_tool_source_linked", is_linked, source="test-metrics-by-http")
    metrics.REGISTRY.remove("tenure_tool_source_linked", source="test-metrics-by-http")
    assert {"tenure_trace_spans_left_out_total", "tenure_tool_source_linked"} <= names


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "'http/json' is neither grpc nor http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "needs a URL that begins with http:// or https://"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:PORT"}, "OTEL_EXPORTER_OTLP_ENDPOINT: .* needs a URL"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[::1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: .* needs a URL"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "hush"}, "write it as name=value"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "'zstd' is neither gzip nor none"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such/file"}, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ],
)
def test_settings_that_cannot_work_are_refused(variables: dict[str, str], said: str) -> None:
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        **variables,
    }
    with pytest.raises(ConfigurationError, match=said) as caught:
        load(TraceSettings, given, prefix=EXPORT_PREFIX)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://a/otlp/"}, "https://a/otlp/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://a/otlp"}, "https://a/otlp"),
    ],
)
def test_the_address_is_as_opentelemetry_says(variables: dict[str, str], url: str) -> None:
    given = {**variables, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    assert load(TraceSettings, given, prefix=EXPORT_PREFIX).http_target().url == url
