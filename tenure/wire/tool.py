"""Converts tool definitions, outcomes, call records, calls in doubt and their resolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenure.domain.effect_keys import EffectKey
from tenure.domain.errors import Unavailable
from tenure.domain.images import Image, SubmittedFile
from tenure.domain.in_doubt import (
    Abandon,
    CallInDoubt,
    Decision,
    DidNotHappen,
    Happened,
    Resolution,
    ResolveCall,
    ResolvedCall,
)
from tenure.domain.outputs import TaskOutput
from tenure.domain.task import InputFile
from tenure.domain.texts import KeptContent
from tenure.domain.tools import (
    CallSettlement,
    CallStatus,
    CallStatuses,
    CheckWith,
    Compensation,
    Outcome,
    ProgramUsage,
    ToolDefinition,
)
from tenure.v1 import ledger_pb2, tool_pb2, tool_service_pb2, workspace_pb2
from tenure.wire.codec import pair, union
from tenure.wire.common import CALL_STATES

pair(EffectKey, tool_pb2.EffectKey)
compensation_to_wire, compensation_to_domain = pair(Compensation, tool_pb2.Compensation)
pair(CheckWith, tool_pb2.Settlement.CheckWith)
pair(CallSettlement, tool_pb2.Settlement, rename={"for_seconds": "for_time"})
tool_to_wire, tool_to_domain = pair(ToolDefinition, tool_pb2.ToolDefinition)
kept_to_wire, kept_to_domain = pair(KeptContent, workspace_pb2.KeptContent)
pair(Image, workspace_pb2.Image)
pair(InputFile, workspace_pb2.InputFile)
submitted_file_to_wire, submitted_file_to_domain = pair(SubmittedFile, workspace_pb2.SubmittedFile)
usage_to_wire, usage_to_domain = pair(
    ProgramUsage, tool_pb2.ProgramUsage, rename={"wall_seconds": "wall_time", "cpu_seconds": "cpu_time"}
)
output_to_wire, output_to_domain = pair(TaskOutput, tool_pb2.TaskOutput)
outcome_to_wire, outcome_to_domain = pair(Outcome, tool_pb2.Outcome)


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

call_in_doubt_to_wire, call_in_doubt_to_domain = pair(CallInDoubt, tool_pb2.CallInDoubt)
pair(Happened, tool_pb2.InDoubtDecision.Happened)
pair(DidNotHappen, tool_pb2.InDoubtDecision.DidNotHappen)
pair(Abandon, tool_pb2.InDoubtDecision.Abandon)
decision_to_wire: Callable[[Decision], tool_pb2.InDoubtDecision]
decision_to_wire, _ = union(Decision, tool_pb2.InDoubtDecision)
pair(ResolveCall, ledger_pb2.OperatorRequest.ResolveCall)
resolution_to_wire, resolution_to_domain = pair(Resolution, tool_pb2.CallResolution)
resolved_call_to_wire, resolved_call_to_domain = pair(ResolvedCall, tool_service_pb2.ResolvedCall)


def calls_in_doubt_to_domain(messages: Iterable[tool_pb2.CallInDoubt]) -> tuple[CallInDoubt, ...]:
    return tuple(map(call_in_doubt_to_domain, messages))


def calls_in_doubt_to_wire(calls: Iterable[CallInDoubt]) -> list[tool_pb2.CallInDoubt]:
    return list(map(call_in_doubt_to_wire, calls))
