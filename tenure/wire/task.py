"""Converts task specs, policies, timeouts, waits, usage, budgets and prices.

The conversion to the domain fills in defaults.
"""

from __future__ import annotations

from dataclasses import asdict

from tenure.domain.agents import AgentPin
from tenure.domain.budget import Budget, BudgetRequest, Prices, Rates, Tier, TokenUsage
from tenure.domain.entries import WaitResolution
from tenure.domain.lost_model_calls import ReportedCall
from tenure.domain.retry import RetryPolicy
from tenure.domain.task import (
    CONTROL_LOOP,
    DEFAULT_LOOP,
    DEFAULT_MAX_STEPS,
    DEFAULT_MAX_TOKENS,
    DEFAULT_QUEUE,
    DEFAULT_RESULT_CORRECTIONS,
    DEFAULT_TIMEOUT_SECONDS,
    AgentSpec,
    ControlWork,
    Limits,
    MoneyCap,
    Priority,
    Source,
    SubAgentLimits,
    TaskPolicy,
    TaskSpec,
)
from tenure.domain.timeouts import Phase, PhaseTimeout, Timeouts
from tenure.domain.waits import EscalationAction, Escalations, EscalationStep, Wait
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import (
    IN_DOUBT,
    JITTERS,
    LEASE_LOST,
    MONEY_CAPS,
    ON_BUDGET,
    PRIORITIES,
    SOURCES,
    TIMEOUT_ACTIONS,
    WAIT_ANSWERS,
    WAIT_DEADLINES,
    WAIT_KINDS,
    duration,
    moment,
    seconds,
    timestamp,
)

# Phase timeouts. An absent timeout stays absent: the phase, or the settings of a service, have the default.


def timeouts_to_domain(message: task_pb2.Timeouts) -> Timeouts:
    return Timeouts(**{field.name: _phase_to_domain(phase_message) for field, phase_message in message.ListFields()})


def timeouts_to_wire(timeouts: Timeouts) -> task_pb2.Timeouts | None:
    """Returns None without any timeout."""
    if timeouts == Timeouts():
        return None
    by_field = {phase.field: timeouts.of(phase) for phase in Phase}
    return task_pb2.Timeouts(
        **{field: _phase_to_wire(timeout) for field, timeout in by_field.items() if timeout != PhaseTimeout()}
    )


def _phase_to_domain(message: task_pb2.PhaseTimeout) -> PhaseTimeout:
    """Converts one phase timeout. An unknown action of a newer peer becomes the default of the phase."""
    return PhaseTimeout(seconds(message.after) or None, TIMEOUT_ACTIONS.find(message.action))


def _phase_to_wire(timeout: PhaseTimeout) -> task_pb2.PhaseTimeout:
    action = task_pb2.TIMEOUT_ACTION_UNSPECIFIED
    if timeout.action is not None:
        action = TIMEOUT_ACTIONS.to_wire(timeout.action)
    after = None if timeout.after_seconds is None else duration(timeout.after_seconds)
    return task_pb2.PhaseTimeout(after=after, action=action)


# Waits and their answers. Only the ledger has the times of a wait; the domain rules do not need them.


def wait_to_domain(wait: task_pb2.Wait) -> Wait:
    """Converts a wait. Raises ValueError for a kind that this version does not know."""
    return Wait(
        kind=WAIT_KINDS.to_domain(wait.kind),
        call_id=wait.call_id,
        question=wait.question,
        options=tuple(wait.options),
        context=wait.context,
        reference=wait.reference,
        correlation_id=wait.correlation_id,
        at_deadline=WAIT_DEADLINES.to_domain(wait.at_deadline),
        tool=wait.tool,
        arguments_json=wait.arguments_json,
        wait_id=wait.wait_id,
        sub_agents=tuple(wait.sub_agent_task_ids),
        budget_request=budget_request_to_domain(wait.budget_request) if wait.HasField("budget_request") else None,
        approvers=tuple(wait.approvers),
    )


def wait_to_wire(wait: Wait) -> task_pb2.Wait:
    return task_pb2.Wait(
        wait_id=wait.wait_id,
        kind=WAIT_KINDS.to_wire(wait.kind),
        call_id=wait.call_id,
        question=wait.question,
        options=wait.options,
        context=wait.context,
        reference=wait.reference,
        correlation_id=wait.correlation_id,
        at_deadline=WAIT_DEADLINES.to_wire(wait.at_deadline),
        tool=wait.tool,
        arguments_json=wait.arguments_json,
        sub_agent_task_ids=wait.sub_agents,
        call_digest=wait.call_digest,
        budget_request=budget_request_to_wire(wait.budget_request),
        approvers=wait.approvers,
    )


def budget_request_to_domain(request: task_pb2.BudgetRequest) -> BudgetRequest:
    return BudgetRequest(
        limit=request.limit,
        needed_tokens=request.needed_tokens,
        needed_nano_usd=request.needed_nano_usd,
        own_cap=request.own_cap,
        budget=budget_to_domain(request.budget) if request.HasField("budget") else None,
        suggested_tokens=request.suggested_tokens,
        suggested_nano_usd=request.suggested_nano_usd,
    )


def budget_request_to_wire(request: BudgetRequest | None) -> task_pb2.BudgetRequest | None:
    if request is None:
        return None
    return task_pb2.BudgetRequest(
        limit=request.limit,
        needed_tokens=request.needed_tokens,
        needed_nano_usd=request.needed_nano_usd,
        own_cap=request.own_cap,
        budget=None if request.budget is None else budget_to_wire(request.budget),
        suggested_tokens=request.suggested_tokens,
        suggested_nano_usd=request.suggested_nano_usd,
    )


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


def _escalations_to_domain(escalations: task_pb2.WaitEscalations) -> Escalations:
    return Escalations(
        person=tuple(escalation_step_to_domain(step) for step in escalations.person),
        event=tuple(escalation_step_to_domain(step) for step in escalations.event),
    )


def _escalations_to_wire(escalations: Escalations) -> task_pb2.WaitEscalations | None:
    if escalations == Escalations():
        return None
    return task_pb2.WaitEscalations(
        person=[escalation_step_to_wire(step) for step in escalations.person],
        event=[escalation_step_to_wire(step) for step in escalations.event],
    )


def resolution_to_domain(message: ledger_pb2.WaitResolution) -> WaitResolution:
    return WaitResolution(
        wait_id=message.wait_id,
        call_id=message.call_id,
        wait_kind=WAIT_KINDS.to_domain(message.wait_kind),
        answer_kind=WAIT_ANSWERS.to_domain(message.answer_kind),
        answer=message.answer,
        comment=message.comment,
        edited_arguments_json=message.edited_arguments_json,
        extra_budget_tokens=message.extra_budget_tokens,
        request_id=message.request_id,
        extra_budget_nano_usd=message.extra_budget_nano_usd,
        addressee=message.addressee,
        client_address=message.client_address,
        shown_digest=message.shown_digest,
    )


def resolution_to_wire(resolution: WaitResolution) -> ledger_pb2.WaitResolution:
    return ledger_pb2.WaitResolution(
        wait_id=resolution.wait_id,
        call_id=resolution.call_id,
        wait_kind=WAIT_KINDS.to_wire(resolution.wait_kind),
        answer_kind=WAIT_ANSWERS.to_wire(resolution.answer_kind),
        answer=resolution.answer,
        comment=resolution.comment,
        edited_arguments_json=resolution.edited_arguments_json,
        extra_budget_tokens=resolution.extra_budget_tokens,
        request_id=resolution.request_id,
        extra_budget_nano_usd=resolution.extra_budget_nano_usd,
        addressee=resolution.addressee,
        client_address=resolution.client_address,
        shown_digest=resolution.shown_digest,
    )


def spec_to_domain(spec: task_pb2.TaskSpec) -> TaskSpec:
    """Converts a submitted spec and fills in its defaults."""
    return TaskSpec(
        goal=spec.goal,
        agent=_agent_to_domain(spec.agent, CONTROL_LOOP if spec.HasField("control") else DEFAULT_LOOP),
        limits=_limits_to_domain(spec.limits),
        policy=policy_to_domain(spec.policy),
        priority=PRIORITIES.to_domain(spec.priority),
        queue=spec.queue or DEFAULT_QUEUE,
        labels=tuple(sorted(spec.labels.items())),
        source=source_to_domain(spec.source),
        control=ControlWork(spec.control.function, spec.control.input_json) if spec.HasField("control") else None,
        result_schema_json=spec.result_schema_json,
        start_time=moment(spec.start_time) if spec.HasField("start_time") else None,
        agent_pin=pin_to_domain(spec.agent_pin) if spec.HasField("agent_pin") else None,
    )


def pin_to_domain(pin: task_pb2.AgentPin) -> AgentPin:
    return AgentPin(pin.agent, pin.revision, pin.digest, pin.needs_build, pin.ramped)


def pin_to_wire(pin: AgentPin) -> task_pb2.AgentPin:
    return task_pb2.AgentPin(**asdict(pin))


def spec_to_wire(spec: TaskSpec) -> task_pb2.TaskSpec:
    """Converts the effective spec: callers see it with the defaults filled in."""
    return task_pb2.TaskSpec(
        goal=spec.goal,
        agent=task_pb2.AgentSpec(
            loop=spec.agent.loop,
            model=spec.agent.model,
            system=spec.agent.system,
            tools=allowlist_to_wire(spec.agent.tools),
            max_output_tokens=spec.agent.max_output_tokens,
            approve_tools=spec.agent.approve_tools,
            context_window_tokens=spec.agent.context_window_tokens,
        ),
        limits=task_pb2.Limits(
            max_tokens=spec.limits.max_tokens,
            max_steps=spec.limits.max_steps,
            timeout=duration(spec.limits.timeout_seconds),
            max_nano_usd=spec.limits.max_nano_usd,
            money_cap=_money_cap_to_wire(spec.limits.money_cap),
            no_money_cap=spec.limits.no_money_cap,
        ),
        policy=policy_to_wire(spec.policy),
        priority=PRIORITIES.to_wire(spec.priority),
        queue=spec.queue,
        labels=dict(spec.labels),
        source=task_pb2.Source(
            kind=SOURCES.to_wire(spec.source.kind),
            source_id=spec.source.source_id,
            source_run_id=spec.source.source_run_id,
            exclusive=spec.source.exclusive,
        ),
        control=_control_to_wire(spec.control),
        result_schema_json=spec.result_schema_json,
        start_time=None if spec.start_time is None else timestamp(spec.start_time),
        agent_pin=None if spec.agent_pin is None else pin_to_wire(spec.agent_pin),
    )


def policy_to_wire(policy: TaskPolicy) -> task_pb2.TaskPolicy:
    """Converts a policy with its defaults. Absent timeouts stay absent: services have settings for them."""
    retry = policy.retry
    return task_pb2.TaskPolicy(
        on_lease_lost=LEASE_LOST.to_wire(policy.on_lease_lost),
        on_in_doubt=IN_DOUBT.to_wire(policy.on_in_doubt),
        retry=task_pb2.RetryPolicy(
            max_attempts=retry.max_attempts,
            initial_backoff=duration(retry.initial_seconds),
            factor=retry.factor,
            max_backoff=duration(retry.cap_seconds),
            jitter=JITTERS.to_wire(retry.jitter),
        ),
        max_result_corrections=policy.max_result_corrections,
        timeouts=timeouts_to_wire(policy.timeouts),
        sub_agents=task_pb2.SubAgentLimits(
            max_depth=policy.sub_agents.max_depth,
            max_fan_out=policy.sub_agents.max_fan_out,
            max_living=policy.sub_agents.max_living,
        ),
        escalations=_escalations_to_wire(policy.escalations),
        on_budget=ON_BUDGET.to_wire(policy.on_budget),
        lease_ttl=duration(policy.lease_ttl_seconds) if policy.lease_ttl_seconds else None,
        approvers=policy.approvers,
    )


def held_back_seconds(task: task_pb2.Task, now: float) -> float | None:
    """Returns how long a task's start_time still keeps it from workers, or None when it does not. `now`: Unix time.

    start_time applies only before the first claim of the first attempt: a later return to the queue is not a start.
    """
    left = task.spec.start_time.seconds + task.spec.start_time.nanos / 1e9 - now
    not_begun = task.state == task_pb2.TASK_STATE_QUEUED and task.attempt == 1 and not task.claim_count
    return left if not_begun and left > 0 else None


def allowlist_to_wire(names: tuple[str, ...] | None) -> task_pb2.ToolAllowlist | None:
    """Converts an allowlist. None (all tools) becomes an absent message, an empty tuple (no tools) a present one."""
    return None if names is None else task_pb2.ToolAllowlist(names=names)


def usage_to_domain(usage: task_pb2.TokenUsage) -> TokenUsage:
    return TokenUsage(
        usage.input_tokens, usage.output_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens
    )


def usage_to_wire(usage: TokenUsage) -> task_pb2.TokenUsage:
    return task_pb2.TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_read_input_tokens=usage.cache_read_input_tokens,
    )


def reported_call_to_domain(reported: ledger_pb2.HeardCall) -> ReportedCall:
    return ReportedCall(reported.step, reported.attempt_number, usage_to_domain(reported.usage))


def reported_call_to_wire(reported: ReportedCall) -> ledger_pb2.HeardCall:
    return ledger_pb2.HeardCall(
        step=reported.step, attempt_number=reported.attempt_number, usage=usage_to_wire(reported.usage)
    )


def budget_to_wire(budget: Budget) -> task_pb2.BudgetStatus:
    return task_pb2.BudgetStatus(
        max_tokens=budget.max_tokens,
        used_tokens=budget.used_tokens,
        reserved_tokens=budget.reserved_tokens,
        max_nano_usd=budget.max_nano_usd,
        used_nano_usd=budget.used_nano_usd,
        reserved_nano_usd=budget.reserved_nano_usd,
        unpriced_calls=budget.unpriced_calls,
    )


def budget_to_domain(status: task_pb2.BudgetStatus) -> Budget:
    return Budget(
        status.max_tokens,
        status.used_tokens,
        status.reserved_tokens,
        status.max_nano_usd,
        status.used_nano_usd,
        status.reserved_nano_usd,
        status.unpriced_calls,
    )


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


def _control_to_wire(control: ControlWork | None) -> task_pb2.ControlWork | None:
    return None if control is None else task_pb2.ControlWork(function=control.function, input_json=control.input_json)


def _agent_to_domain(agent: task_pb2.AgentSpec, default_loop: str) -> AgentSpec:
    return AgentSpec(
        loop=agent.loop or default_loop,
        model=agent.model,
        system=agent.system,
        tools=tuple(agent.tools.names) if agent.HasField("tools") else None,
        max_output_tokens=agent.max_output_tokens,
        approve_tools=tuple(agent.approve_tools),
        context_window_tokens=agent.context_window_tokens,
    )


def _money_cap_to_wire(money_cap: MoneyCap | None) -> task_pb2.MoneyCap.ValueType:
    return task_pb2.MONEY_CAP_UNSPECIFIED if money_cap is None else MONEY_CAPS.to_wire(money_cap)


def source_to_domain(source: task_pb2.Source) -> Source:
    return Source(SOURCES.to_domain(source.kind), source.source_id, source.source_run_id, source.exclusive)


def _limits_to_domain(limits: task_pb2.Limits) -> Limits:
    return Limits(
        max_tokens=limits.max_tokens or DEFAULT_MAX_TOKENS,
        max_steps=limits.max_steps or DEFAULT_MAX_STEPS,
        timeout_seconds=seconds(limits.timeout) or DEFAULT_TIMEOUT_SECONDS,
        max_nano_usd=limits.max_nano_usd,
        money_cap=MONEY_CAPS.find(limits.money_cap),
        no_money_cap=limits.no_money_cap,
    )


def policy_to_domain(policy: task_pb2.TaskPolicy) -> TaskPolicy:
    """Converts a policy and fills in its defaults."""
    retry, default = policy.retry, RetryPolicy()
    return TaskPolicy(
        on_lease_lost=LEASE_LOST.to_domain(policy.on_lease_lost),
        on_in_doubt=IN_DOUBT.to_domain(policy.on_in_doubt),
        retry=RetryPolicy(
            max_attempts=retry.max_attempts if retry.HasField("max_attempts") else default.max_attempts,
            initial_seconds=seconds(retry.initial_backoff) or default.initial_seconds,
            factor=retry.factor or default.factor,
            cap_seconds=seconds(retry.max_backoff) or default.cap_seconds,
            jitter=JITTERS.to_domain(retry.jitter),
        ),
        max_result_corrections=(
            policy.max_result_corrections if policy.HasField("max_result_corrections") else DEFAULT_RESULT_CORRECTIONS
        ),
        timeouts=timeouts_to_domain(policy.timeouts),
        sub_agents=_sub_agents_to_domain(policy.sub_agents),
        escalations=_escalations_to_domain(policy.escalations),
        on_budget=ON_BUDGET.to_domain(policy.on_budget),
        lease_ttl_seconds=seconds(policy.lease_ttl),
        approvers=tuple(policy.approvers),
    )


def _sub_agents_to_domain(limits: task_pb2.SubAgentLimits) -> SubAgentLimits:
    default = SubAgentLimits()
    return SubAgentLimits(
        max_depth=limits.max_depth if limits.HasField("max_depth") else default.max_depth,
        max_fan_out=limits.max_fan_out or default.max_fan_out,
        max_living=limits.max_living or default.max_living,
    )
