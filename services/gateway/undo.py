"""PlanUndo and UndoTask: adds the present declarations of the tools, which only the tool service has."""

from __future__ import annotations

import logging
from typing import Final

from services.gateway.peers import Peers, with_retries
from tenure.domain.errors import Unavailable
from tenure.v1 import admin_service_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.tool import tool_to_domain
from tenure.wire.undo import declared_to_wire

_log: Final = logging.getLogger(__name__)


async def plan_undo(peers: Peers, request: api.PlanUndoRequest) -> api.PlanUndoResponse:
    """Lists the effects of a task. Raises as the ledger does.

    Without the tool service, the list has the declarations of the ledger, and says so.
    """
    try:
        await _add_present(peers, request)
    except Unavailable as error:
        _log.warning("an undo is planned without the present declarations", extra={"error": str(error)})
    return await with_retries(lambda: peers.checkpoint.PlanUndo(request))


async def undo_task(peers: Peers, request: api.UndoTaskRequest) -> api.UndoTaskResponse:
    """Creates an undo. Raises as the ledger does, and Unavailable without the tool service, which runs its calls."""
    await _add_present(peers, request)
    return await with_retries(lambda: peers.checkpoint.UndoTask(request))


async def _add_present(peers: Peers, request: api.PlanUndoRequest | api.UndoTaskRequest) -> None:
    """Adds the tools of the tool service. Raises Unavailable."""
    listed = await with_retries(lambda: peers.tools.ListOfferedTools(admin_service_pb2.ListOfferedToolsRequest()))
    request.present_tools.extend(declared_to_wire(tool_to_domain(tool.definition)) for tool in listed.tools)
