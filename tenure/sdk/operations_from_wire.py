"""Converts messages about agents, leases and bills to public values: those that are more than their fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import Message

from tenure.domain.agents import needs_of_builds
from tenure.sdk import agent_info as agents
from tenure.sdk import operations_info as info
from tenure.sdk.from_wire import public
from tenure.sdk.json_shape import PublicValue
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import lease_service_pb2, tenant_service_pb2, token_pb2
from tenure.wire.common import moment


def lease_event_info(event: lease_service_pb2.LeaseEvent) -> Any:
    is_held = event.HasField("held")
    lease = info.READERS[lease_service_pb2.Lease](event.held if is_held else event.ended)
    return info.LeaseEventInfo(kind="HELD" if is_held else "ENDED", revision=event.revision, lease=lease)


def usage_info(tenant: str, billed: tenant_service_pb2.UsageSum) -> Any:
    return replace(info.READERS[tenant_service_pb2.UsageSum](billed), tenant=tenant)


def refused_write_info(fence: str, write: token_pb2.RefusedWrite) -> Any:
    return replace(info.READERS[token_pb2.RefusedWrite](write), fence=fence)


# Agents and their revisions.

agent_info = public(
    agents.AgentInfo,
    agent_pb.Agent,
    rename={"updated_by": "actor"},
    given={"ramp_percent": lambda agent: agent.ramp_basis_points / 100},
    skip="ramp_basis_points",
)
public(agents.AgentToolInfo, agent_pb.AgentTool)
public(
    agents.AgentDefinitionInfo,
    agent_pb.AgentDefinition,
    within=("agent",),
    rename={"allowed_tools": "agent.tools"},
    skip="loop",
)


def _registered_at(build: agent_pb.AgentBuild) -> datetime | None:
    return moment(build.register_time) if build.HasField("register_time") else None


agent_revision_info = public(
    agents.AgentRevisionInfo,
    agent_pb.AgentRevision,
    rename={"created_by": "creator"},
    given={"builds": lambda read: {each.build: _registered_at(each) for each in read.builds}},
)
agent_registration = public(agents.AgentRegistration, agent_pb.RegisterAgentResponse)


def agent_details(read: agent_pb.GetAgentResponse) -> agents.AgentDetails:
    needed = needs_of_builds(
        {each.revision: (each.open_tasks, tuple(build.build for build in each.builds)) for each in read.revisions}
    )
    return agents.AgentDetails(
        agent_info(read.agent),
        tuple(agent_revision_info(revision) for revision in read.revisions),
        tuple(agents.BuildInfo(need.build, need.open_tasks, need.only_here) for need in needed),
    )


OPERATIONS: Final[dict[type[Message], Callable[[Any], PublicValue]]] = {
    **info.SHOWN,
    lease_service_pb2.LeaseEvent: lease_event_info,
    agent_pb.Agent: agent_info,
    agent_pb.AgentRevision: agent_revision_info,
    agent_pb.GetAgentResponse: agent_details,
    agent_pb.RegisterAgentResponse: agent_registration,
}
"""The public form of each message that a command prints, besides those of `from_wire`."""
