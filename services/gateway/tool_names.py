"""Checks tool names wherever a caller gives them, so that a mistake in a name costs no model call."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from services.gateway.peers import read_task, with_retries
from tenure.domain.errors import InvalidRequest, NotFound, Unavailable
from tenure.domain.task import DEFAULT_LOOP, REPLAY_LOOP
from tenure.domain.tools import MAX_NEAREST, unknown_tool_text, unknown_tools
from tenure.v1 import agent_service_pb2, tool_service_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from services.gateway.peers import Peers
    from tenure.v1 import checkpoint_service_pb2 as ledger
    from tenure.v1 import task_pb2

CHECK_SECONDS: Final = 1.0
"""The timeout of the check: a submit does not depend on the tool service, so it does not wait long for it."""

_log = logging.getLogger(__name__)


async def check_tool_names(peers: Peers, spec: task_pb2.TaskSpec, prefix: str = "spec.") -> None:
    """Raises InvalidRequest for unknown tool names, with the nearest known names. `prefix`: of the agent's field.

    An agent has the tools of its revision besides those of the tool service. A control function and a loop of the
    user's own may have tools that are unknown before they run. When the tool service does not answer, the task is
    accepted: its entry `tools_defined` lists the unknown names, and a worker refuses an agent in Python whose
    approvals name no tool. A replay asks no person, whatever names its record has.
    """
    agent = spec.agent
    if agent.loop == REPLAY_LOOP:
        return
    approve_tools = {f"{prefix}agent.approve_tools": agent.approve_tools}
    if spec.HasField("control"):
        own = await _tools_of_agent(peers, spec) if agent.approve_tools else None
        if own is not None:
            await _check(peers, approve_tools, own)
    elif not agent.loop or agent.loop == DEFAULT_LOOP:
        await _check(peers, {f"{prefix}agent.tools.names": agent.tools.names, **approve_tools})


async def check_names_of_fork(peers: Peers, task_id: str, overrides: task_pb2.ForkOverrides) -> None:
    """The same for a fork, whose loop is that of the other task. What it takes over is as it was accepted there."""
    names = overrides.tools.names
    if names and (await read_task(peers, task_id)).spec.agent.loop == DEFAULT_LOOP:
        await _check(peers, {"overrides.tools.names": names})


async def earlier_result(
    peers: Peers, check: Awaitable[None], request: ledger.FindRepeatRequest
) -> ledger.FindRepeatResponse | None:
    """Awaits one of the checks above for a request. Returns None when it passes.

    When it refuses, returns the result of an earlier equal request: a repeat gets its result although a tool, or the
    task to fork, is gone. Without an earlier request, raises the refusal.
    """
    try:
        await check
    except (InvalidRequest, NotFound) as refusal:
        earlier = await with_retries(lambda: peers.checkpoint.FindRepeat(request))
        if earlier.WhichOneof("result") is None:
            raise refusal from None
        return earlier
    return None


async def _tools_of_agent(peers: Peers, spec: task_pb2.TaskSpec) -> set[str] | None:
    """Returns the names of the tools of the revisions that the task may get; None: unknown."""
    name, wanted = spec.control.function, spec.agent_pin.revision
    try:
        if wanted:
            numbers = {wanted}
        else:
            agent = (await _read_agent(peers, name, 0)).agent
            numbers = {agent.current_revision, agent.ramp_revision} - {0}
        answers = [await _read_agent(peers, name, number) for number in sorted(numbers)]
    except NotFound:  # its first worker has not registered it yet; or the ledger refuses the submit
        return None
    definitions = [revision.definition for answer in answers for revision in answer.revisions]
    if any(definition.kind == agent_service_pb2.AGENT_KIND_FUNCTION for definition in definitions):
        return None
    return {tool.name for definition in definitions for tool in definition.tools}


async def _read_agent(peers: Peers, name: str, revision: int) -> agent_service_pb2.GetAgentResponse:
    request = agent_service_pb2.GetAgentRequest(name=name, revision=revision)
    return await with_retries(lambda: peers.agents.GetAgent(request))


async def _check(peers: Peers, fields: Mapping[str, Sequence[str]], own: Collection[str] = ()) -> None:
    """Raises InvalidRequest for names that neither `own` nor the tool service has."""
    names = [name for listed in fields.values() for name in listed if name not in own]
    if not names:
        return
    request = tool_service_pb2.CheckToolNamesRequest(names=names)
    try:
        checked = await peers.tools.CheckToolNames(request, timeout=CHECK_SECONDS)
    except Unavailable as error:
        _log.warning("a task is accepted without a check of its tool names", extra={"error": str(error)})
        return
    unknown = {one.name: list(one.nearest) for one in checked.unknown}
    if own:  # in a thread, because clients choose the names, and some take long to compare
        nearest = await asyncio.to_thread(unknown_tools, unknown, own)
        unknown |= {one.name: [*one.nearest, *unknown[one.name]][:MAX_NEAREST] for one in nearest}
    violations = [
        (field, unknown_tool_text(name, nearest))
        for name, nearest in unknown.items()
        for field, listed in fields.items()
        if name in listed
    ]
    if violations:
        raise InvalidRequest(violations=violations)
