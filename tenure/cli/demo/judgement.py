"""The promises of the demo, judged by what was observed.

`judge` is a pure function, so a test can break each promise by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from devstack.simulator.scenario import PREFIX, SHIPPED, ToolCall, load_scenario
from tenure.domain.states import TaskState

# Counts outside of Tenure: lines in files, and requests at the model simulator.

SCENARIO: Final = "demo"
MODEL: Final = f"{PREFIX}{SCENARIO}"
EFFECTFUL: Final = frozenset({"append_record", "append_record_unsafe"})


@cache
def effectful_calls() -> tuple[ToolCall, ...]:
    """Returns the scenario's calls that append a line to an outside file, in order. One of them is planned twice."""
    turns = load_scenario(SHIPPED / f"{SCENARIO}.yaml").turns
    return tuple(call for turn in turns for call in turn.calls if call.name in EFFECTFUL)


def effects_expected() -> tuple[str, ...]:
    """Returns the lines of these calls, each once."""
    return tuple(dict.fromkeys(str(call.arguments["line"]) for call in effectful_calls()))


def slow_line() -> str:
    """Returns the line of the slowest call: it takes long enough to kill a worker in the middle of it."""
    return str(max(effectful_calls(), key=lambda call: int(call.arguments.get("delay_ms", 0))).arguments["line"])


@cache
def slow_step() -> int:
    """Returns the step of the slowest answer: it takes long enough to kill a worker in the middle of it."""
    turns = load_scenario(SHIPPED / f"{SCENARIO}.yaml").turns
    return 1 + max(range(len(turns)), key=lambda index: turns[index].latency_ms or 0)


def count_effects(records: Path) -> Counter[str]:
    """Returns how often each line is in the outside files. A line that is not a JSON record counts as its own text."""
    counts: Counter[str] = Counter()
    for path in sorted(records.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            counts[_line_of(line)] += 1
    return counts


def count_model_calls(log: Path) -> int:
    """Returns the number of this demo's requests that reached the model simulator, answered or not."""
    if not log.exists():
        return 0
    calls: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return sum(1 for call in calls if call["endpoint"] == "messages" and call["model"] == MODEL)


def _line_of(record: str) -> str:
    try:
        return str(json.loads(record)["line"])
    except (ValueError, KeyError, TypeError):
        return record


LONGEST_RESUME_SECONDS: Final = 10.0
MIN_TAKEOVERS: Final = 3


@dataclass(frozen=True, slots=True)
class Observed:
    """The observations of a run. `effects` counts each line in the outside files, expected or not.

    `answers` counts the committed model answers of each step. The resume times are the seconds from the signal to the
    next owner's Open; None: there was no next owner.
    """

    task_state: str
    answers: Mapping[int, int]
    takeovers: int
    effects: Mapping[str, int]
    effects_expected: tuple[str, ...]
    stale_refused_ledger: int
    stale_refused_tools: int
    model_calls: int
    resume_seconds_kill: float | None
    resume_seconds_freeze: float | None

    @property
    def model_calls_repeated(self) -> int:
        """The model calls beyond one for each committed answer."""
        return self.model_calls - sum(self.answers.values())


@dataclass(frozen=True, slots=True)
class Promise:
    """A judged promise: `name` is for programs, `text` for people, `actual` is the observed value."""

    name: str
    text: str
    kept: bool
    actual: str


def judge(seen: Observed) -> tuple[Promise, ...]:
    """Returns all promises, always in this order."""
    return (
        Promise("succeeded", "the task succeeded", seen.task_state == TaskState.SUCCEEDED, seen.task_state or "-"),
        Promise("taken_over", "it was taken over three times", seen.takeovers >= MIN_TAKEOVERS, str(seen.takeovers)),
        _resumed("resumed_after_freeze", "a frozen worker's task was resumed", seen.resume_seconds_freeze),
        _resumed("resumed_after_kill", "a killed worker's task was resumed", seen.resume_seconds_kill),
        _effects(seen),
        _refused("stale_execute_refused", "tools refused the stale Execute", seen.stale_refused_tools),
        _refused("stale_commit_refused", "ledger refused the stale Commit", seen.stale_refused_ledger),
        _no_step_twice(seen),
        _no_call_repeated(seen),
    )


def broken(promises: tuple[Promise, ...]) -> list[Promise]:
    """Returns the promises that were not kept."""
    return [promise for promise in promises if not promise.kept]


def _resumed(name: str, text: str, seconds: float | None) -> Promise:
    kept = seconds is not None and seconds <= LONGEST_RESUME_SECONDS
    return Promise(name, text, kept, "never" if seconds is None else f"after {seconds:.1f} s")


def _effects(seen: Observed) -> Promise:
    kept = dict(seen.effects) == dict.fromkeys(seen.effects_expected, 1)
    once = sum(1 for line in seen.effects_expected if seen.effects.get(line) == 1)
    message = f"{once} of {len(seen.effects_expected)}"
    unexpected = sum(seen.effects.values()) - once
    return Promise(
        "effects_once", "each effect exactly once", kept, message + (f", {unexpected} more" * bool(unexpected))
    )


def _refused(name: str, text: str, count: int) -> Promise:
    return Promise(name, text, count >= 1, f"{count} x")


def _no_step_twice(seen: Observed) -> Promise:
    twice = sorted(step for step, count in seen.answers.items() if count > 1)
    message = f"step {', '.join(map(str, twice))}" if twice else f"{len(seen.answers)} steps"
    return Promise("no_step_twice", "no committed step was repeated", not twice, message)


def _no_call_repeated(seen: Observed) -> Promise:
    """The provider was asked once for each answer, also for the one whose worker was killed. Fewer is wrong, too."""
    return Promise(
        "no_model_call_repeated",
        "no model call was repeated",
        seen.model_calls_repeated == 0,
        f"{seen.model_calls} for {sum(seen.answers.values())} answers",
    )
