"""The requests of submits, from the options that submit_options.py describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from tenure.domain.agents import chosen_by_code
from tenure.sdk.errors import invalid_argument, whole_texts
from tenure.sdk.option_values import agent_of_reference, json_text
from tenure.sdk.submit_options import FORK_OPTIONS, OPTIONS, PARAMETERS, path_in_fork
from tenure.v1 import agent_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api


def submit_request(
    goal: str,
    options: Mapping[str, Any],
    *,
    agent: str = "",
    input: Any = None,  # noqa: A002  the contract's word
    result_schema_json: str = "",
) -> api.SubmitTaskRequest:
    """Returns the submit of a goal. Raises InvalidRequest.

    `agent`: an agent in Python or a registered one, which has its own model, system prompt, tools and result.
    """
    name, revision = agent_of_reference("agent", agent)
    if not name and input is not None:
        raise invalid_argument("input", "is for an agent in Python", "name it, with agent=…")
    request = request_of(goal, options)
    set_field(request, "spec.result_schema_json", result_schema_json, "result")
    if not name:
        return request
    for argument in ("model", "system", "tools", "max_output_tokens", *PARAMETERS):
        if options.get(argument) not in (None, ""):
            raise invalid_argument(argument, chosen_by_code(name))
    if not goal.strip():
        raise invalid_argument("goal", f"must not be blank: the agent {name} begins with it")
    return _of_code(request, name, revision, "" if input is None else json_text("input", input))


def function_request(function: str, given: Any, description: str, options: Mapping[str, Any]) -> api.SubmitTaskRequest:
    """Returns the submit of a control function. Raises InvalidRequest."""
    name, revision = agent_of_reference("function", function)
    return _of_code(request_of(description, options), name, revision, json_text("input", given))


def definition_of(options: Mapping[str, Any], result_schema_json: str) -> agent_service_pb2.AgentDefinition:
    """Returns the definition of an agent without code. Raises InvalidRequest."""
    definition, spec = agent_service_pb2.AgentDefinition(kind=agent_service_pb2.AGENT_KIND_MODEL), spec_of(options)
    for field, value in spec.ListFields():
        set_field(definition, field.name, value, field.name)
    set_field(definition, "result_schema_json", result_schema_json, "result")
    return definition


def _of_code(request: api.SubmitTaskRequest, name: str, revision: int, input_json: str) -> api.SubmitTaskRequest:
    request.spec.control.CopyFrom(task_pb2.ControlWork(function=name, input_json=input_json))
    if revision:
        request.spec.agent_pin.revision = revision
    return request


def request_of(goal: str, options: Mapping[str, Any]) -> api.SubmitTaskRequest:
    """Returns a submit with these options. An option that is not given stays unset: the server has its default."""
    request = api.SubmitTaskRequest(spec=spec_of(options))
    set_field(request, "spec.goal", goal, "goal")
    for name, value in options.items():
        _, option = OPTIONS[name]
        if not option.path and is_given(value):
            set_field(request, name, option.to_wire(name, value), name)
    return request


def spec_of(options: Mapping[str, Any]) -> task_pb2.TaskSpec:
    """Returns the spec that the options describe. Raises InvalidRequest."""
    spec = task_pb2.TaskSpec()
    for name in (name for name in OPTIONS if name in options):  # in their order: a policy before the parts of one
        value, (_, option) = options[name], OPTIONS[name]
        if option.path and is_given(value):
            set_field(spec, option.path, option.to_wire(name, value), name)
    return spec


def overrides_of(options: Mapping[str, Any]) -> task_pb2.ForkOverrides:
    """Returns what a fork has otherwise. An option that is None is not given. Raises InvalidRequest."""
    overrides = task_pb2.ForkOverrides()
    for name in FORK_OPTIONS:
        value, (_, option) = options.get(name), OPTIONS[name]
        if is_override(path_in_fork(option), value):
            set_field(overrides, path_in_fork(option), option.to_wire(name, value), name)
    return overrides


def is_override(path: str, value: Any) -> bool:
    """Whether a fork has another value at a path of ForkOverrides. An empty model or system prompt is one."""
    return is_given(value) or (value == "" and "." not in path)


def is_given(value: Any) -> bool:
    """Whether an option has a value: 0 is one, which may be refused, and an empty list may mean something."""
    return value is not None and value is not False and value != ""


def set_field(message: Message, path: str, value: Any, argument: str) -> None:
    """Sets the field at a path. Raises InvalidRequest, by the name of the argument, for a text that cannot be sent."""
    try:
        put_field(message, path, value)
    except (TypeError, UnicodeEncodeError):
        with whole_texts({argument: value}):
            raise


def put_field(message: Message, path: str, value: Any) -> None:
    """Sets the field at a path."""
    *above, name = path.split(".")
    for part in above:
        message = getattr(message, part)
    if isinstance(value, tuple):
        getattr(message, name).extend(value)
    elif isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    elif isinstance(value, dict):
        getattr(message, name).update(value)
    else:
        setattr(message, name, value)
