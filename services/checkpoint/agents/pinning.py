"""Pins a new task to a revision of its agent, in the transaction that creates it."""

from __future__ import annotations

import json
from typing import NamedTuple

from services.checkpoint.agents.rows import AGENTS, no_agent, no_revision
from services.checkpoint.queries import fetch_all
from services.checkpoint.submit.source_defaults import fill_unset
from tenure.domain.agents import AgentPin, Routing
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.task import REPLAY_LOOP
from tenure.runtime.store.postgres import Connection
from tenure.v1 import agent_service_pb2, task_pb2
from tenure.v1 import agent_service_pb2 as pb
from tenure.wire.task import pin_to_wire


class _Candidate(NamedTuple):
    """The columns of `candidates`, in their order. `revision` None: the agent has no such revision."""

    current_revision: int
    ramp_revision: int
    ramp_basis_points: int
    revision: int | None
    digest: str
    definition: bytes
    is_retired: bool
    has_builds: bool


async def pinned(connection: Connection, tenant: str, task_id: str, spec: task_pb2.TaskSpec) -> task_pb2.TaskSpec:
    """Returns the submitted spec with its pin; the spec itself for a task without an agent that has revisions.

    The spec of a task for an agent without code gets the agent's definition. Raises NotFound (AGENT_NOT_FOUND,
    AGENT_REVISION_NOT_FOUND), WrongState (AGENT_REVISION_RETIRED), InvalidRequest. A replay has no pin: its worker is
    the one with the record, and the code that is tried may be newer than all revisions.
    """
    if not spec.HasField("control") or spec.agent.loop == REPLAY_LOOP:
        return spec
    name, wanted = spec.control.function, spec.agent_pin.revision
    chosen = await _choose(connection, tenant, name, wanted, task_id)
    made = task_pb2.TaskSpec()
    made.CopyFrom(spec)
    if chosen is None:
        made.ClearField("agent_pin")
        return made
    pin, definition = chosen
    made.agent_pin.CopyFrom(pin_to_wire(pin))
    if definition.kind == agent_service_pb2.AGENT_KIND_MODEL:
        _define(made, definition)
    return made


async def pinned_fork(
    connection: Connection, tenant: str, spec: task_pb2.TaskSpec, overrides: task_pb2.ForkOverrides
) -> task_pb2.TaskSpec:
    """Returns the spec of a fork with its pin: the other task's, or the one that the fork asks for.

    A fork that changes what a definition without code says is no longer pinned. Raises as `pinned`, and WrongState
    (NO_AGENT) for a revision where the other task has no agent.
    """
    made = task_pb2.TaskSpec()
    made.CopyFrom(spec)
    given = {field.name for field, _ in overrides.ListFields()}
    changes = not given.isdisjoint({"model", "system", "tools", "all_tools", "parameters", "result_schema_json"})
    if not overrides.agent_revision:
        if changes and not spec.HasField("control"):
            made.ClearField("agent_pin")
        return made
    if not spec.HasField("agent_pin"):
        raise WrongState("the other task is pinned to no agent: fork it without a revision", reason="NO_AGENT")
    name = spec.agent_pin.agent
    chosen = await _choose(connection, tenant, name, overrides.agent_revision, "")
    if chosen is None:
        raise no_agent(name)
    pin, definition = chosen
    if (definition.kind == agent_service_pb2.AGENT_KIND_MODEL) == spec.HasField("control"):
        raise WrongState(
            f"{pin.reference} is an agent of another kind than the task's: its history does not fit",
            reason="AGENT_KIND_CHANGED",
        )
    made.agent_pin.CopyFrom(pin_to_wire(pin))
    if not spec.HasField("control"):
        if not overrides.HasField("result_schema_json"):
            made.result_schema_json = ""  # it was the other revision's
        _take_definition(made, definition)
        override_agent(made, overrides)
    return made


async def _choose(
    connection: Connection, tenant: str, name: str, wanted: int, task_id: str
) -> tuple[AgentPin, pb.AgentDefinition] | None:
    """Returns the pin and the definition; None if no agent has the name and no revision is asked for."""
    parameters = {"tenant": tenant, "name": name, "revision": wanted}
    candidates = [_Candidate(*columns) for columns in await fetch_all(connection, AGENTS.candidates, parameters)]
    if not candidates:
        if wanted:
            raise no_agent(name)
        return None
    first = candidates[0]
    routing = Routing(first.current_revision, first.ramp_revision, first.ramp_basis_points)
    revision, is_ramped = (wanted, False) if wanted else routing.choose(name, task_id)
    candidate = next((each for each in candidates if each.revision == revision), None)
    if candidate is None:
        raise no_revision(name, revision)
    pin = AgentPin(name, revision, candidate.digest, candidate.has_builds, is_ramped)
    if candidate.is_retired:
        raise WrongState(
            f"{pin.reference} is retired: submit {name}, or another revision",
            reason="AGENT_REVISION_RETIRED",
            metadata={"agent": name, "revision": str(revision)},
        )
    return pin, agent_service_pb2.AgentDefinition.FromString(candidate.definition)


def _define(spec: task_pb2.TaskSpec, definition: pb.AgentDefinition) -> None:
    """Replaces the function of a submit by the definition of an agent without code."""
    given = json.loads(spec.control.input_json or "null")
    if spec.goal and given is not None:
        raise InvalidRequest(
            violations=[
                ("control.input_json", f"the agent {spec.control.function} has no code: it takes the goal only")
            ]
        )
    if not spec.goal:
        spec.goal = given if isinstance(given, str) else "" if given is None else spec.control.input_json
    if not spec.goal:
        raise InvalidRequest(violations=[("goal", "must not be empty: the agent begins with it")])
    spec.ClearField("control")
    _take_definition(spec, definition)


def override_agent(spec: task_pb2.TaskSpec, overrides: task_pb2.ForkOverrides) -> None:
    """Sets what the fork itself says of the agent, in place of the definition's."""
    if overrides.HasField("model"):
        spec.agent.model = overrides.model
    if overrides.HasField("system"):
        spec.agent.system = overrides.system
    if overrides.all_tools:
        spec.agent.ClearField("tools")
    if overrides.HasField("tools"):
        spec.agent.tools.CopyFrom(overrides.tools)
    if overrides.HasField("parameters"):
        spec.agent.parameters.CopyFrom(overrides.parameters)
    if overrides.HasField("result_schema_json"):
        spec.result_schema_json = overrides.result_schema_json


def _take_definition(spec: task_pb2.TaskSpec, definition: pb.AgentDefinition) -> None:
    approve_tools = [*definition.agent.approve_tools, *spec.agent.approve_tools]
    spec.agent.CopyFrom(definition.agent)
    spec.agent.ClearField("approve_tools")
    spec.agent.approve_tools.extend(dict.fromkeys(approve_tools))
    spec.result_schema_json = spec.result_schema_json or definition.result_schema_json
    fill_unset(spec.limits, definition.limits)
    fill_unset(spec.policy, definition.policy)
