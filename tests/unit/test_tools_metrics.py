"""What is counted of a program."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from services.tools.calls.metrics import MAX_TOOLS, count_outcome
from services.tools.calls.records import CallKey, CallRequest
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus, ProgramUsage
from tenure.runtime.observability import metrics


def request(tool: str, effect: EffectClass = EffectClass.PURE, *, is_own: bool = False) -> CallRequest:
    claims: Any = None
    return CallRequest(CallKey(UUID(int=1), "1.0"), claims, tool, effect, b"{}", runs_at_caller=is_own)


COUNTED = ProgramUsage(wall_seconds=0.5, cpu_seconds=0.25, peak_memory_bytes=12 << 20)
RESULTS, PEAK = "tenure_sandbox_results_total", "tenure_sandbox_peak_memory_bytes"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> metrics.MetricRegistry:
    fresh = metrics.MetricRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", fresh)
    monkeypatch.setattr(metrics, "cell", fresh.cell)
    return fresh


def test_programs_are_counted_by_end_and_usage(registry: metrics.MetricRegistry) -> None:
    count_outcome(request("execute_python"), Outcome(OutcomeStatus.SUCCEEDED, "", usage=COUNTED))
    count_outcome(
        request("execute_python"), Outcome(OutcomeStatus.CANCELLED, "", detail="FENCED", usage=ProgramUsage(2.0))
    )
    count_outcome(request("list_files"), Outcome(OutcomeStatus.SUCCEEDED, ""))
    assert (registry.read(RESULTS, result="OK"), registry.read(RESULTS, result="FENCED")) == (1, 1)
    assert registry.read(RESULTS) == 2
    assert registry.read("tenure_tool_calls_total") == 3
    assert registry.read("tenure_tool_calls_total", source="built-in", effect="PURE") == 3
    assert (registry.read("tenure_sandbox_wall_seconds"), registry.read("tenure_sandbox_cpu_seconds")) == (2, 1)


def test_calls_are_counted_by_source_and_effect(registry: metrics.MetricRegistry) -> None:
    failed = Outcome(OutcomeStatus.FAILED, "")
    count_outcome(request("bank__pay", EffectClass.UNSAFE), failed)
    count_outcome(request("refund", EffectClass.KEYED, is_own=True), failed)
    for number in range(2 * MAX_TOOLS):
        count_outcome(request(f"bank__{number}"), failed)
    assert registry.read("tenure_tool_calls_total", source="bank", effect="UNSAFE", status="FAILED") == 1
    assert registry.read("tenure_tool_calls_total", source="own", effect="KEYED", tool="refund") == 1
    assert len(registry.cells("tenure_tool_calls_total")) <= MAX_TOOLS + 1


def test_the_highest_peak_of_memory_is_kept(registry: metrics.MetricRegistry) -> None:
    for peak in (5, 9, 7):
        count_outcome(
            request("execute_python"), Outcome(OutcomeStatus.SUCCEEDED, "", usage=ProgramUsage(1.0, 1.0, peak))
        )
    assert registry.read(PEAK) == 9
