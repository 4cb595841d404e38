"""The request of a submit, from the arguments of `Client.submit` and `Client.submit_function`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration

from tenure.domain.agents import read_reference
from tenure.domain.budget import MAX_NANO_USD, nano_usd_of
from tenure.domain.task import Priority, Source, TaskPolicy
from tenure.sdk.errors import invalid_argument, whole_texts
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import PRIORITIES, SOURCES, duration, timestamp
from tenure.wire.task import allowlist_to_wire, policy_to_wire

T = TypeVar("T")
Money = Decimal | float | int | str
Seconds = timedelta | float | int

ARGUMENTS: Final = {
    "agent.model": "model",
    "agent.system": "system",
    "agent.tools.names": "tools",
    "agent.tools": "tools",
    "agent.approve_tools": "approve_tools",
    "agent.max_output_tokens": "max_output_tokens",
    "limits.max_tokens": "max_tokens",
    "limits.max_nano_usd": "max_cost",
    "limits.no_money_cap": "no_max_cost",
    "limits.max_steps": "max_steps",
    "limits.timeout": "timeout",
    "result_schema_json": "result",
    "start_time": "start_at",
    "control.function": "function",
    "control.input_json": "input",
    "agent_pin": "agent",
    "agent_pin.revision": "agent",
}
"""The argument of the client for a field of the contract, where they differ."""


def nano_usd(argument: str, amount: Money | None) -> int:
    """Returns an amount of US dollars in nano dollars; 0 for None. Raises InvalidRequest."""
    if amount is None:
        return 0
    try:
        nano = nano_usd_of(Decimal(str(amount)))
    except InvalidOperation:
        nano = None
    if nano is None or not 0 < nano <= MAX_NANO_USD:
        message = f"must be an amount of US dollars above 0 with at most 9 decimals, not {amount}"
        raise invalid_argument(argument, message, "write for example 0.5")
    return nano


def names(argument: str, given: Iterable[str]) -> tuple[str, ...]:
    """Returns names. Raises InvalidRequest for one string, whose characters would be taken for the names."""
    if isinstance(given, str):
        raise invalid_argument(argument, "must be a list of names, not one string", f"write [{given!r}]")
    return tuple(of_type(argument, given, Iterable))


def of_type(argument: str, value: T, kind: type) -> T:
    """Returns the value of an argument. Raises InvalidRequest for a value of another type; None: it is not given."""
    if value is None or isinstance(value, kind):
        return value
    raise invalid_argument(argument, f"must be of type {kind.__name__}, not {type(value).__name__}: {value!r}")


def priority_of(priority: Priority | str | None) -> task_pb2.Priority.ValueType:
    if priority is None:
        return task_pb2.PRIORITY_UNSPECIFIED
    try:
        return PRIORITIES.to_wire(Priority[str(getattr(priority, "name", priority)).upper()])
    except KeyError:
        message = f"must be one of {', '.join(member.name for member in Priority)}, not {priority!r}"
        raise invalid_argument("priority", message) from None


def source_of(source: Source | None) -> task_pb2.Source | None:
    if source is None:
        return None
    return task_pb2.Source(
        kind=SOURCES.to_wire(source.kind),
        source_id=source.source_id,
        source_run_id=source.source_run_id,
        exclusive=source.exclusive,
    )


def seconds_of(time: Seconds) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


def timeout_of(timeout: Seconds | None) -> Duration | None:
    """Returns a timeout on the wire; None for the default. Raises InvalidRequest for a time that is not above 0."""
    if timeout is None:
        return None
    try:
        message = duration(seconds_of(timeout))
    except (TypeError, ValueError, OverflowError):
        message = Duration()
    if message.ToNanoseconds() <= 0:  # the contract takes 0 for the default
        raise invalid_argument("timeout", f"must be above 0 seconds, not {timeout}")
    return message


def number_or_default(argument: str, number: int | None) -> int:
    """Returns the number, or for None 0, which the contract takes for the default. Raises InvalidRequest for 0 itself;
    the gateway refuses negative numbers, with all other violations.
    """
    of_type(argument, number, int)
    if number is None:
        return 0
    if number == 0:
        raise invalid_argument(argument, f"must be 1 or more, not {number!r}", "omit it to have the default")
    return number


def json_text(argument: str, value: Any) -> str:
    """Returns a value as JSON text. Raises InvalidRequest for a value that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        with whole_texts({argument: text}):
            text.encode()
    except (TypeError, ValueError) as error:
        raise invalid_argument(argument, f"must be a JSON value: {error}") from error
    return text


def submit_request(
    goal: str,
    *,
    agent: task_pb2.AgentSpec | None = None,
    control: task_pb2.ControlWork | None = None,
    agent_revision: int = 0,
    limits: task_pb2.Limits,
    timeout: Seconds | None,
    start_at: datetime | None,
    queue: str,
    priority: Priority | str | None,
    labels: Mapping[str, str] | None,
    source: Source | None,
    policy: TaskPolicy | None,
    result_schema_json: str = "",
    request_id: str,
) -> api.SubmitTaskRequest:
    """Returns the request. An argument that is not given stays absent: the installation has a default for it."""
    of_type("start_at", start_at, datetime)
    if start_at is not None and start_at.tzinfo is None:
        raise invalid_argument("start_at", "must have a time zone", "write datetime.now(UTC) + timedelta(…)")
    if (time_limit := timeout_of(timeout)) is not None:
        limits.timeout.CopyFrom(time_limit)
    of_type("policy", policy, TaskPolicy)
    of_type("source", source, Source)
    source_texts = () if source is None else (source.source_id, source.source_run_id)
    texts = {"goal": goal, "queue": queue, "labels": labels, "request_id": request_id, "source": source_texts}
    with whole_texts(texts):
        return api.SubmitTaskRequest(
            request_id=request_id,
            goal=goal,
            agent=agent,
            control=control,
            limits=limits,
            policy=None if policy is None else policy_to_wire(policy),
            priority=priority_of(priority),
            queue=queue,
            labels=dict(labels or {}),
            source=source_of(source),
            result_schema_json=result_schema_json,
            start_time=None if start_at is None else timestamp(start_at),
            agent_pin=task_pb2.AgentPin(revision=agent_revision) if agent_revision else None,
        )


def agent_of_reference(argument: str, reference: str) -> tuple[str, int]:
    """Returns the name and the revision of `support@7`; 0 for `support`. Raises InvalidRequest."""
    if not of_type(argument, reference, str):
        return "", 0
    try:
        return read_reference(reference)
    except ValueError as error:
        raise invalid_argument(argument, str(error)) from None


def limits_of(
    max_cost: Money | None, no_max_cost: bool, max_tokens: int | None, max_steps: int | None
) -> task_pb2.Limits:
    """Returns the limits but the timeout. Raises InvalidRequest."""
    return task_pb2.Limits(
        max_tokens=number_or_default("max_tokens", max_tokens),
        max_steps=number_or_default("max_steps", max_steps),
        max_nano_usd=nano_usd("max_cost", max_cost),
        no_money_cap=no_max_cost,
    )


def agent_of(
    model: str, system: str, tools: Iterable[str] | None, approve_tools: Iterable[str], max_output_tokens: int | None
) -> task_pb2.AgentSpec:
    allowed = None if tools is None else names("tools", tools)
    asking = names("approve_tools", approve_tools)
    with whole_texts({"model": model, "system": system, "tools": allowed, "approve_tools": asking}):
        return task_pb2.AgentSpec(
            model=model,
            system=system,
            tools=None if allowed is None else allowlist_to_wire(allowed),
            approve_tools=asking,
            max_output_tokens=number_or_default("max_output_tokens", max_output_tokens),
        )


def control_of(
    agent: str,
    goal: str,
    given: Any,
    model: str,
    system: str,
    tools: Iterable[str] | None,
    max_output_tokens: int | None,
) -> task_pb2.ControlWork | None:
    """Returns the function of an agent in Python, or None without such an agent. Raises InvalidRequest."""
    if not agent:
        if given is not None:
            raise invalid_argument("input", "is for an agent in Python", "name it, with agent=…")
        return None
    own = {"model": model, "system": system, "tools": tools, "max_output_tokens": max_output_tokens}
    for argument, value in own.items():
        if value is not None and value != "":
            raise invalid_argument(argument, f"cannot be chosen for the agent {agent}: its code chooses it")
    if not goal:
        raise invalid_argument("goal", f"must not be empty: the agent {agent} begins with it")
    return task_pb2.ControlWork(function=agent, input_json="" if given is None else json_text("input", given))
