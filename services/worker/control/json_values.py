"""Encodes the values of control functions as JSON, and reads the recorded results of their steps."""

from __future__ import annotations

import json
from typing import Any

from tenure.control import StepFailed
from tenure.domain.entries import ControlStep
from tenure.domain.tool_arguments import storable_json
from tenure.validators.common import MAX_CONTROL_JSON_BYTES


def result_of(recorded: ControlStep) -> Any:
    """Returns the result of a recorded step. Raises StepFailed."""
    if recorded.failure is not None:
        raise StepFailed(recorded.name, recorded.failure)
    return json.loads(recorded.result_json)


def encode(value: Any, what: str, most_bytes: int = MAX_CONTROL_JSON_BYTES) -> str:
    """Encodes a value as JSON of at most `most_bytes`.

    Raises TypeError for another type, and ValueError for a value too large, nested too deeply or not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    check_text(text, what)
    size = len(text.encode())
    if size > most_bytes:
        raise ValueError(f"{what} has {size} bytes of JSON, at most {most_bytes} are allowed: store it elsewhere")
    try:
        storable_json(text)
    except ValueError as error:
        raise ValueError(f"{what} cannot be stored: {error}") from None
    return text


def check_text(text: str, what: str) -> None:
    """Raises ValueError for half of a surrogate pair, which no message can carry: the worker could record nothing."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X} at position {error.start}"
        raise ValueError(
            f"{what} cannot be stored: it has half of a surrogate pair ({half}); use whole characters"
        ) from None


def is_large(result_json: str) -> bool:
    """Whether a result is too large for the ledger, and so kept in the workspace."""
    return len(result_json) > MAX_CONTROL_JSON_BYTES or len(result_json.encode()) > MAX_CONTROL_JSON_BYTES
