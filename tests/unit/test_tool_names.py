"""Names of tools at submit: what is refused, with which advice, and what is accepted because it cannot be known."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import grpc
import pytest

from services.gateway.peers import Peers
from services.gateway.tool_names import check_tool_names
from services.tools.registry import ToolRegistry
from services.tools.tool import Tool, define
from tenure.domain.errors import InvalidRequest, NotFound, Unavailable
from tenure.domain.tools import MAX_UNKNOWN, EffectClass, ToolSourceKind
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import task_pb2
from tenure.v1 import tool_service_pb2 as pb
from tests.unit.test_tools_registry import REGISTRY


async def test_a_name_of_no_tool_is_answered_with_the_nearest() -> None:
    (unknown,) = await REGISTRY.unknown(["a", "ax"], "default")
    assert (unknown.name, unknown.nearest) == ("ax", ("a",))


async def test_a_tool_of_an_absent_source_is_not_unknown() -> None:
    registry = ToolRegistry([])
    registry.expect("soon")
    registry.facts.add("away", ToolSourceKind.MCP)
    assert await registry.unknown(["away__x", "soon__y"], "default") == []
    registry.expect("others", frozenset({"acme"}))
    unknown = await registry.unknown(["others__x", "no__z"], "default")
    assert [one.name for one in unknown] == ["others__x", "no__z"]


async def test_only_some_unknown_names_are_compared() -> None:
    assert len(await ToolRegistry([]).unknown([f"n{i}" for i in range(1000)], "default")) == MAX_UNKNOWN


async def test_names_that_take_long_to_compare_stop_nothing_else() -> None:
    """A runner that cannot renew for seconds stops all its calls."""
    letters = random.Random(1)
    described = [define("".join(letters.choices("abcd_", k=64)), EffectClass.PURE, "d", {}) for _ in range(100)]
    registry = ToolRegistry([Tool(definition, Mock()) for definition in described])
    names = ["".join(letters.choices("abcd_", k=128)) for _ in range(MAX_UNKNOWN)]
    checking, turns = asyncio.create_task(registry.unknown(names, "default")), 0
    while not checking.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await checking) == MAX_UNKNOWN
    assert turns > 10


def peers(answer: pb.CheckToolNamesResponse | Exception, agent: agent_pb.AgentDefinition | None = None) -> Peers:
    """The tool service answers so. `agent`: the definition of revisions 1 and 2 of the only agent."""

    async def get(request: agent_pb.GetAgentRequest, **_options: Any) -> agent_pb.GetAgentResponse:
        if agent is None:
            raise NotFound("no agent")
        revision = agent_pb.AgentRevision(revision=request.revision, definition=agent if request.revision else None)
        return agent_pb.GetAgentResponse(
            agent=agent_pb.Agent(current_revision=1, ramp_revision=2), revisions=[revision]
        )

    async def check(_request: pb.CheckToolNamesRequest, **_options: Any) -> pb.CheckToolNamesResponse:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return cast(
        "Peers", SimpleNamespace(tools=SimpleNamespace(CheckToolNames=check), agents=SimpleNamespace(GetAgent=get))
    )


AGENT = task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=["raed_file"]), approve_tools=["raed_file"])
SPEC = task_pb2.TaskSpec(agent=AGENT)
UNKNOWN = pb.CheckToolNamesResponse.UnknownTool(name="raed_file", nearest=["read_file"])


async def test_a_submit_names_each_field_with_a_mistake() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await check_tool_names(peers(pb.CheckToolNamesResponse(unknown=[UNKNOWN])), SPEC)
    assert [one.field for one in refused.value.violations] == ["spec.agent.tools.names", "spec.agent.approve_tools"]
    assert "did you mean read_file?" in refused.value.violations[0].description


async def test_names_are_unchecked_without_tools_or_for_own_loops() -> None:
    await check_tool_names(peers(Unavailable("away")), SPEC)
    own = task_pb2.TaskSpec(agent=task_pb2.AgentSpec(loop="mine", tools=AGENT.tools))
    function = task_pb2.TaskSpec(agent=AGENT, control=task_pb2.ControlWork(function="mine"))
    for spec in (own, function):
        await check_tool_names(peers(pb.CheckToolNamesResponse(unknown=[UNKNOWN])), spec)


@pytest.mark.parametrize("revision", [0, 2])
async def test_an_approval_of_an_unknown_tool_is_refused(revision: int) -> None:
    """In Python as without code. What the tool service has may be called by inline tools."""
    definition = agent_pb.AgentDefinition(kind=agent_pb.AGENT_KIND_PYTHON, tools=[agent_pb.AgentTool(name="do_work")])
    spec = task_pb2.TaskSpec(
        agent=task_pb2.AgentSpec(approve_tools=["do_wrok", "do_work"]),
        control=task_pb2.ControlWork(function="mine"),
        agent_pin=task_pb2.AgentPin(revision=revision),
    )
    unknown = pb.CheckToolNamesResponse.UnknownTool(name="do_wrok", nearest=["do_walk"])
    with pytest.raises(InvalidRequest) as refused:
        await check_tool_names(peers(pb.CheckToolNamesResponse(unknown=[unknown]), definition), spec)
    (violation,) = refused.value.violations
    assert violation.field == "spec.agent.approve_tools"
    assert violation.description == "there is no tool 'do_wrok'; did you mean do_work or do_walk?"
    await check_tool_names(peers(pb.CheckToolNamesResponse(), definition), spec)
    definition.kind = agent_pb.AGENT_KIND_FUNCTION
    await check_tool_names(peers(pb.CheckToolNamesResponse(unknown=[unknown]), definition), spec)


async def test_a_broken_tool_service_fails_the_submit() -> None:
    with pytest.raises(PeerFailed):
        await check_tool_names(peers(PeerFailed(grpc.StatusCode.INTERNAL, "broken")), SPEC)
