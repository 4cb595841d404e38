"""Converts the effects of a task that an undo lists, and the present declarations of tools."""

from __future__ import annotations

from tenure.domain.effects_of_task import Present
from tenure.domain.tools import ToolDefinition
from tenure.domain.undo import TaskEffect, UndoVerdict
from tenure.v1 import task_service_pb2 as pb
from tenure.wire.codec import writer
from tenure.wire.common import EnumMap
from tenure.wire.tool import compensation_to_domain, compensation_to_wire

UNDO_VERDICTS = EnumMap(UndoVerdict, dict(pb.UndoVerdict.items()), "UNDO_VERDICT", None)
effect_to_wire = writer(TaskEffect, pb.TaskEffect)


def present_to_domain(request: pb.PlanUndoRequest | pb.UndoTaskRequest) -> Present | None:
    """Returns the present compensations by tool, or None if the gateway does not know them."""
    return {
        tool.name: compensation_to_domain(tool.compensation) if tool.HasField("compensation") else None
        for tool in request.present_tools
    } or None


def declared_to_wire(tool: ToolDefinition) -> pb.DeclaredTool:
    """Returns the declaration of a tool."""
    declared = None if tool.compensation is None else compensation_to_wire(tool.compensation)
    return pb.DeclaredTool(name=tool.name, compensation=declared)
