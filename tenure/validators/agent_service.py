"""Checks the requests of AgentService, and what workers register."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.agents import BUILD, BUILD_RULE
from tenure.v1 import agent_service_pb2 as agents
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.validators.common import Check, is_json
from tenure.validators.rules import Violations, message_bytes
from tenure.validators.task import check_agent, check_limits, check_policy, check_result_schema

MAX_DEFINITION_BYTES: Final = message_bytes(agents.AgentDefinition)
MAX_TOOLS: Final = 256
MAX_WORKER_AGENTS: Final = 64


def check_build(field: str, build: str, v: Violations) -> None:
    v.require(not build or bool(BUILD.match(build)), field, f"must be {BUILD_RULE}; or empty")


def check_definition(definition: agents.AgentDefinition, v: Violations, field: str) -> None:
    """Checks a definition: its size first, since what is too large is not read."""
    if definition.ByteSize() > MAX_DEFINITION_BYTES:
        v.require(False, field, f"at most {MAX_DEFINITION_BYTES} bytes")
        return
    v.require(bool(definition.kind), f"{field}.kind", "must be set")
    check_agent(definition.agent, v, f"{field}.agent")
    v.require(not definition.agent.loop, f"{field}.agent.loop", "must be empty")
    is_model = definition.kind == agents.AGENT_KIND_MODEL
    for index, tool in enumerate(definition.tools[:MAX_TOOLS]):
        _tool(tool, v, f"{field}.tools[{index}]")
    if is_model:
        check_limits(definition.limits, v, f"{field}.limits")
        check_policy(definition.policy, v, f"{field}.policy")
        check_result_schema(definition.result_schema_json, v, f"{field}.result_schema_json")
        _only_code(definition, v, field)
    else:
        for name in ("limits", "policy", "result_schema_json"):
            is_set = name in {present.name for present, _ in definition.ListFields()}
            v.require(not is_set, f"{field}.{name}", "is only for agents without code")
    _schema(definition.output_schema_json, v, f"{field}.output_schema_json")
    _schema(definition.input_schema_json, v, f"{field}.input_schema_json")


def _only_code(definition: agents.AgentDefinition, v: Violations, field: str) -> None:
    for name in ("tools", "input_schema_json", "output_schema_json", "code_version"):
        v.require(not getattr(definition, name), f"{field}.{name}", "is only for agents with code")


def _tool(tool: agents.AgentTool, v: Violations, field: str) -> None:
    _schema(tool.input_schema_json, v, f"{field}.input_schema_json")


def _schema(text: str, v: Violations, field: str) -> None:
    v.require(not text or is_json(text), field, "must be JSON")


def _register(request: agents.RegisterAgentRequest, v: Violations) -> None:
    check_definition(request.definition, v, "definition")
    check_build("build", request.build, v)


def _of_worker(request: coordinator.RegisterWorkerAgentsRequest, v: Violations) -> None:
    check_build("build", request.build, v)
    for index, agent in enumerate(request.agents[:MAX_WORKER_AGENTS]):
        check_definition(agent.definition, v, f"agents[{index}].definition")
        is_code = agent.definition.kind != agents.AGENT_KIND_MODEL
        v.require(is_code, f"agents[{index}].definition.kind", "workers register agents with code only")


CHECKS: Final[dict[type[Any], Check]] = {
    agents.RegisterAgentRequest: _register,
    coordinator.RegisterWorkerAgentsRequest: _of_worker,
}
