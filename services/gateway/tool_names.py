"""Names of tools are checked at submit, so that a mistake in one costs no model call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.v1 import tool_service_pb2

if TYPE_CHECKING:
    from services.gateway.peers import Peers
    from tenure.v1 import task_pb2

MESSAGES_LOOP: Final = "messages"
"""The loop of our workers, which is the default."""

CHECK_SECONDS: Final = 1.0
"""A submit does not depend on the tool service, so it does not wait for it for long."""

_log = logging.getLogger(__name__)


async def check_tool_names(peers: Peers, agent: task_pb2.AgentSpec) -> None:
    """Raises InvalidRequest for names of no tool, with the nearest names that are.

    A loop of one's own may have tools that the tool service does not know. When the tool service does not answer, the
    task is accepted: its first entry about tools names those that there are not.
    """
    fields = {"agent.tools.names": list(agent.tools.names), "agent.approve_tools": list(agent.approve_tools)}
    names = [name for listed in fields.values() for name in listed]
    if not names or agent.loop not in {"", MESSAGES_LOOP}:
        return
    request = tool_service_pb2.CheckToolNamesRequest(names=names)
    try:
        checked = await peers.tools.CheckToolNames(request, timeout=CHECK_SECONDS)
    except Unavailable as error:
        _log.warning("the names of a task's tools are not checked", extra={"error": str(error)})
        return
    violations = [
        (field, _sentence(one.name, list(one.nearest)))
        for one in checked.unknown
        for field, listed in fields.items()
        if one.name in listed
    ]
    if violations:
        raise InvalidRequest(violations=violations)


def _sentence(name: str, nearest: list[str]) -> str:
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return f"there is no tool {name!r}{hint}"
