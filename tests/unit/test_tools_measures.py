"""What is counted of a program."""

from __future__ import annotations

import pytest

from services.tools.calls.metrics import count_outcome
from tenure.domain.tools import Outcome, OutcomeStatus, ProgramUsage
from tenure.runtime import metrics

COUNTED = ProgramUsage(wall_seconds=0.5, cpu_seconds=0.25, peak_memory_bytes=12 << 20)
RESULTS, PEAK = "tenure_sandbox_results_total", "tenure_sandbox_peak_memory_bytes"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> metrics.MetricRegistry:
    fresh = metrics.MetricRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", fresh)
    monkeypatch.setattr(metrics, "cell", fresh.cell)
    return fresh


def test_programs_are_counted_by_end_and_usage(registry: metrics.MetricRegistry) -> None:
    count_outcome("execute_python", Outcome(OutcomeStatus.SUCCEEDED, "", usage=COUNTED))
    count_outcome("execute_python", Outcome(OutcomeStatus.CANCELLED, "", detail="FENCED", usage=ProgramUsage(2.0)))
    count_outcome("list_files", Outcome(OutcomeStatus.SUCCEEDED, ""))
    assert (registry.read(RESULTS, result="OK"), registry.read(RESULTS, result="FENCED")) == (1, 1)
    assert registry.read(RESULTS) == 2
    assert registry.read("tenure_tool_calls_total") == 3
    assert (registry.read("tenure_sandbox_wall_seconds"), registry.read("tenure_sandbox_cpu_seconds")) == (2, 1)


def test_the_highest_peak_of_memory_is_kept(registry: metrics.MetricRegistry) -> None:
    for peak in (5, 9, 7):
        count_outcome("execute_python", Outcome(OutcomeStatus.SUCCEEDED, "", usage=ProgramUsage(1.0, 1.0, peak)))
    assert registry.read(PEAK) == 9
