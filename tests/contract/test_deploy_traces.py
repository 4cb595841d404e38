"""deploy/compose.traces.yaml adds a collector and a viewer of the ledger's traces, and opens nothing else."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import yaml

from tenure.runtime.settings import load
from tests.support.compose_file import DEPLOY, SERVICES, compose_file

ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def added() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.traces.yaml").read_text())
    return loaded


def collector() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "collector" / "collector.yaml").read_text())
    return loaded


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_sends_traces_where_they_are_taken(service: str) -> None:
    assert added()["services"][service] == {"environment": {ENDPOINT: "http://collector:4317"}}
    if service == "checkpoint":
        settings = importlib.import_module("services.checkpoint.traces.settings").TraceSettings
        read = load(settings, added()["services"][service]["environment"], prefix="TENURE_CHECKPOINT_TRACES_")
        assert read.endpoint == "http://collector:4317"
    receivers = collector()["receivers"]["otlp"]["protocols"]
    assert receivers["grpc"]["endpoint"] == "0.0.0.0:4317"


def test_the_collector_passes_traces_on_to_the_viewer() -> None:
    configured = collector()
    assert set(configured["service"]["pipelines"]) == {"traces"}
    for kind, names in configured["service"]["pipelines"]["traces"].items():
        assert set(names) == set(configured[kind])
    assert configured["exporters"]["otlp/jaeger"]["endpoint"] == "jaeger:4317"
    mounts = added()["services"]["collector"]["volumes"]
    assert mounts == ["./collector:/etc/tenure:ro"]
    assert added()["services"]["collector"]["command"] == ["--config=/etc/tenure/collector.yaml"]


def test_added_services_are_confined() -> None:
    assert set(added()["services"]) == {*SERVICES, "collector", "jaeger"}
    for name in ("collector", "jaeger"):
        service = added()["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0:")
        assert {"mem_limit", "pids_limit", "restart"} <= set(service)
    assert added()["services"]["jaeger"]["ports"] == ["127.0.0.1:16686:16686"]
    assert "ports" not in added()["services"]["collector"]


def test_the_viewer_does_not_reach_the_services() -> None:
    services = added()["services"]
    assert services["collector"]["networks"] == ["services", "traces"]
    assert services["jaeger"]["networks"] == ["traces", "viewers"]
    assert added()["networks"]["traces"] == {"internal": True}
    assert not set(added()["networks"]) & set(compose_file()["networks"])
