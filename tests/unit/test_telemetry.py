"""Laws of what operators see: metrics, logs, traces."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenure.runtime import metrics, semconv
from tenure.runtime.logs import configure_logs, log_context
from tenure.runtime.metrics import MetricRegistry
from tenure.runtime.request_context import as_tenant, continue_trace, traceparent
from tenure.runtime.settings import Secret
from tenure.runtime.telemetry import MetricsExport, exporting, span, telemetry


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


def test_people_get_lines(logged: Any) -> None:
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


async def test_without_a_collector_a_span_is_nothing() -> None:
    async with telemetry("checkpoint", {}):
        with span("commit", {semconv.TASK_ID: "t"}) as nothing:
            assert not nothing.is_recording()
            assert traceparent() == ""


async def test_spans_are_exported_with_their_parents() -> None:
    exporter = InMemorySpanExporter()
    async with exporting(Resource.get_empty(), exporter, InMemoryMetricReader()):
        with span("invoke_agent messages", {semconv.TASK_ID: "t"}), span("chat claude"):
            pass
    chat, agent = exporter.get_finished_spans()
    assert chat.parent is not None
    assert agent.attributes is not None
    assert chat.parent.span_id == agent.context.span_id
    assert agent.attributes[semconv.TASK_ID] == "t"
    assert not trace.get_current_span().is_recording()


async def test_a_span_is_the_child_of_one_that_another_service_told_of() -> None:
    exporter = InMemorySpanExporter()
    async with exporting(Resource.get_empty(), exporter, None):
        with span("execute_tool asked"):
            response = traceparent()
        with span("elsewhere"), span("execute_tool run", parent=response):
            pass
    wanted, run, elsewhere = exporter.get_finished_spans()
    assert run.parent is not None
    assert run.parent.span_id == wanted.context.span_id
    assert run.context.trace_id == wanted.context.trace_id != elsewhere.context.trace_id


@pytest.mark.parametrize("expected", ["", "garbage", "00-00-00-00"])
async def test_a_trace_that_is_none_changes_nothing(expected: str) -> None:
    exporter = InMemorySpanExporter()
    async with exporting(Resource.get_empty(), exporter, None):
        continue_trace([("traceparent", expected)])
        with span("around"), span("within", parent=expected):
            pass
    within, around = exporter.get_finished_spans()
    assert around.parent is None
    assert within.parent is not None
    assert within.parent.span_id == around.context.span_id


async def test_a_collector_that_is_gone_does_not_hold_up_the_end(unused_tcp_port: int) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{unused_tcp_port}"}
    async with telemetry("checkpoint", environment, instance="i-1", version="1"):
        with span("commit") as exported:
            assert exported.is_recording()


@pytest.mark.parametrize(
    ("environment", "records"),
    [
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:{port}"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:{port}"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:{port}", "OTEL_SDK_DISABLED": "true"}, False),
    ],
    ids=["traces alone", "metrics alone", "disabled"],
)
async def test_each_signal_goes_where_its_own_variable_says(
    unused_tcp_port: int, environment: Any, records: bool
) -> None:
    given = {name: value.format(port=unused_tcp_port) for name, value in environment.items()}
    async with telemetry("checkpoint", given):
        with span("commit") as one:
            assert one.is_recording() is records


def test_a_requests_url_is_logged_without_secrets(logged: Any) -> None:
    stream = logged("json")
    for name in ("httpx", "httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).info("HTTP Request: GET https://a/?key=hush")
        logging.getLogger(name).warning("worth knowing")
    assert "hush" not in stream.getvalue()
    assert stream.getvalue().count("worth knowing") == 3
