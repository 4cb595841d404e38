"""The metrics of tool calls."""

from __future__ import annotations

from functools import cache
from typing import Final

from services.tools.calls.records import CallRequest
from services.tools.registry import BUILT_IN, SEPARATOR
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.observability import metrics
from tenure.runtime.observability.metrics import OTHERS, BoundedNames, Cell, Histogram

OWN: Final = "own"
"""The source of tools that come with their call, because the caller runs them itself."""
MAX_TOOLS: Final = 200
"""Tools with labels of their own in a process: servers of others, and callers, choose the names of tools."""
_tool_label: Final = BoundedNames(MAX_TOOLS)
_PEAK_MEMORY: Final = "tenure_sandbox_peak_memory_bytes"


def source_of(tool: str, *, is_own: bool) -> str:
    """Returns the source of a tool by its name."""
    if is_own:
        return OWN
    source, separator, _ = tool.partition(SEPARATOR)
    return source if separator else BUILT_IN


def count_outcome(request: CallRequest, outcome: Outcome) -> None:
    """Counts a call that ended; for a program also its result class and its usage."""
    tool = _tool_label(request.tool)
    source = OTHERS if tool == OTHERS else source_of(request.tool, is_own=request.runs_at_caller)
    calls, seconds = _cells(tool, source, request.effect_class, outcome.status)
    calls.value += 1
    seconds.observe(outcome.duration_seconds)
    if (usage := outcome.usage) is None:
        return
    metrics.count("tenure_sandbox_results_total", result=outcome.detail or "OK")
    metrics.observe("tenure_sandbox_wall_seconds", usage.wall_seconds)
    if usage.cpu_seconds is not None:
        metrics.observe("tenure_sandbox_cpu_seconds", usage.cpu_seconds)
    if usage.peak_memory_bytes is not None:
        highest = metrics.cell(_PEAK_MEMORY)  # the peak of all programs since the start, to compare with the limit
        highest.value = max(highest.value, usage.peak_memory_bytes)


@cache  # tools with labels of their own are at most MAX_TOOLS
def _cells(tool: str, source: str, effect: EffectClass, status: OutcomeStatus) -> tuple[Cell, Histogram]:
    """Returns where a call is counted."""
    labels = {"tool": tool, "source": source, "effect": effect.value, "status": status.value}
    return metrics.cell("tenure_tool_calls_total", **labels), metrics.histogram("tenure_tool_call_seconds", tool=tool)


def count_calls_in_doubt(number: int) -> None:
    """Counts calls put in doubt: by an owner's request, by their tool, or at the end of their task."""
    metrics.count("tenure_calls_in_doubt_total", number)
