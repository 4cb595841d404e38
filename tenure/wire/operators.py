"""What operators asked of a task."""

from __future__ import annotations

from tenure.domain.entries import CloseOut, GrantBudget, OperatorRequest, Requeue
from tenure.domain.in_doubt import ResolveCall
from tenure.v1 import ledger_pb2
from tenure.wire.enums import STATES
from tenure.wire.in_doubt import resolve_call_to_domain, resolve_call_to_wire


def operator_request_to_domain(message: ledger_pb2.OperatorRequest) -> OperatorRequest:
    """ValueError for an act that this version does not know."""
    match message.WhichOneof("act"):
        case "requeue":
            extras = message.requeue
            act = Requeue(extras.extra_tokens, extras.extra_steps, extras.extra_nano_usd)
            return OperatorRequest(message.reason, act)
        case "grant_budget":
            grant = GrantBudget(message.grant_budget.extra_tokens, message.grant_budget.extra_nano_usd)
            return OperatorRequest(message.reason, grant)
        case "close_out":
            end = CloseOut(STATES.to_domain(message.close_out.to_state), message.close_out.result)
            return OperatorRequest(message.reason, end)
        case "resolve_call":
            return OperatorRequest(message.reason, resolve_call_to_domain(message.resolve_call))
        case _:
            raise ValueError("an operator's request of a kind that this version does not know")


def operator_request_to_wire(fact: OperatorRequest) -> ledger_pb2.OperatorRequest:
    message = ledger_pb2.OperatorRequest(reason=fact.reason)
    match fact.act:
        case Requeue(extra_tokens, extra_steps, extra_nano_usd):
            message.requeue.extra_tokens, message.requeue.extra_steps = extra_tokens, extra_steps
            message.requeue.extra_nano_usd = extra_nano_usd
            message.requeue.SetInParent()
        case GrantBudget(extra_tokens, extra_nano_usd):
            message.grant_budget.extra_tokens, message.grant_budget.extra_nano_usd = extra_tokens, extra_nano_usd
            message.grant_budget.SetInParent()
        case ResolveCall():
            message.resolve_call.CopyFrom(resolve_call_to_wire(fact.act))
        case CloseOut(to_state, result):
            message.close_out.to_state, message.close_out.result = STATES.to_wire(to_state), result
    return message
