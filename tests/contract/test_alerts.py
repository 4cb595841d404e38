"""Rules, alerts and dashboards name what exists, and each alert leads to a page that helps."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.monitoring import PROMETHEUS, ROOT, alerts, dashboards, expressions, labels_of, recorded

PAGES = ROOT / "docs" / "operations"
INDEXES = {"alerts.md", "objectives.md"}
UNIT_TESTS = Path(__file__).parent / "prometheus"
SECTIONS = ("## What it means", "## What users notice", "## Look", "## Do", "## Escalate")


def test_every_metric_and_label_that_an_expression_names_exists() -> None:
    wrong = []
    for each in expressions():
        known: set[str] = set()
        for selector in each.named.selectors:
            labels = labels_of(selector.name)
            if labels is None:
                wrong.append(f"{each.where}: there is no {selector.name}")
                continue
            known |= labels
            wrong += [
                f"{each.where}: {selector.name} has no label {label}"
                for label, _, _ in selector.matchers
                if label not in labels
            ]
        wrong += [f"{each.where}: nothing has the label {label}" for label in each.named.grouped - known]
    assert wrong == []


def test_scan_reads_known_names() -> None:
    names = {selector.name for each in expressions() for selector in each.named.selectors}
    assert len(names) > 60
    assert {"tenure_pickup_seconds_bucket", "tenure:slo_budget:ratio", "up"} <= names


def test_every_alert_has_its_page() -> None:
    for alert in alerts():
        page = ROOT / alert["annotations"]["runbook_url"]
        assert page.parent == PAGES
        assert page.is_file(), f"{alert['alert']}: {page.name} is missing"
        text = page.read_text(encoding="utf-8")
        assert f"`{alert['alert']}`" in text
        assert [section for section in SECTIONS if section not in text] == []


def test_every_page_is_one_of_an_alert_and_in_the_index() -> None:
    index = (PAGES / "alerts.md").read_text(encoding="utf-8")
    pages = {path.name for path in PAGES.glob("*.md")} - INDEXES
    assert pages == {Path(alert["annotations"]["runbook_url"]).name for alert in alerts()}
    assert {name for name in pages if f"({name})" not in index} == set()
    assert {alert["alert"] for alert in alerts() if f"`{alert['alert']}`" not in index} == set()


def test_every_alert_has_a_severity() -> None:
    assert {alert["labels"]["severity"] for alert in alerts()} == {"page", "ticket"}
    assert all(alert["annotations"]["summary"] for alert in alerts())


def test_an_objective_alerts_fast_and_slow() -> None:
    objectives = {rule["labels"]["slo"] for name, rule in recorded().items() if name == "tenure:slo_budget:ratio"}
    assert objectives
    text = (PAGES / "objectives.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE))
    assert names == {"pickup", "takeover", "commit", "stream", "requests"}
    burning = [alert for alert in alerts() if "tenure:slo_errors" in alert["expr"]]
    for name in names:
        severities = {alert["labels"]["severity"] for alert in burning if f'slo="{name}"' in alert["expr"]}
        assert severities == {"page", "ticket"}, name


def test_dashboards_have_distinct_ids() -> None:
    assert dashboards().keys() == {"overview.json", "tasks.json", "workers.json", "stores.json", "tenants.json"}
    assert len({dashboard["uid"] for dashboard in dashboards().values()}) == len(dashboards())
    for name, dashboard in dashboards().items():
        identifiers = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(identifiers)) == len(identifiers), name
        assert any(panel.get("targets") for panel in dashboard["panels"])


def promtool(*arguments: str | Path) -> str:
    """Runs promtool. Skips without one: Debian has it in the package `prometheus`."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: on Debian it is in the package prometheus")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", ["prometheus.yml", "dev.yml"])
def test_prometheus_understands_the_configuration(file: str) -> None:
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / file)


@pytest.mark.nightly  # half a minute of processor time
@pytest.mark.parametrize("file", ["objectives.yml", "causes.yml"])
def test_alerts_fire_as_tested(file: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", UNIT_TESTS / file)


def test_every_alert_has_a_test_of_its_own() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(UNIT_TESTS.glob("*.yml")))
    assert {alert["alert"] for alert in alerts()} - set(re.findall(r"alertname: (\w+)", text)) == set()
