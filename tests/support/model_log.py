"""The log of the model simulator: the calls that a provider would bill."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from checker.history import (
    BilledModelCall,
)
from tenure.domain.budget import TokenUsage
from tests.support.written_lines import whole_lines

_USAGE: Final = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def read_model_calls(log: Path) -> tuple[BilledModelCall, ...]:
    """Reads the simulator's log; see `model_calls`. A missing log is empty."""
    return model_calls(whole_lines(log))


def model_calls(lines: Iterable[str]) -> tuple[BilledModelCall, ...]:
    """Returns the logged requests of model calls, with any result. Counting tokens is not a model call."""
    return tuple(_model_call(value) for value in map(json.loads, lines) if value["endpoint"] != "count_tokens")


def _model_call(value: dict[str, Any]) -> BilledModelCall:
    task_id, _, attempt = (value["attempt"] or "").partition("/")
    step, _, number = attempt.partition("/")
    return BilledModelCall(
        task_id=task_id,
        step=int(step or 0),
        attempt_number=int(number or 0),
        request_id=value["request_id"],
        usage=TokenUsage(**{name: value[name] for name in _USAGE}),
        answered=value["answered"],
        status=value["status"] or 0,
    )
