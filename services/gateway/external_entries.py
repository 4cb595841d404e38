"""Records what users and operators ask of a task in its ledger, where any process finds it and carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.gateway.client_fields import caller
from services.gateway.peers import Peers, with_retries
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message


async def append_external(peers: Peers, task_id: str, request_id: str, **fact: Any) -> ledger.AppendForeignResponse:
    """Appends an entry of the caller, once for each request id. `fact`: a field of the request.

    It is acknowledged when it is recorded. Raises the errors of AppendForeign.
    """
    entry = ledger.AppendForeignRequest(task_id=task_id, request_id=request_id, actor=caller(), **fact)
    return await with_retries(lambda: peers.checkpoint.AppendForeign(entry))


async def append_act(peers: Peers, request: Any, act: str) -> ledger.AppendForeignResponse:
    """Appends the request of an operator. `act`: the field of OperatorRequest that has the fields of the request."""
    operator_request = ledger_pb2.OperatorRequest(reason=request.reason)
    copy_shared(request, getattr(operator_request, act))
    return await append_external(peers, request.task_id, request.request_id, operator_request=operator_request)


def copy_shared(request: Message, part: Message) -> None:
    """Copies the fields that a request has in common with a part of an entry, and marks the part as given."""
    part.SetInParent()
    for field, value in request.ListFields():
        of_part = part.DESCRIPTOR.fields_by_name.get(field.name)
        if of_part is None or of_part.message_type is not field.message_type:  # files: the ledger has no bytes of them
            continue
        if field.is_repeated or field.message_type is not None:
            getattr(part, field.name).MergeFrom(value)
        else:
            setattr(part, field.name, value)
