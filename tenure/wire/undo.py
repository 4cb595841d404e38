"""Converts the effects of a task that an undo lists, and the present declarations of tools."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.tools import ToolDefinition
from tenure.domain.undo import DeclaredTool, Present, TaskEffect, UndoVerdict
from tenure.v1 import task_service_pb2 as pb
from tenure.wire.codec import pair
from tenure.wire.common import EFFECT_CLASSES, EnumMap
from tenure.wire.tool import compensation_to_domain, compensation_to_wire

UNDO_VERDICTS = EnumMap(UndoVerdict, dict(pb.UndoVerdict.items()), "UNDO_VERDICT", None)
effect_to_wire, effect_to_domain = pair(TaskEffect, pb.TaskEffect)


def present_to_domain(request: pb.PlanUndoRequest | pb.UndoTaskRequest) -> Present | None:
    """Returns the present declarations by tool, or None if the gateway does not know them."""
    if not request.HasField("present"):
        return None
    return {
        tool.name: DeclaredTool(
            EFFECT_CLASSES.to_domain(tool.effect_class),
            compensation_to_domain(tool.compensation) if tool.HasField("compensation") else None,
        )
        for tool in request.present.tools
    }


def present_to_wire(tools: Iterable[ToolDefinition]) -> pb.PresentDeclarations:
    """Returns the declarations of tools."""
    return pb.PresentDeclarations(
        tools=[
            pb.PresentDeclarations.Declared(
                name=tool.name,
                effect_class=EFFECT_CLASSES.to_wire(tool.effect_class),
                compensation=None if tool.compensation is None else compensation_to_wire(tool.compensation),
            )
            for tool in tools
        ]
    )
