"""Calls in doubt, and words on them."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.in_doubt import (
    Abandon,
    CallInDoubt,
    Decision,
    DidNotHappen,
    Happened,
    Resolution,
    ResolveCall,
)
from tenure.v1 import ledger_pb2, tool_pb2


def decision_to_domain(message: tool_pb2.InDoubtDecision) -> Decision:
    """ValueError for a decision that this version does not know."""
    match message.WhichOneof("decision"):
        case "happened":
            return Happened(message.happened.result)
        case "did_not_happen":
            told = message.did_not_happen
            return DidNotHappen(told.runner_is_gone, told.runner_proven_gone)
        case "abandon":
            return Abandon()
        case _:
            raise ValueError("a word on a call in doubt of a kind that this version does not know")


def decision_to_wire(decision: Decision) -> tool_pb2.InDoubtDecision:
    match decision:
        case Happened(result):
            return tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened(result=result))
        case DidNotHappen(by_word, by_proof):
            told = tool_pb2.InDoubtDecision.DidNotHappen(runner_is_gone=by_word, runner_proven_gone=by_proof)
            return tool_pb2.InDoubtDecision(did_not_happen=told)
        case Abandon():
            return tool_pb2.InDoubtDecision(abandon=tool_pb2.InDoubtDecision.Abandon())


def resolve_call_to_domain(message: ledger_pb2.OperatorRequest.ResolveCall) -> ResolveCall:
    return ResolveCall(message.call_id, message.call_attempt, decision_to_domain(message.decision))


def resolve_call_to_wire(fact: ResolveCall) -> ledger_pb2.OperatorRequest.ResolveCall:
    return ledger_pb2.OperatorRequest.ResolveCall(
        call_id=fact.call_id, call_attempt=fact.call_attempt, decision=decision_to_wire(fact.decision)
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
