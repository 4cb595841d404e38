"""What is counted of calls, and what their spans say."""

from __future__ import annotations

from typing import Final

from tenure.domain.tools import Outcome
from tenure.runtime import metrics, semconv

_PEAK_MEMORY: Final = "tenure_sandbox_peak_memory_bytes"


def count_outcome(tool: str, outcome: Outcome) -> None:
    """A call has ended; of a program also its result class and what it used."""
    metrics.count("tenure_tool_calls_total", tool=tool, status=outcome.status.value)
    metrics.observe("tenure_tool_call_seconds", outcome.duration_seconds, tool=tool)
    if (usage := outcome.usage) is None:
        return
    metrics.count("tenure_sandbox_results_total", result=outcome.detail or "OK")
    metrics.observe("tenure_sandbox_wall_seconds", usage.wall_seconds)
    if usage.cpu_seconds is not None:
        metrics.observe("tenure_sandbox_cpu_seconds", usage.cpu_seconds)
    if usage.peak_memory_bytes is not None:
        highest = metrics.cell(_PEAK_MEMORY)  # of all programs since the start: how near the limit they come
        highest.value = max(highest.value, usage.peak_memory_bytes)


def count_calls_in_doubt(number: int) -> None:
    """So many calls were found in doubt: by an owner that asked, by their tool, or when their task was ended."""
    metrics.count("tenure_calls_in_doubt_total", number)


def outcome_attributes(outcome: Outcome) -> dict[str, str | int | float]:
    """For the call's span."""
    attributes: dict[str, str | int | float] = {semconv.OUTCOME: outcome.status.value}
    if outcome.detail:
        attributes[semconv.OUTCOME_DETAIL] = outcome.detail
    if (usage := outcome.usage) is None:
        return attributes
    attributes[semconv.SANDBOX_WALL_SECONDS] = usage.wall_seconds
    if usage.cpu_seconds is not None:
        attributes[semconv.SANDBOX_CPU_SECONDS] = usage.cpu_seconds
    if usage.peak_memory_bytes is not None:
        attributes[semconv.SANDBOX_PEAK_MEMORY_BYTES] = usage.peak_memory_bytes
    return attributes
