"""Checks the spec of a task."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.approvals import APPROVER_RULE, is_approver
from tenure.domain.model_parameters import ANY_TOOL, AUTO, NO_TOOL, problems_of
from tenure.domain.result_schema import problem_of_size
from tenure.domain.task import (
    CONTROL_LOOP,
    MAX_DEBOUNCE_SECONDS,
    MAX_LEASE_TTL_SECONDS,
    MAX_START_DELAY_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_RENEW_INTERVAL_SECONDS,
    REPLAY_LOOP,
    is_undo_loop,
    offered_function,
)
from tenure.domain.timeouts import ACTIONS, MIN_TIMEOUT_SECONDS, NEED_DURATION, Phase, longest_seconds
from tenure.domain.waits import problems_of_steps
from tenure.v1 import task_pb2
from tenure.validators.common import (
    MAX_ALLOWED_TOOLS_BYTES,
    MAX_WINDOW_TOKENS,
    MIN_WINDOW_TOKENS,
    check_duration,
    check_not_blank,
    check_source_fields,
    is_json,
)
from tenure.validators.rules import Violations
from tenure.wire.common import TIMEOUT_ACTIONS, seconds
from tenure.wire.task import escalation_step_to_domain, parameters_to_domain

# Phase timeouts and the start time.

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC).timestamp()


def check_timeouts(timeouts: task_pb2.Timeouts, v: Violations, field: str) -> None:
    for field_descriptor, timeout in timeouts.ListFields():
        _phase(Phase(field_descriptor.name.upper()), timeout, v, f"{field}.{field_descriptor.name}")


def _phase(phase: Phase, timeout: task_pb2.PhaseTimeout, v: Violations, field: str) -> None:
    after_seconds = seconds(timeout.after)
    if phase is Phase.TASK:
        v.require(not after_seconds, f"{field}.after", "must not be set: limits.timeout limits the whole task")
    elif after_seconds:
        v.between(f"{field}.after", after_seconds, MIN_TIMEOUT_SECONDS, longest_seconds(phase))
    elif phase in NEED_DURATION:
        v.require(not timeout.action, f"{field}.after", "must be set: without it this phase has no timeout")
    if timeout.action:
        names = ", ".join(sorted(ACTIONS[phase]))
        v.require(TIMEOUT_ACTIONS.find(timeout.action) in ACTIONS[phase], f"{field}.action", f"must be one of {names}")


def check_start_time(start_time: Timestamp, v: Violations, field: str) -> None:
    """Requires a start time within the limit, by the local clock.

    The limit is far away: it only prevents that a task is forgotten in a distant future.
    """
    latest = datetime.now(UTC).timestamp() + MAX_START_DELAY_SECONDS
    days = MAX_START_DELAY_SECONDS / 86_400
    v.require(_FIRST <= start_time.seconds <= latest, field, f"must be at most {days:g} days ahead")


# Control functions: the function and its input.


def check_control(control: task_pb2.ControlWork, v: Violations, field: str) -> None:
    v.require(not control.input_json or is_json(control.input_json), f"{field}.input_json", "must be one JSON value")


# The result schemas in a request. Only their size is checked: a process of its own parses and applies them.

_FIELD: Final = "result_schema_json"


def schemas_in(request: Message) -> list[tuple[str, str]]:
    """Returns the schemas in a request as pairs of field path and schema."""
    schemas = []
    for path in _paths(request.DESCRIPTOR):
        part = request
        for name in path:
            part = getattr(part, name)
        if schema_json := getattr(part, _FIELD):
            schemas.append((".".join((*path, _FIELD)), schema_json))
    return schemas


@cache
def _paths(kind: Descriptor, above: tuple[Descriptor, ...] = ()) -> tuple[tuple[str, ...], ...]:
    """Returns the paths to the messages that have the field. Skips repeated fields: no request has a list of specs."""
    if kind in above:
        return ()
    inner = [field for field in kind.fields if field.message_type is not None and not field.is_repeated]
    below = [(field.name, *path) for field in inner for path in _paths(field.message_type, (*above, kind))]
    return (((),) if _FIELD in kind.fields_by_name else ()) + tuple(below)


def check_spec(spec: task_pb2.TaskSpec, v: Violations) -> None:
    """Checks the field `spec` of a request. Most submits leave most of these messages out: an absent one is valid."""
    is_control = spec.HasField("control")
    if spec.goal or not is_control:
        check_not_blank("spec.goal", spec.goal, v)
    check_agent(spec.agent, v, "spec.agent")
    _pin(spec, v)
    _loop(spec.agent.loop, v, "spec.agent.loop", is_control=is_control)
    v.require(not spec.HasField("undo"), "spec.undo", "is set by the ledger: UndoTask creates undos")
    if is_control:
        check_control(spec.control, v, "spec.control")
    if spec.HasField("limits"):
        check_limits(spec.limits, v, "spec.limits")
    if spec.HasField("policy"):
        check_policy(spec.policy, v, "spec.policy")
    if spec.result_schema_json:
        _result(spec, v)
    if spec.HasField("source"):
        check_source(spec.source, v, "spec.source")
    if spec.HasField("start_time"):
        check_start_time(spec.start_time, v, "spec.start_time")


def _pin(spec: task_pb2.TaskSpec, v: Violations) -> None:
    """Checks the revision that the spec asks for."""
    if not spec.HasField("agent_pin"):
        return
    pin, field = spec.agent_pin, "spec.agent_pin"
    v.require(spec.HasField("control"), field, "needs `control` with the name of the agent")
    v.require(spec.agent.loop != REPLAY_LOOP, field, f"must be absent for the loop {REPLAY_LOOP}")
    v.require(pin.agent in {"", spec.control.function}, f"{field}.agent", "must be empty or equal to control.function")
    for name in ("digest", "needs_build", "ramped"):
        v.require(not getattr(pin, name), f"{field}.{name}", "is set by the ledger")


def check_policy(policy: task_pb2.TaskPolicy, v: Violations, field: str) -> None:
    _retry(policy.retry, v, f"{field}.retry")
    check_timeouts(policy.timeouts, v, f"{field}.timeouts")
    _escalations(policy.escalations.person, v, f"{field}.escalations.person")
    _escalations(policy.escalations.event, v, f"{field}.escalations.event")
    if lease_ttl_seconds := seconds(policy.lease_ttl):
        v.between(f"{field}.lease_ttl", lease_ttl_seconds, MIN_TIMEOUT_SECONDS, MAX_LEASE_TTL_SECONDS)
    if renew_interval_seconds := seconds(policy.renew_interval):
        least_seconds = MIN_RENEW_INTERVAL_SECONDS
        v.between(f"{field}.renew_interval", renew_interval_seconds, least_seconds, MAX_LEASE_TTL_SECONDS)
    v.between(f"{field}.reconnect_grace", seconds(policy.reconnect_grace), 0.0, MAX_LEASE_TTL_SECONDS)
    v.require(all(map(is_approver, policy.approvers)), f"{field}.approvers", APPROVER_RULE)


def _escalations(steps: Iterable[task_pb2.EscalationStep], v: Violations, field: str) -> None:
    steps = list(steps)
    for index, problem in problems_of_steps([escalation_step_to_domain(step) for step in steps]):
        v.require(False, f"{field}[{index}]", problem)
    for index, step in enumerate(steps):
        name = f"{field}[{index}]"
        match step.WhichOneof("action"):
            case "priority":
                v.require(bool(step.priority), f"{name}.priority", "must not be PRIORITY_UNSPECIFIED")
            case "close_out":
                v.require(step.close_out, f"{name}.close_out", "must be true")
            case "approver":
                v.require(is_approver(step.approver), f"{name}.approver", APPROVER_RULE)


def check_agent(agent: task_pb2.AgentSpec, v: Violations, field: str) -> None:
    check_tools(agent.tools, v, f"{field}.tools")
    if agent.context_window_tokens:
        v.between(f"{field}.context_window_tokens", agent.context_window_tokens, MIN_WINDOW_TOKENS, MAX_WINDOW_TOKENS)
    if agent.HasField("parameters"):
        check_parameters(agent.parameters, v, f"{field}.parameters")
    if agent.HasField("tools") and (choice := agent.parameters.tool_choice) not in {"", AUTO, NO_TOOL}:
        has_tool = choice in agent.tools.names or (choice == ANY_TOOL and bool(agent.tools.names))
        v.require(has_tool, f"{field}.parameters.tool_choice", "must be one of the agent's tools")


def check_parameters(parameters: task_pb2.ModelParameters, v: Violations, field: str) -> None:
    for name, problem in problems_of(parameters_to_domain(parameters)):
        v.require(False, f"{field}.{name}", problem)


def _loop(loop: str, v: Violations, field: str, *, is_control: bool) -> None:
    """Checks the loop. A control function needs `control`: the function's name must not be in the loop."""
    if is_control:
        known = {"", CONTROL_LOOP, REPLAY_LOOP}
        v.require(loop in known, field, f"must be empty, {CONTROL_LOOP} or {REPLAY_LOOP} for control work")
    else:
        is_undo = is_undo_loop(loop)
        v.require(not is_undo, field, "is the loop of undos: UndoTask creates them")
        needs_function = loop == CONTROL_LOOP or (not is_undo and bool(offered_function(loop)))
        v.require(not needs_function, field, "needs `control` with the function to run")


def _result(spec: task_pb2.TaskSpec, v: Violations) -> None:
    check_result_schema(spec.result_schema_json, v, "spec.result_schema_json")
    both = spec.HasField("control") and bool(spec.result_schema_json)
    v.require(
        not both,
        "spec.result_schema_json",
        "must be empty for control work: only the result of an agent is validated",
    )


def check_result_schema(schema_json: str, v: Violations, field: str) -> None:
    """Checks the size of a schema. The schema itself is checked outside of the event loop: see `schemas_in`."""
    problem = problem_of_size(schema_json)
    v.require(not problem, field, problem)


def check_source(source: task_pb2.Source, v: Violations, field: str) -> None:
    check_source_fields(source, v, field)
    v.require(bool(source.source_id) or not source.exclusive, f"{field}.exclusive", "needs a source_id")
    v.require(bool(source.source_id) or not source.at_most, f"{field}.at_most", "needs a source_id")
    v.require(not (source.at_most and source.exclusive), f"{field}.at_most", "must not be set together with exclusive")
    if source.HasField("debounce"):
        check_duration(f"{field}.debounce", source.debounce, MAX_DEBOUNCE_SECONDS, v)
        v.require(source.at_most > 0, f"{field}.debounce", "needs at_most")
    if source.kind == task_pb2.SOURCE_KIND_SCHEDULER:
        for name in ("source_id", "source_run_id"):
            v.require(bool(getattr(source, name)), f"{field}.{name}", "must be set for a scheduler: it names the run")


def check_limits(limits: task_pb2.Limits, v: Violations, field: str) -> None:
    both = limits.no_money_cap and bool(limits.max_nano_usd)
    v.require(not both, f"{field}.no_money_cap", "must not be set together with max_nano_usd")
    check_duration(f"{field}.timeout", limits.timeout, MAX_TIMEOUT_SECONDS, v)


def check_tools(tools: task_pb2.ToolAllowlist, v: Violations, field: str) -> None:
    size = sum(len(name.encode()) for name in tools.names)
    v.require(size <= MAX_ALLOWED_TOOLS_BYTES, f"{field}.names", f"at most {MAX_ALLOWED_TOOLS_BYTES} bytes together")


def _retry(retry: task_pb2.RetryPolicy, v: Violations, field: str) -> None:
    v.require(retry.factor == 0 or 1 <= retry.factor <= 10, f"{field}.factor", "must be 1 to 10")
    check_duration(f"{field}.initial_backoff", retry.initial_backoff, 3600, v)
    check_duration(f"{field}.max_backoff", retry.max_backoff, 24 * 3600, v)
