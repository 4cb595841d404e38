"""The ids of traces and spans: functions of the ledger's own names, and of nothing else.

So every process that knows a call knows its span, without asking anybody.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from uuid import UUID


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
