"""The metrics of tool calls."""

from __future__ import annotations

from typing import Final

from tenure.domain.tools import Outcome
from tenure.runtime import metrics

_PEAK_MEMORY: Final = "tenure_sandbox_peak_memory_bytes"


def count_outcome(tool: str, outcome: Outcome) -> None:
    """Counts a call that ended; for a program also its result class and its usage."""
    metrics.count("tenure_tool_calls_total", tool=tool, status=outcome.status.value)
    metrics.observe("tenure_tool_call_seconds", outcome.duration_seconds, tool=tool)
    if (usage := outcome.usage) is None:
        return
    metrics.count("tenure_sandbox_results_total", result=outcome.detail or "OK")
    metrics.observe("tenure_sandbox_wall_seconds", usage.wall_seconds)
    if usage.cpu_seconds is not None:
        metrics.observe("tenure_sandbox_cpu_seconds", usage.cpu_seconds)
    if usage.peak_memory_bytes is not None:
        highest = metrics.cell(_PEAK_MEMORY)  # the peak of all programs since the start, to compare with the limit
        highest.value = max(highest.value, usage.peak_memory_bytes)


def count_calls_in_doubt(number: int) -> None:
    """Counts calls put in doubt: by an owner's request, by their tool, or at the end of their task."""
    metrics.count("tenure_calls_in_doubt_total", number)
