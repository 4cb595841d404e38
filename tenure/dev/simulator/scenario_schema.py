"""The shape of a scenario file and of a fault, as JSON Schema."""

from __future__ import annotations

from typing import Any

STOP_REASONS = [
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
]
MAX_TURNS = 100_000

_COUNT = {"type": "integer", "minimum": 0}
_POSITIVE = {"type": "integer", "minimum": 1}

# Exactly one of the first five says what happens.
FAULT_PROPERTIES: dict[str, Any] = {
    "status": {"type": "integer", "minimum": 400, "maximum": 599},
    "broken_stream": _COUNT,
    "overloaded": _COUNT,
    "drip_ms": _POSITIVE,
    "latency_ms": _COUNT,
    "retry_after_seconds": {"type": "number", "minimum": 0},
    "message": {"type": "string"},
}
FAULT_KINDS = {
    "oneOf": [{"required": [kind]} for kind in ("status", "broken_stream", "overloaded", "drip_ms", "latency_ms")]
}

FAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {**FAULT_PROPERTIES, "times": _POSITIVE},
    "additionalProperties": False,
    **FAULT_KINDS,
}

# What POST /_sim/faults takes: the same fault, for the next `count` requests that match.
FAULT_REQUEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **FAULT_PROPERTIES,
        "count": _POSITIVE,
        "model": {"type": "string"},
        "endpoint": {"enum": ["messages", "count_tokens"]},
    },
    "additionalProperties": False,
    **FAULT_KINDS,
}

_CALL_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
        "arguments": {"type": "object"},
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}

_TURN_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "calls": {"type": "array", "items": _CALL_SCHEMA, "minItems": 1, "maxItems": 64},
        "latency_ms": _COUNT,
        "deltas": _POSITIVE,
        "usage": {
            "type": "object",
            "properties": {"input_tokens": _COUNT, "output_tokens": _POSITIVE},
            "additionalProperties": False,
        },
        "stop_reason": {"enum": STOP_REASONS},
        "fault": FAULT_SCHEMA,
        "repeat": {"type": "integer", "minimum": 1, "maximum": MAX_TURNS},
    },
    "additionalProperties": False,
    "minProperties": 1,
}

TURNS_SCHEMA: dict[str, Any] = {"type": "array", "items": _TURN_SCHEMA, "minItems": 1, "maxItems": MAX_TURNS}

# Instead of turns alone: with how much the model takes, and what it says when it is asked for a summary.
MODEL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"window_tokens": _POSITIVE, "summary": _TURN_SCHEMA, "turns": TURNS_SCHEMA},
    "required": ["turns"],
    "additionalProperties": False,
}
