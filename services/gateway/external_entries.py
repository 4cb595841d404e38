"""Records what users and operators ask of a task in its ledger, where any process finds it and carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.gateway.client_fields import caller
from services.gateway.peers import Peers, with_retries
from tenure.v1 import checkpoint_service_pb2 as ledger

if TYPE_CHECKING:
    from tenure.v1 import task_pb2


async def append_external(peers: Peers, task_id: str, request_id: str, **fact: Any) -> task_pb2.Task:
    """Appends an entry of the caller, once for each request id, and returns the task. `fact`: a field of the request.

    It is acknowledged when it is recorded. Raises the errors of AppendForeign.
    """
    entry = ledger.AppendForeignRequest(task_id=task_id, request_id=request_id, actor=caller(), **fact)
    return (await with_retries(lambda: peers.checkpoint.AppendForeign(entry))).task
