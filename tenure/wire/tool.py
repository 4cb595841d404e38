"""Converts tool definitions, outcomes, call records, calls in doubt and their resolutions."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import (
    Abandon,
    CallInDoubt,
    Decision,
    DidNotHappen,
    Happened,
    Resolution,
    ResolveCall,
)
from tenure.domain.kept_content import KeptContent
from tenure.domain.outputs import TaskOutput
from tenure.domain.tools import CallStatus, CallStatuses, Outcome, ProgramUsage, ToolDefinition
from tenure.v1 import ledger_pb2, tool_pb2, workspace_pb2
from tenure.wire.common import CALL_STATES, EFFECT_CLASSES, OUTCOME_STATUSES, OUTPUT_STATES, duration, seconds


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


def kept_to_domain(kept: workspace_pb2.KeptContent) -> KeptContent:
    return KeptContent(kept.path, kept.digest, kept.size_bytes)


def kept_to_wire(kept: KeptContent) -> workspace_pb2.KeptContent:
    return workspace_pb2.KeptContent(path=kept.path, digest=kept.digest, size_bytes=kept.size_bytes)


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
        output=output_to_domain(outcome.output) if outcome.HasField("output") else None,
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
        output=output_to_wire(outcome.output) if outcome.output is not None else None,
    )


def output_to_domain(output: tool_pb2.TaskOutput) -> TaskOutput:
    return TaskOutput(
        kind=output.kind,
        uri=output.uri,
        state=OUTPUT_STATES.to_domain(output.state),
        digest=output.digest,
        size_bytes=output.size_bytes if output.HasField("size_bytes") else None,
        description=output.description,
        call_id=output.call_id,
    )


def output_to_wire(output: TaskOutput) -> tool_pb2.TaskOutput:
    return tool_pb2.TaskOutput(
        kind=output.kind,
        uri=output.uri,
        digest=output.digest,
        size_bytes=output.size_bytes,
        description=output.description,
        call_id=output.call_id,
        state=OUTPUT_STATES.to_wire(output.state),
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


def call_statuses_to_domain(calls: Iterable[tool_pb2.CallRecord]) -> CallStatuses:
    """Converts call records to statuses by call id.

    Raises Unavailable for a call state that only a newer version knows: a process of that version must run the task.
    """
    try:
        return {
            call.call_id: CallStatus(
                CALL_STATES.to_domain(call.state),
                outcome_to_domain(call.outcome) if call.HasField("outcome") else None,
                call.call_attempt,
            )
            for call in calls
        }
    except ValueError as unknown:
        raise Unavailable(f"this version cannot read the state of a call: {unknown}", reason="NEWER_TOOLS") from unknown


# Calls in doubt and their resolutions.


def decision_to_domain(message: tool_pb2.InDoubtDecision) -> Decision:
    """Converts a decision. Raises ValueError for a kind that this version does not know."""
    match message.WhichOneof("decision"):
        case "happened":
            return Happened(message.happened.result)
        case "did_not_happen":
            did_not_happen = message.did_not_happen
            return DidNotHappen(did_not_happen.runner_is_gone, did_not_happen.runner_proven_gone)
        case "abandon":
            return Abandon()
        case _:
            raise ValueError("a decision about a call in doubt of a kind that this version does not know")


def decision_to_wire(decision: Decision) -> tool_pb2.InDoubtDecision:
    match decision:
        case Happened(result):
            return tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened(result=result))
        case DidNotHappen(is_gone, proven_gone):
            did_not_happen = tool_pb2.InDoubtDecision.DidNotHappen(
                runner_is_gone=is_gone, runner_proven_gone=proven_gone
            )
            return tool_pb2.InDoubtDecision(did_not_happen=did_not_happen)
        case Abandon():
            return tool_pb2.InDoubtDecision(abandon=tool_pb2.InDoubtDecision.Abandon())


def resolve_call_to_domain(message: ledger_pb2.OperatorRequest.ResolveCall) -> ResolveCall:
    return ResolveCall(message.call_id, message.call_attempt, decision_to_domain(message.decision))


def resolve_call_to_wire(resolve_call: ResolveCall) -> ledger_pb2.OperatorRequest.ResolveCall:
    return ledger_pb2.OperatorRequest.ResolveCall(
        call_id=resolve_call.call_id,
        call_attempt=resolve_call.call_attempt,
        decision=decision_to_wire(resolve_call.decision),
    )


def resolution_to_domain(message: tool_pb2.CallResolution) -> Resolution:
    return Resolution(message.call_attempt, decision_to_domain(message.decision), message.reason, message.actor)


def resolution_to_wire(resolution: Resolution) -> tool_pb2.CallResolution:
    return tool_pb2.CallResolution(
        call_attempt=resolution.call_attempt,
        decision=decision_to_wire(resolution.decision),
        reason=resolution.reason,
        actor=resolution.actor,
    )


def calls_in_doubt_to_domain(messages: Iterable[tool_pb2.CallInDoubt]) -> tuple[CallInDoubt, ...]:
    return tuple(CallInDoubt(call.call_id, call.call_attempt) for call in messages)


def calls_in_doubt_to_wire(calls: Iterable[CallInDoubt]) -> list[tool_pb2.CallInDoubt]:
    return [tool_pb2.CallInDoubt(call_id=call.call_id, call_attempt=call.call_attempt) for call in calls]
