"""Laws of the registry of metrics: it is bounded, and never the reason why something fails."""

from __future__ import annotations

import logging

import pytest

from tenure.runtime.observability.metrics import MAX_SERIES_OF_A_NAME, OTHERS, MetricRegistry

MANY = 3 * MAX_SERIES_OF_A_NAME


def test_labels_beyond_the_bound_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    registry = MetricRegistry()
    with caplog.at_level(logging.WARNING):
        for number in range(MANY):
            registry.cell("warnings_total", tenant=f"t{number}", quota="tasks").value += 1
    assert registry.read("warnings_total") == MANY
    assert registry.read("warnings_total", tenant="t0") == 1
    assert registry.read("warnings_total", tenant=OTHERS, quota=OTHERS) == MANY - MAX_SERIES_OF_A_NAME
    assert len(registry.cells("warnings_total")) == MAX_SERIES_OF_A_NAME + 1
    assert [record.__dict__["metric"] for record in caplog.records] == ["warnings_total"]


def test_bound_is_per_name() -> None:
    registry = MetricRegistry()
    for number in range(MANY):
        registry.cell("flood_total", tenant=f"t{number}").value += 1
    registry.cell("calm_total", method="Commit").value += 1
    assert registry.read("calm_total", method="Commit") == 1
    known = registry.cell("flood_total", tenant="t1")
    assert registry.cell("flood_total", tenant="t1") is known


def test_histograms_are_bounded() -> None:
    registry = MetricRegistry()
    for number in range(MANY):
        registry.histogram("wait_seconds", tenant=f"t{number}").observe(0.1)
    assert registry.read("wait_seconds") == MANY
    assert len(registry.histograms("wait_seconds")) == MAX_SERIES_OF_A_NAME + 1
