"""The public form of each message that a command prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from tenure.sdk.from_wire import change_event, entry_event, task_counts, task_file, task_info, undo_plan
from tenure.sdk.json_shape import PublicValue
from tenure.sdk.operations_from_wire import OPERATIONS
from tenure.v1 import ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api

PUBLIC: Final[dict[type[Message], Callable[[Any], PublicValue]]] = {
    task_pb2.Task: task_info,
    ledger_pb2.Entry: entry_event,
    api.CountTasksResponse: task_counts,
    api.WatchTasksResponse: change_event,
    api.PlanUndoResponse: undo_plan,
    workspace_pb2.WorkspaceFile: task_file,
    **OPERATIONS,
}


def public_value(message: Message) -> PublicValue:
    """Returns the public form of a message (docs/json.md). Raises KeyError for one that no command prints."""
    return PUBLIC[type(message)](message)
