"""Records in the ledger what clients and operators ask of a task: their requests name the fields as the entries do."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from services.gateway.client_fields import caller, new_id
from services.gateway.peers import Peers, with_retries
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, task_pb2


async def append_fact(peers: Peers, request: Any, **fact: Message) -> task_pb2.Task:
    """Appends an entry to the task of a request, and returns the task. It is acknowledged when recorded: other
    processes carry it out.
    """
    request_id = request.request_id if "request_id" in request.DESCRIPTOR.fields_by_name else new_id()
    entry = ledger.AppendForeignRequest(task_id=request.task_id, request_id=request_id, actor=caller(), **fact)  # type: ignore[arg-type]  # the name of a fact
    return (await with_retries(lambda: peers.checkpoint.AppendForeign(entry))).task


async def append_act(peers: Peers, request: Any, act: str) -> task_pb2.Task:
    """Appends the request of an operator. `act`: the field of OperatorRequest that has the fields of the request."""
    operator_request = ledger_pb2.OperatorRequest(reason=request.reason)
    copy_shared(request, getattr(operator_request, act))
    return await append_fact(peers, request, operator_request=operator_request)


def copy_shared(request: Message, part: Message) -> None:
    """Copies the fields that a request has in common with a part of an entry, and marks the part as given."""
    part.SetInParent()
    for field, value in request.ListFields():
        if field.name not in part.DESCRIPTOR.fields_by_name:
            continue
        if field.is_repeated or field.message_type is not None:
            getattr(part, field.name).MergeFrom(value)
        else:
            setattr(part, field.name, value)
