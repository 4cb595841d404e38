"""Decides which waits a client may answer, and builds the form by which the protocol asks a person."""

from __future__ import annotations

from typing import Any, Final

from edges.mcp_server.settings import McpServerSettings
from tenure.domain.errors import PermissionDenied
from tenure.domain.waits import EDIT, WaitKind
from tenure.sdk.task import Task
from tenure.sdk.task_info import TaskInfo, TaskWait

_APPROVALS: Final = frozenset({WaitKind.APPROVAL, WaitKind.TOOL_APPROVAL})
ACCEPT: Final = "accept"
DECLINE: Final = "decline"


def may_answer(wait: TaskWait, settings: McpServerSettings) -> bool:
    """Whether a client may answer the wait: questions, and approvals where the settings say so.

    Never a wait for budget, whose approval would raise the cap of the submit, and never an operator's.
    """
    return wait.kind is WaitKind.QUESTION or (settings.approvals and wait.kind in _APPROVALS)


def decisions_of(wait: TaskWait) -> list[str]:
    """Returns the decisions that the form offers; none: a text."""
    return [option for option in wait.options if not (wait.kind is WaitKind.TOOL_APPROVAL and option == EDIT)]


async def answer(task: Task[Any], wait: TaskWait, text: str, comment: str, settings: McpServerSettings) -> TaskInfo:
    """Answers the wait. Raises PermissionDenied, and the errors of `Task.answer`."""
    if not may_answer(wait, settings):
        message = (
            f"a wait of kind {wait.kind} is not answered by MCP: people answer it with tenure resume, or by a link"
        )
        raise PermissionDenied(message, reason="NOT_BY_MCP", metadata={"wait_id": wait.wait_id})
    return await task.answer(wait, text, comment=comment)


def form_of(info: TaskInfo, wait: TaskWait) -> dict[str, Any]:
    """Returns the request of the protocol that asks a person, as JSON."""
    lines = [wait.question, wait.context]
    for call in wait.calls or ([wait] if wait.tool else []):
        lines += [
            f"The task asks to call {call.tool} with {call.arguments}.",
            f"Digest of the call: {call.call_digest}",
        ]
    decisions = decisions_of(wait)
    answer_schema: dict[str, Any] = {"type": "string", "title": "Answer"}
    if decisions:
        answer_schema["enum"] = decisions
    return {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "\n\n".join([f"Task {info.task_id} waits.", *filter(None, lines)]),
            "requestedSchema": {
                "type": "object",
                "properties": {"answer": answer_schema, "comment": {"type": "string", "title": "Comment"}},
                "required": ["answer"],
            },
        },
    }
