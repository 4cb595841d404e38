"""What happened outside of Tenure, counted where it happened: lines in files, and requests at the model."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

from tenure.dev.simulator.library import PREFIX, SHIPPED, load_scenario
from tenure.dev.simulator.scenario import ToolCall

SCENARIO: Final = "demo"
MODEL: Final = f"{PREFIX}{SCENARIO}"
EFFECTFUL: Final = frozenset({"append_record", "append_record_unsafe"})


@cache
def effectful_calls() -> tuple[ToolCall, ...]:
    """The scenario's calls that append a line to an outside file, in order."""
    turns = load_scenario(SHIPPED / f"{SCENARIO}.yaml").turns
    return tuple(call for turn in turns for call in turn.calls if call.name in EFFECTFUL)


def slow_line() -> str:
    """The line of the call that takes its time, long enough for a worker to be killed in the middle of it."""
    return str(max(effectful_calls(), key=lambda call: int(call.arguments.get("delay_ms", 0))).arguments["line"])


def count_effects(records: Path) -> Counter[str]:
    """How often each line stands in the outside files; a line that cannot be read counts under its own text."""
    found: Counter[str] = Counter()
    for path in sorted(records.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found[_line_of(line)] += 1
    return found


def count_model_calls(log: Path) -> int:
    """Requests of this demo that reached the model, answered or not."""
    if not log.exists():
        return 0
    calls: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return sum(1 for call in calls if call["endpoint"] == "messages" and call["model"] == MODEL)


def _line_of(record: str) -> str:
    try:
        return str(json.loads(record)["line"])
    except (ValueError, KeyError, TypeError):
        return record
