"""Converts task specs, policies, timeouts, waits, usage, budgets and prices.

The conversion to the domain fills in defaults.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from tenure.domain.agents import AgentPin
from tenure.domain.budget import Budget, BudgetRequest, Prices, Rates, Tier, TokenUsage
from tenure.domain.entries import WaitResolution
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.model_parameters import ModelParameters
from tenure.domain.retry import RetryPolicy
from tenure.domain.task import (
    CONTROL_LOOP,
    AgentSpec,
    ControlWork,
    Limits,
    Priority,
    Source,
    SubAgentLimits,
    TaskPolicy,
    TaskSpec,
    UndoCall,
    UndoWork,
)
from tenure.domain.timeouts import PhaseTimeout, Timeouts
from tenure.domain.waits import CallDecision, EscalationAction, Escalations, EscalationStep, UndecidedCall, Wait
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire import call_plans  # noqa: F401  its pair is a part of a resolution
from tenure.wire.codec import pair, register
from tenure.wire.common import PRIORITIES, duration, seconds

usage_to_wire, usage_to_domain = pair(TokenUsage, task_pb2.TokenUsage)
reported_call_to_wire, reported_call_to_domain = pair(ReportedCall, ledger_pb2.HeardCall)

# Budgets and prices.

budget_to_wire, budget_to_domain = pair(Budget, task_pb2.BudgetStatus)
_request_to_wire, budget_request_to_domain = pair(BudgetRequest, task_pb2.BudgetRequest)


def budget_request_to_wire(request: BudgetRequest | None) -> task_pb2.BudgetRequest | None:
    return None if request is None else _request_to_wire(request)


def prices_to_wire(prices: Prices | None) -> task_pb2.ModelPrices | None:
    if prices is None:
        return None
    tiers = [
        task_pb2.ModelPrices.Tier(above_input_tokens=tier.above_input_tokens, **asdict(tier.rates))
        for tier in prices.tiers
    ]
    return task_pb2.ModelPrices(tiers=tiers)


def prices_to_domain(prices: task_pb2.ModelPrices) -> Prices | None:
    """Converts prices. Returns None without tiers."""
    tiers = tuple(
        Tier(
            tier.above_input_tokens,
            Rates(tier.input, tier.output, tier.cache_creation_input, tier.cache_read_input),
        )
        for tier in prices.tiers
    )
    return Prices(tiers) if tiers else None


register(Prices, task_pb2.ModelPrices, prices_to_wire, prices_to_domain)

# Waits and their answers. Only the ledger has the times of a wait; the domain rules do not need them.

pair(UndecidedCall, task_pb2.WaitingCall)
call_decision_to_wire, call_decision_to_domain = pair(CallDecision, task_pb2.CallDecision)
wait_to_wire, wait_to_domain = pair(
    Wait,
    task_pb2.Wait,
    rename={"sub_agents": "sub_agent_task_ids"},
    skip="timeout_seconds elapsed_seconds begin_time deadline_time assignee next_step next_step_time steps_taken",
)
resolution_to_wire, resolution_to_domain = pair(WaitResolution, ledger_pb2.WaitResolution)


def escalation_step_to_domain(step: task_pb2.EscalationStep) -> EscalationStep:
    after_seconds = seconds(step.after)
    match step.WhichOneof("action"):
        case "assignee":
            return EscalationStep(after_seconds, EscalationAction.ASSIGNEE, step.assignee)
        case "queue":
            return EscalationStep(after_seconds, EscalationAction.QUEUE, step.queue)
        case "priority":
            priority = PRIORITIES.to_domain(step.priority)
            return EscalationStep(after_seconds, EscalationAction.PRIORITY, priority.name)
        case "close_out":
            return EscalationStep(after_seconds, EscalationAction.CLOSE_OUT)
        case "approver":
            return EscalationStep(after_seconds, EscalationAction.APPROVER, step.approver)
        case "remind_webhook":
            return EscalationStep(after_seconds, EscalationAction.REMIND_WEBHOOK, step.remind_webhook)
        case _:
            return EscalationStep(after_seconds)


def escalation_step_to_wire(step: EscalationStep) -> task_pb2.EscalationStep:
    message = task_pb2.EscalationStep(after=duration(step.after_seconds))
    match step.action:
        case EscalationAction.ASSIGNEE:
            message.assignee = step.target
        case EscalationAction.QUEUE:
            message.queue = step.target
        case EscalationAction.PRIORITY:
            message.priority = PRIORITIES.to_wire(Priority[step.target])
        case EscalationAction.CLOSE_OUT:
            message.close_out = True
        case EscalationAction.APPROVER:
            message.approver = step.target
        case EscalationAction.REMIND_WEBHOOK:
            message.remind_webhook = step.target
        case EscalationAction.EVENT_ONLY:
            pass
    return message


register(EscalationStep, task_pb2.EscalationStep, escalation_step_to_wire, escalation_step_to_domain)

# Policies. An absent timeout stays absent: the phase, or the settings of a service, have the default. An unknown action
# of a newer peer becomes the default of the phase.

pair(
    RetryPolicy,
    task_pb2.RetryPolicy,
    rename={"initial_seconds": "initial_backoff", "cap_seconds": "max_backoff"},
    defaults=True,
)
pair(
    PhaseTimeout,
    task_pb2.PhaseTimeout,
    convert={"after_seconds": (duration, lambda after: seconds(after) or None)},  # 0 is absent
    defaults=True,
)
pair(Timeouts, task_pb2.Timeouts, defaults=True)
pair(SubAgentLimits, task_pb2.SubAgentLimits, defaults=True)
pair(Escalations, task_pb2.WaitEscalations)
policy_to_wire, policy_to_domain = pair(TaskPolicy, task_pb2.TaskPolicy, defaults=True)

# Specs: callers see them with the defaults filled in.

pin_to_wire, pin_to_domain = pair(AgentPin, task_pb2.AgentPin)
source_to_wire, source_to_domain = pair(Source, task_pb2.Source)


def allowlist_to_wire(names: tuple[str, ...] | None) -> task_pb2.ToolAllowlist | None:
    """Converts an allowlist. None (all tools) becomes an absent message, an empty tuple (no tools) a present one."""
    return None if names is None else task_pb2.ToolAllowlist(names=names)


register(tuple[str, ...], task_pb2.ToolAllowlist, allowlist_to_wire, lambda allowed: tuple(allowed.names))
pair(ControlWork, task_pb2.ControlWork)
pair(UndoCall, task_pb2.UndoCall)
pair(UndoWork, task_pb2.UndoWork)
parameters_to_wire, parameters_to_domain = pair(ModelParameters, task_pb2.ModelParameters)
pair(AgentSpec, task_pb2.AgentSpec, defaults=True)
pair(Limits, task_pb2.Limits, defaults=True)
spec_to_wire, _spec_to_domain = pair(TaskSpec, task_pb2.TaskSpec, defaults=True)


def spec_to_domain(message: task_pb2.TaskSpec) -> TaskSpec:
    """Converts a submitted spec and fills in its defaults."""
    spec = _spec_to_domain(message)
    if spec.control is None or message.agent.loop:
        return spec
    return replace(spec, agent=replace(spec.agent, loop=CONTROL_LOOP))


register(TaskSpec, task_pb2.TaskSpec, spec_to_wire, spec_to_domain)
