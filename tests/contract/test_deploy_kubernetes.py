"""deploy/kubernetes is what Kubernetes and the services understand, and confines as deploy/compose.yaml does."""

from __future__ import annotations

import importlib
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tenure.runtime.settings import describe
from tenure.serve import command_line
from tests.support.compose_file import DEPLOY, SERVICES, compose_services

FOLDER = DEPLOY / "kubernetes"
VERSIONS = ("1.33", "1.37")
OF_OTHERS = {"ScaledObject"}
"""Kinds of custom resources, whose schemas Kubernetes does not have."""
CLOSING_SECONDS = 30


def documents(kind: str = "") -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))]
    loaded = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in loaded if kind in {"", document["kind"]}]


def named(kind: str, name: str) -> dict[str, Any]:
    (document,) = [each for each in documents(kind) if each["metadata"]["name"] == name]
    return document


def pod(service: str) -> dict[str, Any]:
    spec: dict[str, Any] = named("Deployment", service)["spec"]["template"]["spec"]
    return spec


def container(service: str) -> dict[str, Any]:
    (only,) = pod(service)["containers"]
    chosen: dict[str, Any] = only
    return chosen


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_understands_every_document(version: str) -> None:
    checked = [document for document in documents() if document["kind"] not in OF_OTHERS]
    assert len(checked) > 20
    for document in checked:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_knows_its_settings_and_has_no_secret_there(service: str) -> None:
    kind = getattr(importlib.import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    known = set(re.findall(r"^([A-Z][A-Z0-9_]+)", describe(kind, prefix=f"TENURE_{service.upper()}_"), re.MULTILINE))
    variables = {each["name"]: each.get("value", "") for each in container(service)["env"]}
    assert variables.keys() - known == {"POD_IP"} & variables.keys()
    for name in variables:
        assert name.endswith("_FILE") or not re.search("PASSWORD|_KEY|DSN|SECRET|TOKEN", name)
    assert "TENURE_ALLOW_INSECURE_NETWORK" not in variables
    compose = compose_services()[service]["environment"]
    required = {name for name in compose if name.endswith(("_FILE", "_ADDRESS", "_ADDRESSES", "_ENDPOINTS"))}
    assert required - variables.keys() <= {"OPENAI_API_KEY_FILE"}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_time_to_drain_and_is_asked_for_health(service: str) -> None:
    kind = getattr(importlib.import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    fields = kind.__dataclass_fields__
    drain_seconds = fields["drain_seconds"].default if "drain_seconds" in fields else 10
    assert pod(service)["terminationGracePeriodSeconds"] > drain_seconds + CLOSING_SECONDS
    asked = container(service)["readinessProbe"]["exec"]["command"]
    assert asked == ["python", *command_line(service, "health")[1:]]
    assert named("PodDisruptionBudget", service)["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_is_confined(service: str) -> None:
    own, context = container(service)["securityContext"], pod(service)["securityContext"]
    assert context["runAsNonRoot"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    sandboxing = own["seccompProfile"]["type"] == "Unconfined"
    assert sandboxing == (service == "tools")
    assert pod(service).get("hostUsers", True) != sandboxing
    assert not pod(service)["automountServiceAccountToken"]


def test_processes_reach_what_compose_lets_them_reach() -> None:
    callers = {}
    for service in SERVICES:
        rule = named("NetworkPolicy", service)["spec"]["ingress"][0]
        peers = [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for peer in rule.get("from", ())]
        callers[service] = set(peers)
        port = int(container(service)["ports"][0]["containerPort"])
        assert rule["ports"] == [{"port": port}]
        assert {"name": "grpc", "port": port} in named("Service", service)["spec"]["ports"]
    assert callers["gateway"] == set()
    assert callers["tools"] == {"gateway", "coordinator", "worker"}
    assert named("NetworkPolicy", "nothing")["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_workers_follow_the_queue() -> None:
    trigger = named("ScaledObject", "worker")["spec"]["triggers"][0]["metadata"]
    assert {"tenure_queue_depth", "tenure_slots"} <= set(re.findall(r"tenure_\w+", trigger["query"]))
