"""Every metric that the code counts is described once, and every description is one of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tenure.runtime.observability.metric_catalogue import CATALOGUE, page
from tenure.runtime.observability.metrics import BUCKETS_SECONDS
from tests.contract.sources import ROOT, files_with, parse

FOLDERS = ("tenure", "services", "edges")
KINDS = {"cell": {"counter", "gauge"}, "count": {"counter"}, "gauge": {"gauge"}}
KINDS |= {"observe": {"histogram"}, "histogram": {"histogram"}, "remove": {"gauge"}}
THEMSELVES = {"tenure/runtime/observability/metrics.py", "tenure/runtime/observability/metric_catalogue.py"}
OWNERS = {"metrics", "REGISTRY", "registry", "self._registry"}
SOURCE_FACTS = {"tenure_tool_source_linked", "tenure_tool_source_tools", "tenure_tool_source_held"}
"""The name is put together from a part that varies: `tenure_tool_source_{name}`."""


class Use(NamedTuple):
    where: str
    service: str
    function: str
    name: str
    labels: frozenset[str] | None
    """None: passed on as `**labels`."""


@cache
def uses() -> list[Use]:
    files = files_with(rf"\b(?:metrics|REGISTRY|_?registry)\.(?:{'|'.join(KINDS)})\(", FOLDERS)
    counted = [use for file in files if file not in THEMSELVES for use in uses_in(file)]
    assert len(counted) > 80
    return counted


def uses_in(where: str) -> Iterator[Use]:
    tree = parse(where)
    service = where.split("/")[1] if where.startswith("services/") else ""
    constants = {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS):
            continue
        if ast.unparse(node.func.value) not in OWNERS or not node.args:
            continue
        first = node.args[0]
        if ast.unparse(first) in {"counter", "described.name"}:  # it exists from 0 on; it is counted elsewhere
            continue
        name = first.value if isinstance(first, ast.Constant) else constants.get(ast.unparse(first))
        names = SOURCE_FACTS if isinstance(first, ast.JoinedStr) else {name}
        passed_on = any(keyword.arg is None for keyword in node.keywords)
        labels = None if passed_on else frozenset(str(keyword.arg) for keyword in node.keywords)
        for each in names:
            assert isinstance(each, str), f"{where}:{node.lineno}: the name of a metric is a constant"
            yield Use(f"{where}:{node.lineno}", service, node.func.attr, each, labels)


def test_every_metric_of_the_code_is_described() -> None:
    unknown = {use.name: use.where for use in uses() if use.name not in CATALOGUE}
    assert unknown == {}, "describe it in tenure/runtime/observability/metric_catalogue.py"


def test_every_described_metric_is_in_the_code() -> None:
    assert CATALOGUE.keys() - {use.name for use in uses()} == set()


def test_kinds_labels_and_services_are_those_of_the_code() -> None:
    wrong = []
    for use in uses():
        described = CATALOGUE[use.name]
        if described.kind not in KINDS[use.function]:
            wrong.append(f"{use.where}: {use.name} is a {described.kind}")
        if use.labels is not None and use.labels != described.labels.keys():
            wrong.append(f"{use.where}: {use.name} has the labels {sorted(described.labels)}")
        if use.service and use.service not in described.services:
            wrong.append(f"{use.where}: {use.name} is reported by {described.services}")
    assert wrong == []


def test_no_label_identifies_a_task() -> None:
    forbidden = {"task", "task_id", "claim", "claim_id", "epoch", "session", "worker", "call", "goal", "request_id"}
    assert {each.name for each in CATALOGUE.values() if forbidden & each.labels.keys()} == set()


def test_the_page_has_the_tables_of_the_code() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert text == page(text), "run python -m tenure.runtime.observability.metric_catalogue"


def test_the_thresholds_of_the_objectives_are_bounds_of_buckets() -> None:
    """Prometheus can count only what ends at a bound."""
    assert {0.25, 1.0, 5.0, 10.0} <= set(BUCKETS_SECONDS)
