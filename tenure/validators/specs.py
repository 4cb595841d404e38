"""What a task may be asked to be."""

from __future__ import annotations

from typing import Any

from tenure.domain.money import MOST_NANO_USD
from tenure.domain.result_schema import problem_of_size
from tenure.domain.task import (
    CONTROL_LOOP,
    MAX_TIMEOUT_SECONDS,
    MOST_DEPTH,
    MOST_FAN_OUT,
    MOST_LIVING,
    offered_function,
)
from tenure.v1 import task_pb2
from tenure.validators.control import check_control
from tenure.validators.fields import check_duration, check_labels
from tenure.validators.limits import (
    MAX_ALLOWED_TOOLS,
    MAX_ALLOWED_TOOLS_BYTES,
    MAX_APPROVE_TOOLS,
    MAX_GOAL_BYTES,
    MAX_OUTPUT_TOKENS,
    MAX_RESULT_CORRECTIONS,
    MAX_SYSTEM_BYTES,
    MAX_WINDOW_TOKENS,
    MIN_WINDOW_TOKENS,
    MOST_TOKENS,
    NAME,
    TOOL_NAME,
)
from tenure.validators.timeouts import check_start_time, check_timeouts
from tenure.validators.violations import Violations


def check_spec(spec: Any, v: Violations, prefix: str = "") -> None:
    """TaskSpec, and SubmitTaskRequest that has the same fields."""
    is_control = spec.HasField("control")
    fits = (0 if is_control else 1) <= len(spec.goal.encode()) <= MAX_GOAL_BYTES
    v.require(fits, f"{prefix}goal", f"must have {0 if is_control else 1} to {MAX_GOAL_BYTES} bytes")
    _agent(spec.agent, v, f"{prefix}agent")
    _loop(spec.agent.loop, v, f"{prefix}agent.loop", is_control=is_control)
    if is_control:
        check_control(spec.control, v, f"{prefix}control")
    check_limits(spec.limits, v, f"{prefix}limits")
    check_policy(spec.policy, v, f"{prefix}policy")
    v.known(f"{prefix}priority", task_pb2.Priority, spec.priority)
    _result(spec, v, prefix)
    check_source(spec.source, v, f"{prefix}source")
    v.require(not spec.queue or bool(NAME.match(spec.queue)), f"{prefix}queue", "must be a name of up to 63 characters")
    check_labels(spec.labels, v, f"{prefix}labels")
    check_start_time(spec.start_time, v, f"{prefix}start_time")


def check_policy(policy: task_pb2.TaskPolicy, v: Violations, field: str) -> None:
    v.known(f"{field}.on_lease_lost", task_pb2.LeaseLostPolicy, policy.on_lease_lost)
    v.known(f"{field}.on_in_doubt", task_pb2.InDoubtPolicy, policy.on_in_doubt)
    _retry(policy.retry, v, f"{field}.retry")
    check_timeouts(policy.timeouts, v, f"{field}.timeouts")
    v.between(f"{field}.sub_agents.max_depth", policy.sub_agents.max_depth, 0, MOST_DEPTH)
    v.between(f"{field}.sub_agents.max_fan_out", policy.sub_agents.max_fan_out, 0, MOST_FAN_OUT)
    v.between(f"{field}.sub_agents.max_living", policy.sub_agents.max_living, 0, MOST_LIVING)


def _agent(agent: task_pb2.AgentSpec, v: Violations, field: str) -> None:
    v.length(f"{field}.model", agent.model, 0, 200)
    v.require(len(agent.system.encode()) <= MAX_SYSTEM_BYTES, f"{field}.system", f"at most {MAX_SYSTEM_BYTES} bytes")
    check_tools(agent.tools, v, f"{field}.tools")
    v.between(f"{field}.max_output_tokens", agent.max_output_tokens, 0, MAX_OUTPUT_TOKENS)
    if agent.context_window_tokens:
        v.between(f"{field}.context_window_tokens", agent.context_window_tokens, MIN_WINDOW_TOKENS, MAX_WINDOW_TOKENS)
    v.require(len(agent.approve_tools) <= MAX_APPROVE_TOOLS, f"{field}.approve_tools", f"at most {MAX_APPROVE_TOOLS}")
    for index, name in enumerate(agent.approve_tools):
        v.require(bool(TOOL_NAME.match(name)), f"{field}.approve_tools[{index}]", "must be 1 to 64 of [a-zA-Z0-9_-]")


def _loop(loop: str, v: Violations, field: str, *, is_control: bool) -> None:
    """The loop of control work says which function it runs: `control` does."""
    v.require(not loop or bool(NAME.match(loop)), field, "must be a name of up to 63 characters")
    if is_control:
        v.require(loop in {"", CONTROL_LOOP}, field, f"must be empty or {CONTROL_LOOP} for control work")
    else:
        v.require(loop != CONTROL_LOOP and not offered_function(loop), field, "needs `control`: the function to run")


def _result(spec: Any, v: Violations, prefix: str) -> None:
    corrections = spec.policy.max_result_corrections
    v.between(f"{prefix}policy.max_result_corrections", corrections, 0, MAX_RESULT_CORRECTIONS)
    check_result_schema(spec.result_schema_json, v, f"{prefix}result_schema_json")
    both = spec.HasField("control") and bool(spec.result_schema_json)
    v.require(not both, f"{prefix}result_schema_json", "is for agents: control work says by itself what it returns")


def check_result_schema(schema_json: str, v: Violations, field: str) -> None:
    """Its size. What it says is checked apart from the event loop: see result_schemas.py."""
    problem = problem_of_size(schema_json)
    v.require(not problem, field, problem)


def check_source(source: task_pb2.Source, v: Violations, field: str) -> None:
    v.known(f"{field}.kind", task_pb2.SourceKind, source.kind)
    v.length(f"{field}.source_id", source.source_id, 0, 200)
    v.length(f"{field}.source_run_id", source.source_run_id, 0, 200)
    v.require(bool(source.source_id) or not source.exclusive, f"{field}.exclusive", "needs a source_id")


def check_limits(limits: task_pb2.Limits, v: Violations, field: str) -> None:
    v.between(f"{field}.max_tokens", limits.max_tokens, 0, MOST_TOKENS)
    v.between(f"{field}.max_nano_usd", limits.max_nano_usd, 0, MOST_NANO_USD)
    both = limits.no_money_cap and bool(limits.max_nano_usd)
    v.require(not both, f"{field}.no_money_cap", "cannot be set together with max_nano_usd")
    v.require(limits.max_steps >= 0, f"{field}.max_steps", "must not be negative")
    check_duration(f"{field}.timeout", limits.timeout, MAX_TIMEOUT_SECONDS, v)


def check_tools(tools: task_pb2.ToolAllowlist, v: Violations, field: str) -> None:
    v.require(len(tools.names) <= MAX_ALLOWED_TOOLS, f"{field}.names", f"at most {MAX_ALLOWED_TOOLS}")
    size = sum(len(name.encode()) for name in tools.names)
    v.require(size <= MAX_ALLOWED_TOOLS_BYTES, f"{field}.names", f"at most {MAX_ALLOWED_TOOLS_BYTES} bytes together")
    for index, name in enumerate(tools.names[:MAX_ALLOWED_TOOLS]):
        v.require(bool(TOOL_NAME.match(name)), f"{field}.names[{index}]", "must be 1 to 64 of [a-zA-Z0-9_-]")


def _retry(retry: task_pb2.RetryPolicy, v: Violations, field: str) -> None:
    v.between(f"{field}.max_attempts", retry.max_attempts, 0, 100)
    v.require(retry.factor == 0 or 1 <= retry.factor <= 10, f"{field}.factor", "must be 1 to 10")
    check_duration(f"{field}.initial_backoff", retry.initial_backoff, 3600, v)
    check_duration(f"{field}.max_backoff", retry.max_backoff, 24 * 3600, v)
