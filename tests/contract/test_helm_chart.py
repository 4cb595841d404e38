"""deploy/helm/tenure renders what Kubernetes understands, and refuses values that cannot work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.compose_file import ROOT
from tests.support.fix_node import packages
from tests.support.helm_chart import (
    ALL,
    CHART,
    EXAMPLES,
    NAMESPACE,
    VALUES,
    Manifests,
    component,
    container,
    example,
    helm,
    manifests,
    render,
    rendered,
    values_of,
)
from tests.support.monitoring import labels_of
from tests.support.promql import named_in

VERSIONS = (pytest.param("1.33", marks=pytest.mark.nightly), "1.37")
OF_OTHERS = {"ScaledObject", "PodMonitor"}
"""Kinds of custom resources, whose schemas Kubernetes does not have."""
ADDED_BY_SCRAPES = {"namespace", "pod"}


@pytest.mark.parametrize("name", ALL)
def test_helm_finds_no_fault_in_the_chart(name: str) -> None:
    report = helm().lint(CHART, values_of(name), strict=True, namespace=NAMESPACE)
    problems = [each for each in report["messages"] if each["severity"] > 1]
    assert (report["errors"], problems) == ([], [])


def test_every_example_is_rendered() -> None:
    assert {path.stem for path in VALUES.glob("*.yaml")} == set(EXAMPLES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "production" else pytest.mark.nightly) for name in ALL]
)
def test_kubernetes_understands_every_document(name: str, version: str) -> None:
    checked = [document for document in rendered(name) if document["kind"] not in OF_OTHERS]
    assert len(checked) > 15
    for document in checked:
        kubernetes_validate.validate(document, version, strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(name)]
    assert len(names) == len(set(names))


@pytest.mark.nightly  # the compiler reads all types: some seconds
def test_custom_resources_are_those_of_their_projects(node: Path, tmp_path: Path) -> None:
    """KEDA and the Prometheus operator publish types, against which the TypeScript compiler checks each document."""
    modules = {
        "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
        "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
    }
    assert modules.keys() == OF_OTHERS
    checked = [each for name in ALL for each in rendered(name) if each["kind"] in OF_OTHERS]
    assert {each["kind"] for each in checked} == OF_OTHERS
    lines = [f'import type {{ I{kind} }} from "{module}";' for kind, module in modules.items()]
    lines += [f"export const d{at}: I{each['kind']} = {json.dumps(each)};" for at, each in enumerate(checked)]
    assert compiled(node, tmp_path, lines) == ""
    misspelt = json.loads(json.dumps(next(each for each in checked if each["kind"] == "ScaledObject")))
    misspelt["spec"]["minReplicas"] = misspelt["spec"].pop("minReplicaCount")
    refused = compiled(node, tmp_path, [lines[0], f"export const d: IScaledObject = {json.dumps(misspelt)};"])
    assert "'\"minReplicas\"' does not exist" in refused


def compiled(node: Path, folder: Path, lines: Sequence[str]) -> str:
    """What the TypeScript compiler says of these lines."""
    (folder / "documents.ts").write_text("\n".join(lines))
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(packages())
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
    command = [str(node), "node_modules/typescript/bin/tsc", *options, "documents.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gatway": {}}, "gatway"),
        ({"worker": {"queue": ["default"]}}, "queue"),
        ({"pools": {"Acme_1": {}}}, "Acme_1"),
        ({"tools": {"env": {"TICKETS_TOKEN": "sk-secret"}}}, "TICKETS_TOKEN"),
        ({"checkpoint": {"env": {"TENURE_CHECKPOINT_POSTGRES_DSN": "postgresql://a:b@c/d"}}}, "POSTGRES_DSN"),
        ({"worker": {"slots": 0}}, "slots"),
        ({"tools": {"workspaces": {"accessModes": ["ReadWriteOnce"]}}}, "needs ReadWriteMany"),
        ({"ingress": {"enabled": True}}, "ingress.host"),
        ({"ingress": {"enabled": True, "host": "a.example"}, "gateway": {"http": {"enabled": False}}}, "http.enabled"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm().HelmError, match=re.escape(said)):
        render(values)


def test_every_value_is_in_the_schema() -> None:
    """A default that the schema does not know could not be set."""
    render(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (version,) = re.findall(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert chart["version"] == chart["appVersion"] == version


def test_an_image_can_be_named_by_digest() -> None:
    of_services = {container(pod)["image"] for name, pod in manifests("production").pods()}
    assert of_services == {f"registry.example.com/tenure@{example('production')['image']['digest']}"}
    of_pools = {name: container(pod) for name, pod in manifests("keda").pods() if component(pod) == "worker"}
    assert of_pools["tenure-worker-batch"]["image"] == "registry.example.com/agents:7"
    assert of_pools["tenure-worker-batch"]["command"] == ["tini", "--", "python", "agents.py"]
    assert "args" not in of_pools["tenure-worker-batch"]
    assert of_pools["tenure-worker-default"]["args"] == ["worker"]


def query(pool: str) -> str:
    scaled = manifests("keda").of_kind("ScaledObject")[f"tenure-worker-{pool}"]
    text: str = scaled["spec"]["triggers"][0]["metadata"]["query"]
    return text


@pytest.mark.parametrize("pool", ["default", "batch"])
def test_workers_follow_the_metrics_that_exist(pool: str) -> None:
    name = f"tenure-worker-{pool}"
    scaled = manifests("keda").of_kind("ScaledObject")[name]["spec"]
    assert scaled["scaleTargetRef"] == {"name": name}
    deployment = manifests("keda").of_kind("Deployment")[name]["spec"]
    assert "replicas" not in deployment  # an upgrade would undo what KEDA chose
    trigger = scaled["triggers"][0]["metadata"]
    variables = container(deployment["template"])["env"]
    assert {"name": "TENURE_WORKER_SLOTS", "value": trigger["threshold"]} in variables
    selectors = named_in(trigger["query"]).selectors
    assert {each.name for each in selectors} >= {"tenure_queue_depth", "tenure_worker_slots"}
    for selector in selectors:
        labels = labels_of(selector.name)
        assert labels is not None
        assert {label for label, _, _ in selector.matchers} - labels <= ADDED_BY_SCRAPES


ALIVE = """
    - {series: 'tenure_build_info{namespace="agents",service="checkpoint",pod="c1"}', values: '1'}
"""
QUEUED = """
    - {series: 'tenure_queue_depth{namespace="agents",queue="batch",priority="LOW",pod="c1"}', values: '9'}
    - {series: 'tenure_queue_depth{namespace="agents",queue="batch",priority="LOW",pod="c2"}', values: '9'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="batch",priority="LOW",pod="c1"}', values: '2'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="batch",priority="LOW",pod="c2"}', values: '2'}
    - {series: 'tenure_queue_depth{namespace="agents",queue="batchxlow",priority="LOW",pod="c1"}', values: '100'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="batchxlow",priority="LOW",pod="c1"}', values: '0'}
    - {series: 'tenure_queue_depth{namespace="others",queue="batch",priority="LOW",pod="c1"}', values: '100'}
    - {series: 'tenure_queue_held_back{namespace="others",queue="batch",priority="LOW",pod="c1"}', values: '0'}
"""
RUNNING = """
    - {series: 'tenure_worker_slots{namespace="agents",state="used",pod="tenure-worker-batch-5d9-x7k"}', values: '3'}
    - {series: 'tenure_worker_slots{namespace="agents",state="used",pod="tenure-worker-batch-5d9-p2m"}', values: '1'}
    - {series: 'tenure_worker_slots{namespace="agents",state="free",pod="tenure-worker-batch-5d9-p2m"}', values: '3'}
    - {series: 'tenure_worker_slots{namespace="agents",state="used",pod="tenure-worker-default-77c-aaa"}', values: '50'}
"""


TIERS = """
    - {series: 'tenure_queue_depth{namespace="agents",queue="default",priority="HIGH",pod="c1"}', values: '5'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="default",priority="HIGH",pod="c1"}', values: '1'}
    - {series: 'tenure_queue_depth{namespace="agents",queue="default",priority="NORMAL",pod="c1"}', values: '20'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="default",priority="NORMAL",pod="c1"}', values: '0'}
    - {series: 'tenure_queue_depth{namespace="agents",queue="default",priority="LOW",pod="c1"}', values: '300'}
    - {series: 'tenure_queue_held_back{namespace="agents",queue="default",priority="LOW",pod="c1"}', values: '0'}
"""


def measured(expression: str, series: str, expected: list[int], folder: Path) -> None:
    """Fails unless Prometheus computes these values. Skips without promtool."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: on Debian it is in the package prometheus")
    samples = [{"labels": "{}", "value": value} for value in expected]
    case = {
        "interval": "15s",
        "input_series": yaml.safe_load(series),
        "promql_expr_test": [{"expr": expression, "eval_time": "0s", "exp_samples": samples}],
    }
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    done = subprocess.run([program, "test", "rules", folder / "test.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (ALIVE + QUEUED + RUNNING, [7 + 4]),
        (ALIVE + QUEUED, [7]),
        (ALIVE + RUNNING, [4]),
        (ALIVE, [0]),
        (RUNNING, []),  # the queue is unknown: the number of workers stays
    ],
)
def test_prometheus_counts_the_tasks_of_a_pool(series: str, expected: list[int], tmp_path: Path) -> None:
    measured(query("batch"), series, expected, tmp_path)


@pytest.mark.parametrize(("priorities", "expected"), [(["HIGH"], 4), (["NORMAL", "HIGH"], 24), (None, 324)])
def test_a_pool_follows_its_tiers_only(priorities: list[str] | None, expected: int, tmp_path: Path) -> None:
    """Without a tier of its own, a backlog of LOW tasks would start workers that take none of them."""
    pool = {} if priorities is None else {"priorities": priorities}
    values = {**example("keda"), "pools": {"default": pool}}
    (scaled,) = Manifests(render(values)).of_kind("ScaledObject").values()
    expression = scaled["spec"]["triggers"][0]["metadata"]["query"]
    chosen = [
        [value for label, _, value in each.matchers if label == "priority"]
        for each in named_in(expression).selectors
        if each.name.startswith("tenure_queue")
    ]
    assert chosen == [["|".join(priorities or ["HIGH", "NORMAL", "LOW"])]] * 2
    measured(expression, ALIVE + TIERS, [expected], tmp_path)


def test_a_monitor_finds_the_metrics_of_every_process() -> None:
    (monitor,) = manifests("production").of_kind("PodMonitor").values()
    spec, labels = monitor["spec"], monitor["metadata"]["labels"]
    assert labels["release"] == "prometheus"
    (chosen,) = spec["selector"]["matchExpressions"]
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    (job,) = set(re.findall(r'job="([^"]*)"', alerts))
    for name, deployment in manifests("production").of_kind("Deployment").items():
        template = deployment["spec"]["template"]
        assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"][spec["jobLabel"]] == job, name
        assert component(template) in chosen["values"], name
        assert spec["podMetricsEndpoints"][0]["port"] in {each["name"] for each in container(template)["ports"]}
    assert spec["podMetricsEndpoints"][0]["relabelings"][0]["targetLabel"] == "component"
