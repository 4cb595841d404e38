"""Laws of what operators see: metrics, logs, traces."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from services.checkpoint.traces.settings import TraceSettings
from tenure.domain.spans import parse_traceparent
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import configure_logs, log_context
from tenure.runtime.observability.metrics import MetricRegistry
from tenure.runtime.observability.telemetry import MetricsExport, telemetry
from tenure.runtime.request_context import (
    Exporting,
    as_tenant,
    continue_trace,
    trace_metadata,
    traceparent,
    within_trace,
)
from tenure.runtime.settings import ConfigurationError, Secret, load


@pytest.fixture
def logged() -> Iterator[Any]:
    """The text that came out, in the form asked for."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()

    def configure(form: str) -> io.StringIO:
        configure_logs("checkpoint", form=form, stream=stream)
        return stream

    yield configure
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_counters_add_and_are_read_by_some_of_their_labels() -> None:
    registry = MetricRegistry()
    registry.cell("x_total", service="a", reason="r").value += 2
    registry.cell("x_total", service="b", reason="r").value += 1
    assert registry.read("x_total") == 3
    assert registry.read("x_total", service="a") == 2
    assert registry.read("x_total", service="c") == 0
    assert registry.read("nothing") == 0


def test_the_same_labels_are_the_same_cell_in_any_order() -> None:
    assert metrics.cell("y_total", a="1", b="2") is metrics.cell("y_total", b="2", a="1")


def test_exporters_see_every_name_the_later_ones_too() -> None:
    registry, reader = MetricRegistry(), InMemoryMetricReader()
    registry.cell("early_total", service="a").value = 1
    export = MetricsExport(Resource.get_empty(), reader, registry)
    registry.cell("late").value = 2
    registry.histogram("took_seconds").observe(0.2)
    values = {}
    data: Any = reader.get_metrics_data()
    for resource in data.resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            values[metric.name] = [(dict(point.attributes), point.value) for point in metric.data.data_points]
    export.close()
    assert values["early_total"] == [({"service": "a"}, 1)]
    assert values["late"] == [({}, 2)]
    assert values["took_seconds_count"] == [({}, 1)]
    assert ({"le": "0.25"}, 1) in values["took_seconds_bucket"]


def test_a_log_line_is_one_json_object_with_its_facts(logged: Any) -> None:
    out = logged("json")
    with as_tenant("acme"), log_context(task="t-1", epoch=7), log_context(epoch=8):
        logging.getLogger("tenure.x").info("committed\n%s", "twice", extra={"sequence": 17, "dsn": Secret("hunter2")})
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "tenure.x",
        "message": "committed\ntwice",
        "service": "checkpoint",
        "task": "t-1",
        "epoch": 8,
        "tenant": "acme",
        "sequence": 17,
        "dsn": "***",
    }


def test_facts_end_with_their_block(logged: Any) -> None:
    out = logged("json")
    with log_context(task="t-1"):
        pass
    logging.getLogger("x").info("after")
    assert "task" not in json.loads(out.getvalue())


def test_an_exception_is_logged_with_its_stack_on_one_line(logged: Any) -> None:
    out = logged("json")
    try:
        int("broken")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    assert out.getvalue().count("\n") == 1
    assert "ValueError: invalid literal" in json.loads(out.getvalue())["stack"]


def test_a_very_long_fact_is_cut(logged: Any) -> None:
    out = logged("json")
    logging.getLogger("x").info("m", extra={"body": "x" * 100_000})
    assert len(out.getvalue()) < 10_000


def test_human_format_has_plain_lines(logged: Any) -> None:
    out = logged("human")
    with log_context(task="t-1"):
        logging.getLogger("tenure.runtime.x").warning("slow")
    assert out.getvalue().split(maxsplit=1)[1] == "WARNING runtime.x  slow  task=t-1\n"


def test_warnings_go_to_the_log(logged: Any) -> None:
    out = logged("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    assert json.loads(out.getvalue())["logger"] == "py.warnings"


HEADER = f"00-{'a' * 32}-{'b' * 16}-01"


def in_a_request(work: Any) -> Any:
    """Runs it with context variables of its own."""
    return copy_context().run(work)


@pytest.mark.parametrize("header", ["", "garbage", "00-00-00-00", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_invalid_traceparent_is_ignored(header: str) -> None:
    def work() -> None:
        continue_trace([("traceparent", header)])
        with within_trace(header):
            assert (traceparent(), trace_metadata()) == ("", ())

    in_a_request(work)


def test_a_request_continues_its_callers_trace() -> None:
    def work() -> None:
        continue_trace([("other", "x"), ("traceparent", HEADER)])
        assert trace_metadata() == (("traceparent", HEADER),)

    in_a_request(work)
    assert traceparent() == ""


def test_a_span_of_the_ledger_is_current_for_opentelemetry() -> None:
    with within_trace(HEADER):
        current = trace.get_current_span().get_span_context()
        assert trace.format_trace_id(current.trace_id) == "a" * 32
        assert traceparent() == HEADER
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_client_sends_the_current_span_of_its_application() -> None:
    with TracerProvider().get_tracer("app").start_as_current_span("request") as span:
        context = span.get_span_context()
        assert parse_traceparent(traceparent()) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")


def test_a_log_line_names_its_trace(logged: Any) -> None:
    out = logged("json")
    with within_trace(HEADER):
        logging.getLogger("x").info("within")
    assert json.loads(out.getvalue())["trace_id"] == "a" * 32


async def test_a_collector_that_is_gone_does_not_hold_up_the_end(unused_tcp_port: int) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{unused_tcp_port}"}
    async with telemetry("checkpoint", environment, instance="i-1", version="1"):
        metrics.count("z_total")


@pytest.mark.parametrize(
    ("environment", "exports"),
    [
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:{port}"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:{port}"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:{port}", "OTEL_SDK_DISABLED": "true"}, False),
        ({}, False),
    ],
    ids=["traces alone", "metrics alone", "disabled", "none"],
)
async def test_each_signal_has_its_own_endpoint(unused_tcp_port: int, environment: Any, exports: bool) -> None:
    given = {name: value.format(port=unused_tcp_port) for name, value in environment.items()}
    async with telemetry("checkpoint", given):
        assert Exporting.traces is exports
    Exporting.traces = False
    settings = load(TraceSettings, given, prefix="TENURE_CHECKPOINT_TRACES_")
    assert bool(settings.endpoint) is exports


@pytest.mark.parametrize("address", ["http://collector:4317", "collector:4317", "grpc://10.1.2.3:4317"])
def test_content_is_not_sent_in_clear_text(address: str) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "TENURE_CHECKPOINT_TRACES_CONTENT": "true"}
    with pytest.raises(ConfigurationError):
        load(TraceSettings, given, prefix="TENURE_CHECKPOINT_TRACES_")
    for safe in (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4317"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:1"},
    ):
        load(TraceSettings, {**given, **safe}, prefix="TENURE_CHECKPOINT_TRACES_")
    load(TraceSettings, {**given, "TENURE_CHECKPOINT_TRACES_ALLOW_INSECURE": "1"}, prefix="TENURE_CHECKPOINT_TRACES_")


def test_a_requests_url_is_logged_without_secrets(logged: Any) -> None:
    stream = logged("json")
    for name in ("httpx", "httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).info("HTTP Request: GET https://a/?key=hush")
        logging.getLogger(name).warning("worth knowing")
    assert "hush" not in stream.getvalue()
    assert stream.getvalue().count("worth knowing") == 3
