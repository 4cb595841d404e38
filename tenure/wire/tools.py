"""Tool definitions, outcomes and call records."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.errors import Unavailable
from tenure.domain.tools import CallStandings, Outcome, ProgramUsage, Standing, ToolDefinition
from tenure.v1 import tool_pb2
from tenure.wire.enums import CALL_STATES, EFFECT_CLASSES, OUTCOME_STATUSES
from tenure.wire.times import duration, seconds


def tool_to_domain(tool: tool_pb2.ToolDefinition) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        input_schema_json=tool.input_schema_json,
        effect_class=EFFECT_CLASSES.to_domain(tool.effect_class),
        timeout_seconds=seconds(tool.timeout),
        output_limit_bytes=tool.output_limit_bytes,
    )


def tool_to_wire(tool: ToolDefinition) -> tool_pb2.ToolDefinition:
    return tool_pb2.ToolDefinition(
        name=tool.name,
        description=tool.description,
        input_schema_json=tool.input_schema_json,
        timeout=duration(tool.timeout_seconds),
        output_limit_bytes=tool.output_limit_bytes,
        effect_class=EFFECT_CLASSES.to_wire(tool.effect_class),
    )


def outcome_to_domain(outcome: tool_pb2.Outcome) -> Outcome:
    return Outcome(
        status=OUTCOME_STATUSES.to_domain(outcome.status),
        content=outcome.content,
        truncated=outcome.truncated,
        detail=outcome.detail,
        duration_seconds=seconds(outcome.duration),
        call_attempt=outcome.call_attempt,
        output_path=outcome.output_path,
        usage=usage_to_domain(outcome.usage) if outcome.HasField("usage") else None,
    )


def outcome_to_wire(outcome: Outcome) -> tool_pb2.Outcome:
    return tool_pb2.Outcome(
        status=OUTCOME_STATUSES.to_wire(outcome.status),
        content=outcome.content,
        truncated=outcome.truncated,
        detail=outcome.detail,
        duration=duration(outcome.duration_seconds),
        call_attempt=outcome.call_attempt,
        output_path=outcome.output_path,
        usage=usage_to_wire(outcome.usage) if outcome.usage is not None else None,
    )


def usage_to_domain(usage: tool_pb2.ProgramUsage) -> ProgramUsage:
    return ProgramUsage(
        wall_seconds=seconds(usage.wall_time),
        cpu_seconds=seconds(usage.cpu_time) if usage.HasField("cpu_time") else None,
        peak_memory_bytes=usage.peak_memory_bytes if usage.HasField("peak_memory_bytes") else None,
    )


def usage_to_wire(usage: ProgramUsage) -> tool_pb2.ProgramUsage:
    return tool_pb2.ProgramUsage(
        wall_time=duration(usage.wall_seconds),
        cpu_time=duration(usage.cpu_seconds) if usage.cpu_seconds is not None else None,
        peak_memory_bytes=usage.peak_memory_bytes,
    )


def standings_to_domain(calls: Iterable[tool_pb2.CallRecord]) -> CallStandings:
    """Unavailable when a call stands in a way that only a newer version knows: that one has to go on with the task."""
    try:
        return {
            call.call_id: Standing(
                CALL_STATES.to_domain(call.state),
                outcome_to_domain(call.outcome) if call.HasField("outcome") else None,
                call.call_attempt,
            )
            for call in calls
        }
    except ValueError as unknown:
        raise Unavailable(f"a call's state: {unknown}", reason="NEWER_TOOLS") from unknown
