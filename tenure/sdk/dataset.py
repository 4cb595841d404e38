"""A task as one row of a dataset: what it was given, what it came to, and its model calls and tool calls between.

For evaluations and for training. The row is public JSON (docs/json.md): `tenure tasks export` writes one in each line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenure.domain.fold import fold
from tenure.domain.states import Reason
from tenure.sdk.events import (
    AssistantMessageEvent,
    AttemptLostEvent,
    Event,
    ModelAttemptEvent,
    ModelFailureEvent,
    ToolIntentEvent,
    ToolOutcomeEvent,
    ToolsDefinedEvent,
)
from tenure.sdk.from_wire import entry_event
from tenure.sdk.json_shape import json_value
from tenure.sdk.task_info import TaskInfo
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import entries_to_domain


def dataset_row(info: TaskInfo, entries: Sequence[ledger_pb2.Entry]) -> dict[str, Any]:
    """Returns the row of a task with all its entries.

    `input`: the goal, or what the function was given. `output`: the result, as JSON value if the task has one.
    `tools`: those that the model was offered. `messages`: the conversation as the model saw it last, after compaction,
    with the last answer; null for a ledger with entries that this version does not know. `model_calls` and
    `tool_calls`: in the order in which they began, with the failed and the lost ones.
    """
    events = [entry_event(entry) for entry in entries]
    return {
        "task_id": info.task_id,
        "input": info.function.input if info.function else info.goal,
        "output": _output(info),
        "task": info.to_json(),
        "tools": _tools(events),
        "messages": _messages(entries),
        "model_calls": _model_calls(events),
        "tool_calls": _tool_calls(events),
    }


def _output(info: TaskInfo) -> Any:
    """Returns what a function returned, the JSON value of a result with a schema, or the agent's last text."""
    is_text = info.result_data is None and info.reason != Reason.FUNCTION_RETURNED
    return info.result if is_text else info.result_data


def _tools(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns the tools of the newest entry that lists them."""
    listed = [event.tools for event in events if isinstance(event, ToolsDefinedEvent)]
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": json.loads(tool.input_schema_json),
            "effect_class": tool.effect_class.value,
        }
        for tool in (listed[-1] if listed else ())
    ]


def _messages(entries: Sequence[ledger_pb2.Entry]) -> list[dict[str, Any]] | None:
    try:
        return [dict(message) for message in fold(entries_to_domain(entries)).messages]
    except ValueError:
        return None


def _model_calls(events: Sequence[Event]) -> list[dict[str, Any]]:
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        match event:
            case ModelAttemptEvent():
                calls[event.step, event.attempt_number] = {
                    "step": event.step,
                    "attempt_number": event.attempt_number,
                    "model": event.model,
                    "ending": "OPEN",
                    "began_at": json_value(event.recorded_at),
                }
            case AssistantMessageEvent():
                _settle(calls, event, "ANSWERED", ("content", "text", "stop_reason", "usage", "latency_seconds"))
            case ModelFailureEvent():
                _settle(calls, event, "FAILED", ("error_class", "message", "status_code", "usage"))
            case AttemptLostEvent():
                _settle(calls, event, "LOST", ("usage",))
    return list(calls.values())


def _settle(
    calls: dict[tuple[int, int], dict[str, Any]],
    event: AssistantMessageEvent | ModelFailureEvent | AttemptLostEvent,
    ending: str,
    names: Sequence[str],
) -> None:
    number = event.attempt_number
    call = calls.setdefault((event.step, number), {"step": event.step, "attempt_number": number})
    call["ending"] = ending
    call.update((name, json_value(getattr(event, name))) for name in names)


def _tool_calls(events: Sequence[Event]) -> list[dict[str, Any]]:
    calls: dict[str, dict[str, Any]] = {}
    for event in events:
        match event:
            case ToolIntentEvent():
                call = {"step": event.step, "call_id": event.call_id, "tool": event.tool, "status": "OPEN"}
                calls[event.call_id] = {**call, "arguments": json_value(event.arguments)}
            case ToolOutcomeEvent() if event.call_id in calls:
                names = ("status", "content", "truncated", "duration_seconds")
                calls[event.call_id].update((name, json_value(getattr(event, name))) for name in names)
    return list(calls.values())
