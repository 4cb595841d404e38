"""deploy/compose.metrics.yaml adds Prometheus and Grafana, and opens nothing else."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import yaml

from tenure.runtime.service import CommonSettings
from tenure.runtime.settings import load
from tests.support.compose_file import DEPLOY, SERVICES, compose_file

PORTS = {"gateway": 9470, "coordinator": 9471, "checkpoint": 9472, "tools": 9473, "worker": 9474, "models": 9476}


def added() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.metrics.yaml").read_text())
    return loaded


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_serves_metrics_where_prometheus_asks(service: str) -> None:
    environment = added()["services"][service]["environment"]
    assert set(added()["services"][service]) == {"environment"}
    module = importlib.import_module(f"services.{service}.main")
    assert "metrics_listen" in getattr(module, f"{service.capitalize()}Settings").__dataclass_fields__
    variable = "TENURE_METRICS_ALLOW_NETWORK"
    assert load(CommonSettings, {variable: environment[variable]}, prefix="TENURE_").metrics_allow_network
    assert environment[f"TENURE_{service.upper()}_METRICS_LISTEN"] == f"0.0.0.0:{PORTS[service]}"
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert {"names": [service], "type": "A", "port": PORTS[service]} in scraped["dns_sd_configs"]


def test_added_services_are_confined() -> None:
    for name in ("prometheus", "grafana"):
        service = added()["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0:")
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert {"mem_limit", "pids_limit", "restart"} <= set(service)


def test_only_prometheus_joins_the_services() -> None:
    services = added()["services"]
    assert services["prometheus"]["networks"] == ["services", "dashboards"]
    assert services["grafana"]["networks"] == ["dashboards"]
    assert compose_file()["networks"]["services"] == {"internal": True}


def test_dashboards_and_their_source_are_mounted() -> None:
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/tenure.yml").read_text())["providers"][0]
    mounts = added()["services"]["grafana"]["volumes"]
    assert f"./grafana:{provider['options']['path']}:ro" in mounts
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
