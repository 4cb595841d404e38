"""The parameters of a model: what is refused at the submit, and what each provider is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format

from services.checkpoint.task_defaults import TaskDefaults
from tenure.domain.errors import InvalidRequest
from tenure.domain.model_parameters import EXTRA_MEMBERS, Effort, ModelParameters, problems_of, problems_with
from tenure.model_providers.anthropic_models import members_of
from tenure.model_providers.client import ModelRequest, parameter_members
from tenure.model_providers.dialects import DIALECTS, dialect_of
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.validators import validate
from tenure.wire.task import parameters_to_domain, parameters_to_wire

CLAUDE, GPT = "claude-opus-4-8", "openai/gpt-5"
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def submit(**parameters: Any) -> api.SubmitTaskRequest:
    agent = task_pb2.AgentSpec(parameters=task_pb2.ModelParameters(**parameters))
    return api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", agent=agent))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"thinking_tokens": 100}, "thinking_tokens"),
        ({"thinking_tokens": 70_000}, "thinking_tokens"),
        ({"thinking_tokens": 2048, "effort": task_pb2.EFFORT_HIGH}, "thinking_tokens"),
        ({"seed": -1}, "seed"),
        ({"tool_choice": "x" * 65}, "tool_choice"),
        ({"extra_body_json": "[1]"}, "extra_body_json"),
        ({"extra_body_json": "{"}, "extra_body_json"),
        *(
            ({"extra_body_json": json.dumps({"top_k": 1, name: 1})}, "extra_body_json")
            for name in (
                "model",
                "messages",
                "tools",
                "stream",
                "max_tokens",
                "models",
                "fallbacks",
                "api_base",
                "plugins",
            )
        ),
    ],
)
def test_parameter_outside_its_bounds_is_refused(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate(submit(**parameters))
    assert f"spec.agent.parameters.{field}" in {violation.field for violation in refused.value.violations}


@pytest.mark.parametrize(("choice", "tools"), [("look", ["find"]), ("any", []), ("look", [])])
def test_choice_of_an_unknown_tool_is_refused(choice: str, tools: list[str]) -> None:
    request = submit(tool_choice=choice)
    request.spec.agent.tools.CopyFrom(task_pb2.ToolAllowlist(names=tools))
    with pytest.raises(InvalidRequest, match="tool_choice"):
        validate(request)
    request.spec.agent.tools.names.append("look")
    validate(request)


def test_parameters_within_their_bounds_are_accepted() -> None:
    validate(submit(temperature=0.0, top_p=1.0, seed=0, tool_choice="any", extra_body_json='{"top_k": 40}'))
    validate(submit(thinking_tokens=1024))


@pytest.mark.parametrize(
    ("model", "parameters", "fields"),
    [
        (CLAUDE, ModelParameters(seed=0), ["seed"]),
        (CLAUDE, ModelParameters(temperature=1.5), ["temperature"]),
        (CLAUDE, ModelParameters(temperature=0.5, effort=Effort.HIGH), ["temperature"]),
        (CLAUDE, ModelParameters(temperature=0.5, effort=Effort.NONE), []),
        (CLAUDE, ModelParameters(thinking_tokens=2048, tool_choice="any"), ["tool_choice"]),
        (CLAUDE, ModelParameters(temperature=1.0, effort=Effort.HIGH, tool_choice="any"), []),
        (GPT, ModelParameters(temperature=1.5, seed=1, effort=Effort.HIGH), []),
        ("", ModelParameters(seed=1), []),
    ],
)
def test_parameter_that_a_vendor_lacks_is_refused_at_submit(
    model: str, parameters: ModelParameters, fields: list[str]
) -> None:
    assert [field for field, _ in problems_with(model, parameters)] == fields
    spec = task_pb2.TaskSpec(
        goal="go", agent=task_pb2.AgentSpec(model=model, parameters=parameters_to_wire(parameters))
    )
    if not fields:
        assert TaskDefaults().of_submit(spec).agent.parameters == parameters
        return
    with pytest.raises(InvalidRequest, match=f"spec.agent.parameters.{fields[0]}"):
        TaskDefaults().of_submit(spec)
    with pytest.raises(InvalidRequest, match=f"overrides.parameters.{fields[0]}"):
        TaskDefaults().of_fork(spec)


def test_zero_is_a_value_on_the_wire() -> None:
    parameters = ModelParameters(temperature=0.0, top_p=0.0, seed=0)
    assert parameters_to_domain(parameters_to_wire(parameters)) == parameters
    assert parameters_to_domain(task_pb2.ModelParameters()) == ModelParameters()
    assert json_format.MessageToDict(parameters_to_wire(parameters)) == {"temperature": 0.0, "topP": 0.0, "seed": "0"}


@pytest.mark.parametrize("choice", ["any", "look"])
def test_only_the_first_answer_must_call_a_tool(choice: str) -> None:
    parameters = ModelParameters(tool_choice=choice, seed=1)
    assert parameters.of_step(1) == parameters
    assert parameters.of_step(2) == ModelParameters(seed=1)
    assert ModelParameters(tool_choice="none").of_step(2).tool_choice == "none"


@pytest.mark.parametrize(
    ("model", "parameters", "members"),
    [
        (CLAUDE, ModelParameters(), {}),
        (CLAUDE, ModelParameters(temperature=0.0, top_p=0.5), {"temperature": 0.0, "top_p": 0.5}),
        (
            CLAUDE,
            ModelParameters(effort=Effort.XHIGH),
            {"output_config": {"effort": "xhigh"}, "thinking": {"type": "adaptive"}},
        ),
        (
            CLAUDE,
            ModelParameters(effort=Effort.MINIMAL),
            {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}},
        ),
        (CLAUDE, ModelParameters(effort=Effort.NONE), {"thinking": {"type": "disabled"}}),
        ("claude-opus-4-5-20251101", ModelParameters(effort=Effort.LOW), {"output_config": {"effort": "low"}}),
        (
            "eu.anthropic.claude-sonnet-4-20250514-v1:0",
            ModelParameters(effort=Effort.LOW),
            {"output_config": {"effort": "low"}},
        ),
        (CLAUDE, ModelParameters(thinking_tokens=2048), {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (CLAUDE, ModelParameters(thinking_tokens=9000), {"thinking": {"type": "enabled", "budget_tokens": 7168}}),
        (CLAUDE, ModelParameters(tool_choice="look"), {"tool_choice": {"type": "tool", "name": "look"}}),
        (
            CLAUDE,
            ModelParameters(tool_choice="any", effort=Effort.LOW),
            {"output_config": {"effort": "low"}, "tool_choice": {"type": "any"}},
        ),
        (CLAUDE, ModelParameters(extra_body_json='{"top_k": 5}'), {"top_k": 5}),
    ],
)
def test_members_for_anthropic(model: str, parameters: ModelParameters, members: dict[str, Any]) -> None:
    assert members_of(parameters, ModelRequest(model, (), 8192, tools=[TOOL])) == members


def test_thinking_leaves_room_for_the_answer() -> None:
    parameters = ModelParameters(thinking_tokens=4096)
    assert members_of(parameters, ModelRequest(CLAUDE, (), 2047)) == {}
    assert members_of(parameters, ModelRequest(CLAUDE, (), 2048))["thinking"]["budget_tokens"] == 1024


def test_tool_choice_without_tools_is_left_out() -> None:
    request = ModelRequest(CLAUDE, (), 8192, parameters=ModelParameters(tool_choice="any", seed=1))
    assert parameter_members(dialect_of("localhost", "m").members, request) == {"seed": 1}


@pytest.mark.parametrize(
    ("host", "parameters", "members"),
    [
        ("api.openai.com", ModelParameters(effort=Effort.MINIMAL, seed=3), {"reasoning_effort": "minimal", "seed": 3}),
        ("api.deepseek.com", ModelParameters(effort=Effort.NONE), {"thinking": {"type": "disabled"}}),
        ("api.mistral.ai", ModelParameters(seed=3, tool_choice="any"), {"random_seed": 3, "tool_choice": "any"}),
        ("openrouter.ai", ModelParameters(thinking_tokens=2048), {"reasoning": {"max_tokens": 2048}}),
        ("localhost", ModelParameters(tool_choice="any"), {"tool_choice": "required"}),
        (
            "localhost",
            ModelParameters(tool_choice="look", temperature=0.0),
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "temperature": 0.0},
        ),
    ],
)
def test_members_for_chat_servers(host: str, parameters: ModelParameters, members: dict[str, Any]) -> None:
    assert dialect_of(host, "m").members(parameters) == members


@pytest.mark.parametrize(
    ("host", "parameters", "why"),
    [
        (
            "api.openai.com",
            ModelParameters(effort=Effort.MAX),
            "the API of openai does not have the parameter effort MAX",
        ),
        ("api.openai.com", ModelParameters(thinking_tokens=2048), "thinking_tokens: set an effort instead"),
        (
            "api.deepseek.com",
            ModelParameters(seed=1),
            "the API of deepseek does not have the parameter seed: leave it out",
        ),
        ("api.moonshot.ai", ModelParameters(effort=Effort.LOW), "it knows NONE"),
    ],
)
def test_parameter_that_a_server_lacks_is_named(host: str, parameters: ModelParameters, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        dialect_of(host, "m").members(parameters)


def test_no_parameter_of_a_task_names_what_a_call_is() -> None:
    own = {"model", "messages", "tools", "stream", "max_tokens", "max_completion_tokens", "system"}
    assert not own & EXTRA_MEMBERS
    for dialect in DIALECTS:
        members = dialect.members(ModelParameters(temperature=0.1, top_p=0.2, tool_choice="auto"))
        assert set(members) == {"temperature", "top_p", "tool_choice"}
    assert list(problems_of(ModelParameters())) == []
