"""What the model does for the suite's tasks. The goal of a task is the name of the file its effects go to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

PREFIX: Final = "faults-"


def _append(tool: str, line: str, delay_ms: int = 0) -> dict[str, Any]:
    return {"name": tool, "arguments": {"file": "{{goal}}", "line": line, "delay_ms": delay_ms}}


def _calls(*calls: dict[str, Any], latency_ms: int = 150) -> dict[str, Any]:
    return {"text": "I will do this.", "latency_ms": latency_ms, "calls": list(calls)}


def _file(number: int) -> dict[str, Any]:
    return {"name": "write_file", "arguments": {"path": f"{number}.txt", "content": f"number {number}"}}


SHAPED: Final = "shaped"
"""Of tasks whose result must fit a schema."""
RESULT_SCHEMA: Final = '{"type": "object", "required": ["lines"]}'

FAMILY: Final = "family"
MEMBER: Final = "member"
"""Of tasks that have others work for them, and of those others."""

SLOWEST: Final = "slowest-tools"
"""Of tasks that no seed has: what leads to a failpoint stops their calls."""

UNSAFE: Final = frozenset({"unsafe", "slow-tools", "siblings"})
"""Of tasks with calls that must not be repeated and take so long that their runner can be lost in the middle."""

END: Final = {"text": "All of it is done.", "latency_ms": 100}
LIST: Final = {"name": "list_files", "arguments": {"path": ""}}
SEARCH: Final = {"name": "web_search", "arguments": {"query": "help desk", "num_results": 1}}
PYTHON: Final = {"name": "execute_python", "arguments": {"code": "import time; time.sleep(0.3); print(6 * 7)"}}

SCENARIOS: Final[dict[str, list[dict[str, Any]]]] = {
    "plain": [END],
    "long": [{"text": "word " * 200, "latency_ms": 2000, "deltas": 40}],
    "keyed": [*(_calls(_append("append_record", f"keyed {n}", 100), latency_ms=250) for n in range(7)), END],
    "unsafe": [*(_calls(_append("append_record_unsafe", f"unsafe {n}", 1200)) for n in range(3)), END],
    "slow-tools": [
        _calls(_append("append_record_unsafe", "unsafe 0", 2500), _append("append_record", "keyed 0", 2000)),
        END,
    ],
    SLOWEST: [
        _calls(_append("append_record_unsafe", "unsafe 0", 20_000), _append("append_record", "keyed 0", 20_000)),
        END,
    ],
    "siblings": [
        _calls(_append("append_record", "keyed 0"), _append("append_record_unsafe", "unsafe 0", 2500)),
        END,
    ],
    "mixed": [
        *(
            _calls(
                _append("append_record", f"keyed {n}", 100 * n),
                _append("append_record_unsafe", f"unsafe {n}", 50),
                _file(n),
                LIST,
                SEARCH,
            )
            for n in range(5)
        ),
        END,
    ],
    "files": [*(_calls(_file(n), latency_ms=50) for n in range(5)), _calls(LIST), END],
    "python": [_calls(PYTHON, _append("append_record", "keyed 0")), END],
    "refused-often": [{**END, "fault": {"status": 529, "times": 2, "retry_after_seconds": 0.2}}],
    FAMILY: [
        _calls(
            {"name": "spawn_sub_agents", "arguments": {"goals": [f"{PREFIX}{MEMBER} {n} {{{{goal}}}}" for n in "abc"]}}
        ),
        END,
    ],
    MEMBER: [
        _calls({"name": "append_record", "arguments": {"file": "members", "line": "{{goal}}", "delay_ms": 300}}),
        END,
    ],
    SHAPED: [
        _calls(_append("append_record", "keyed 0")),
        {"text": "It is done, and there was 1 line.", "latency_ms": 100},
        {"text": '{"lines": 1}', "latency_ms": 100},
    ],
    "broken-once": [
        _calls(_append("append_record", "keyed 0")),
        {"text": "This one is cut off once. " * 8, "deltas": 8, "fault": {"broken_stream": 3, "times": 1}},
    ],
}

WEIGHTS: Final[dict[str, int]] = {
    "plain": 3,
    "long": 2,
    "keyed": 5,
    "unsafe": 8,
    "slow-tools": 5,
    "siblings": 1,
    "mixed": 5,
    "files": 2,
    "python": 1,
    "refused-often": 1,
    "broken-once": 1,
    SHAPED: 1,
}
"""How often each is chosen."""


def model_of(scenario: str) -> str:
    """Members of a family have the model of its head, and say by their goals what they do."""
    return "sim-by-goal" if scenario == FAMILY else f"sim-{PREFIX}{scenario}"


def goal_of(scenario: str, goal: str) -> str:
    """The goal of the task."""
    return f"{PREFIX}{scenario} {goal}" if scenario == FAMILY else goal


def write_scenarios(folder: Path) -> Path:
    """One file each, for the simulator."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, turns in SCENARIOS.items():
        (folder / f"{PREFIX}{name}.yaml").write_text(yaml.safe_dump(turns))
    return folder
