"""Reads the monitoring files of deploy/: the rules, the alerts and the dashboards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tenure.runtime.observability.metric_catalogue import CATALOGUE
from tests.support.promql import Named, named_in

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
GRAFANA: Final = ROOT / "deploy" / "grafana"
TARGET_LABELS: Final = frozenset({"job", "instance", "component", "process"})
"""Labels that Prometheus gives to all series of a process: prometheus.yml and the targets of `tenure dev`."""
OF_PROMETHEUS: Final = {"up": frozenset[str]()}
OF_PROCESSES: Final = {"process_cpu_seconds_total": frozenset[str](), "process_resident_memory_bytes": frozenset[str]()}
_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")


class Expression(NamedTuple):
    where: str
    text: str

    @property
    def named(self) -> Named:
        return named_in(self.text)


@cache
def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules("alerts.yml") if "alert" in rule]


@cache
def recorded() -> dict[str, dict[str, Any]]:
    return {rule["record"]: rule for rule in rules("rules.yml")}


@cache
def dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GRAFANA.glob("*.json"))}


def expressions() -> Iterator[Expression]:
    """All expressions of PromQL in deploy/."""
    for file in ("rules.yml", "alerts.yml"):
        for rule in rules(file):
            yield Expression(f"{file}: {rule.get('alert') or rule.get('record')}", rule["expr"])
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield Expression(f"{name}: {panel['title']}", target["expr"])


def base_name(name: str) -> str:
    """Returns the metric of a series: without the ending of a histogram's."""
    base = _SUFFIX.sub("", name)
    return base if base in CATALOGUE and CATALOGUE[base].kind == "histogram" else name


def labels_of(name: str) -> frozenset[str] | None:
    """Returns the labels that a series can have, or None for a series that no service reports."""
    if name in OF_PROMETHEUS or name in OF_PROCESSES:
        return TARGET_LABELS
    if name in recorded():
        return frozenset(recorded()[name].get("labels", {})) | named_in(recorded()[name]["expr"]).grouped
    described = CATALOGUE.get(base_name(name))
    if described is None or (described.kind == "histogram") != (base_name(name) != name):
        return None
    bucket = {"le"} if name.endswith("_bucket") else set()
    return frozenset(described.labels) | TARGET_LABELS | bucket
