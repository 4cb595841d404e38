"""Checks the requests of AgentService, and what workers register."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.agents import ALL_BASIS_POINTS, BUILD, BUILD_RULE, MAX_REVISION
from tenure.v1 import agent_service_pb2 as agents
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.validators.common import FUNCTION_NAME, TOOL_NAME, WORKER_ID, WORKER_ID_RULE, Check, Violations, is_json
from tenure.validators.task import check_agent, check_limits, check_policy, check_result_schema

MAX_DEFINITION_BYTES: Final = 512 * 1024
MAX_TOOLS: Final = 256
MAX_DESCRIPTION: Final = 16_000
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_VERSION: Final = 128
MAX_REASON: Final = 1000
MAX_TENANTS: Final = 1000
MAX_WORKER_AGENTS: Final = 64
NAME_RULE: Final = "must be a name of up to 55 characters: letters, digits, dots, - and _"


def check_build(field: str, build: str, v: Violations) -> None:
    v.require(not build or bool(BUILD.match(build)), field, f"must be {BUILD_RULE}; or empty")


def check_definition(definition: agents.AgentDefinition, v: Violations, field: str) -> None:
    """Checks a definition: its size first, since what is too large is not read."""
    if definition.ByteSize() > MAX_DEFINITION_BYTES:
        v.require(False, field, f"at most {MAX_DEFINITION_BYTES} bytes")
        return
    v.known(f"{field}.kind", agents.AgentKind, definition.kind)
    v.require(bool(definition.kind), f"{field}.kind", "must be set")
    check_agent(definition.agent, v, f"{field}.agent")
    v.require(not definition.agent.loop, f"{field}.agent.loop", "must be empty")
    is_model = definition.kind == agents.AGENT_KIND_MODEL
    v.length(f"{field}.code_version", definition.code_version, 0, MAX_VERSION)
    v.require(len(definition.tools) <= MAX_TOOLS, f"{field}.tools", f"at most {MAX_TOOLS}")
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
    v.require(bool(TOOL_NAME.match(tool.name)), f"{field}.name", "must be 1 to 64 of [a-zA-Z0-9_-]")
    v.length(f"{field}.description", tool.description, 0, MAX_DESCRIPTION)
    _schema(tool.input_schema_json, v, f"{field}.input_schema_json")


def _schema(text: str, v: Violations, field: str) -> None:
    v.require(len(text.encode()) <= MAX_SCHEMA_BYTES, field, f"at most {MAX_SCHEMA_BYTES} bytes")
    v.require(not text or is_json(text), field, "must be JSON")


def _register(request: agents.RegisterAgentRequest, v: Violations) -> None:
    _name(request.name, v)
    check_definition(request.definition, v, "definition")
    check_build("build", request.build, v)
    v.length("actor", request.actor, 0, 200)


def _name(name: str, v: Violations, field: str = "name") -> None:
    v.require(bool(FUNCTION_NAME.match(name)), field, NAME_RULE)


def _list(request: agents.ListAgentsRequest, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 500)
    v.require(
        not request.page_token or bool(FUNCTION_NAME.match(request.page_token)),
        "page_token",
        "must be the next_page_token of an earlier answer",
    )


def _get(request: agents.GetAgentRequest, v: Violations) -> None:
    _name(request.name, v)
    v.between("revision", request.revision, 0, MAX_REVISION)


def _ramp(request: agents.RampAgentRequest, v: Violations) -> None:
    _change(request, v)
    v.between("basis_points", request.basis_points, 0, ALL_BASIS_POINTS)


def _change(request: Any, v: Violations) -> None:
    _name(request.name, v)
    v.between("revision", request.revision, 1, MAX_REVISION)
    v.length("reason", request.reason, 0, MAX_REASON)
    v.length("actor", request.actor, 0, 200)


def _of_worker(request: coordinator.RegisterWorkerAgentsRequest, v: Violations) -> None:
    v.require(bool(WORKER_ID.match(request.worker_id)), "worker_id", f"must be {WORKER_ID_RULE}")
    check_build("build", request.build, v)
    v.require(len(request.tenants) <= MAX_TENANTS, "tenants", f"at most {MAX_TENANTS}")
    v.between("agents", len(request.agents), 1, MAX_WORKER_AGENTS)
    for index, agent in enumerate(request.agents[:MAX_WORKER_AGENTS]):
        _name(agent.name, v, f"agents[{index}].name")
        check_definition(agent.definition, v, f"agents[{index}].definition")
        is_code = agent.definition.kind != agents.AGENT_KIND_MODEL
        v.require(is_code, f"agents[{index}].definition.kind", "workers register agents with code only")


CHECKS: Final[dict[type[Any], Check]] = {
    agents.RegisterAgentRequest: _register,
    agents.ListAgentsRequest: _list,
    agents.GetAgentRequest: _get,
    agents.RampAgentRequest: _ramp,
    agents.RetireAgentRevisionRequest: _change,
    coordinator.RegisterWorkerAgentsRequest: _of_worker,
}
