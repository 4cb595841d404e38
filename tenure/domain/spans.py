"""Spans of a trace, and the form in which they hold content."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from tenure.domain.task import TaskSpec

AttributeValue = str | int | float | bool | tuple[str, ...]


class SpanKind(StrEnum):
    """The kind of a span. A model call is a request to another system."""

    INTERNAL = "INTERNAL"
    CLIENT = "CLIENT"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span. Times are nanoseconds since 1970."""

    name: str
    at_ns: int
    attributes: dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """A span. `end_sequence`: the entry that ended it. `ended_ns` None: it has not ended.

    `links`: trace id and span id of spans of other traces. `error_type` "": nothing failed.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: SpanKind
    started_ns: int
    ended_ns: int | None
    end_sequence: int
    attributes: dict[str, AttributeValue]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    error_type: str = ""


# Content, in the form of the conventions.


def present(attributes: dict[str, str]) -> dict[str, AttributeValue]:
    """Returns the attributes that are not empty."""
    return {name: value for name, value in attributes.items() if value}


def nanoseconds(seconds: float) -> int:
    """Returns a duration in nanoseconds, which is a whole number of microseconds."""
    return round(seconds * 1_000_000) * 1000


def text_part(text: str) -> dict[str, Any]:
    """Returns a text as a part of a message."""
    return {"type": "text", "content": text}


def instructions_text(spec: TaskSpec) -> str:
    """Returns the system prompt as the conventions have it, or ""."""
    return json.dumps([text_part(spec.agent.system)], ensure_ascii=False) if spec.agent.system else ""


def message_text(role: str, parts: list[dict[str, Any]], finish_reason: str = "") -> str:
    """Returns a list of one message, as JSON."""
    message: dict[str, Any] = {"role": role, "parts": parts}
    if finish_reason:
        message["finish_reason"] = finish_reason
    return json.dumps([message], ensure_ascii=False)


def message_part(block: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a content block as a part of a message, or None for one that people do not read."""
    match block.get("type"):
        case "text":
            return text_part(str(block.get("text", "")))
        case "tool_use":
            arguments = block.get("input")
            return {"type": "tool_call", "id": block.get("id"), "name": block.get("name"), "arguments": arguments}
        case _:
            return None


# The ids of traces and spans: functions of the ledger's own names, and of nothing else.
#
# So every process that knows a call knows its span, without asking anybody.


def trace_id(root_task_id: str) -> str:
    """Returns the id of the trace of a tree, in hexadecimal: that of its root, without the hyphens."""
    return UUID(root_task_id).hex


def span_id(task_id: str, name: str) -> str:
    """Returns the id of a span, in hexadecimal. `name`: what the span is within its task, such as `call 3.0`."""
    return hashlib.sha256(f"{task_id}/{name}".encode()).hexdigest()[:16]


def attempt_span_id(task_id: str, attempt: int) -> str:
    """Returns the id of the span of one attempt of a task."""
    return span_id(task_id, f"attempt {attempt}")


def call_span_id(task_id: str, call_id: str) -> str:
    """Returns the id of the span of a tool call."""
    return span_id(task_id, f"call {call_id}")


def call_traceparent(root_task_id: str, task_id: str, call_id: str) -> str:
    """Returns the W3C traceparent of a tool call: what its tool does becomes a child of the call's span."""
    return f"00-{trace_id(root_task_id)}-{call_span_id(task_id, call_id)}-01"


def attempt_traceparent(root_task_id: str, task_id: str, attempt: int) -> str:
    """Returns the W3C traceparent of an attempt of a task."""
    return f"00-{trace_id(root_task_id)}-{attempt_span_id(task_id, attempt)}-01"


_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


def parse_traceparent(header: str) -> tuple[str, str] | None:
    """Returns the trace id and the span id of a W3C traceparent, or None for anything else."""
    match = _TRACEPARENT.fullmatch(header)
    return None if match is None else (match[1], match[2])
