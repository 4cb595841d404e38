"""What is outside of an installation on this machine: append_record's files, and the model simulator's bill."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tenure.audit.history import Effect, ModelCall
from tenure.domain.budget import TokenUsage

_KEY: Final = re.compile(rb'\{"key": "([^"/]*)/([^"]*)"')
_USAGE: Final = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def read_effects(records: Path) -> tuple[Effect, ...]:
    """Every line of every file in append_record's folder. A torn line counts as far as its key can be read."""
    return tuple(effect for path in sorted(records.glob("*.jsonl")) for effect in _effects(path))


def read_model_calls(log: Path) -> tuple[ModelCall, ...]:
    """The simulator's bill; see `model_calls`. A log that is not there yet is empty."""
    return model_calls(log.read_text().splitlines()) if log.exists() else ()


def model_calls(lines: Iterable[str]) -> tuple[ModelCall, ...]:
    """Messages as the simulator logged them, whatever came of them; counting tokens is no model call."""
    return tuple(_model_call(value) for value in map(json.loads, lines) if value["endpoint"] == "messages")


def _effects(path: Path) -> Iterator[Effect]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        key = _KEY.match(line)
        task_id, call_id = (part.decode(errors="replace") for part in key.groups()) if key else ("", "")
        yield Effect(task_id=task_id, call_id=call_id, epoch=_epoch(line), place=f"{path.name}:{number}")


def _epoch(line: bytes) -> int:
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return 0


def _model_call(value: dict[str, Any]) -> ModelCall:
    task_id, _, attempt = (value["attempt"] or "").partition("/")
    step, _, number = attempt.partition("/")
    return ModelCall(
        task_id=task_id,
        step=int(step or 0),
        attempt_number=int(number or 0),
        request_id=value["request_id"],
        usage=TokenUsage(**{name: value[name] for name in _USAGE}),
        answered=value["answered"],
        status=value["status"] or 0,
    )
