"""The scenarios there are: files read and checked at the start, and the families that a model's name describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import yaml

from tenure.dev.simulator.scenario import SUMMARY, Fault, FaultKind, StepsScenario, ToolCall, Turn, WrittenScenario
from tenure.dev.simulator.scenario_schema import MAX_TURNS, MODEL_SCHEMA, TURNS_SCHEMA
from tenure.dev.simulator.templates import unknown_references
from tenure.domain.simulation import SIMULATED_MODEL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenure.dev.simulator.scenario import Scenario

SHIPPED = Path(__file__).parent / "scenarios"
DEFAULT_SCENARIO = "research"
PREFIX = SIMULATED_MODEL_PREFIX
BY_GOAL = "sim-by-goal"
MAX_STEPS = 1_000_000
MAX_STEP_TEXT_BYTES = 1_000_000
# steps-<N>, then optionally a tool's name, a latency, a text's size, a window: steps-1000-write_file-50ms-2400b-8000w
_STEPS = re.compile(r"steps-(\d{1,7})(?:-([a-z][a-z0-9_]*))?(?:-(\d{1,6})ms)?(?:-(\d{1,7})b)?(?:-(\d{1,8})w)?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_TURNS = jsonschema.Draft202012Validator(TURNS_SCHEMA)
_MODEL = jsonschema.Draft202012Validator(MODEL_SCHEMA)


class ScenarioError(Exception):
    """A scenario file cannot be played: the message names the file and the turn."""


class ScenarioLibrary:
    """All scenarios by name. A later directory's file replaces an earlier one's of the same name."""

    def __init__(self, directories: Sequence[Path] = (), files: Sequence[Path] = ()) -> None:
        """Read every `*.yaml` of the shipped scenarios and of `directories`, then `files`. Raises ScenarioError."""
        self._scenarios: dict[str, Scenario] = {}
        for directory in (SHIPPED, *directories):
            if not directory.is_dir():
                raise ScenarioError(f"{directory} is no directory")
            for path in sorted(directory.glob("*.yaml")):
                self._scenarios[path.stem] = load_scenario(path)
        for path in files:
            self._scenarios[path.stem] = load_scenario(path)

    @property
    def names(self) -> list[str]:
        return sorted(self._scenarios)

    def find(self, model: str, goal: str = "") -> Scenario | None:
        """The scenario a model's name asks for: `sim-<name>`, or `research` for any real model's name.

        `sim-by-goal`: the one that the goal's first word names, else `echo`: sub-agents have their parent's model.
        """
        if model == BY_GOAL:
            return self.find(PREFIX + next(iter(goal.split()), "")) or self._scenarios["echo"]
        if not model.startswith(PREFIX):
            return self._scenarios[DEFAULT_SCENARIO]
        name = model.removeprefix(PREFIX)
        return self._scenarios.get(name) or steps_scenario(name)


def steps_scenario(name: str) -> StepsScenario | None:
    match = _STEPS.fullmatch(name)
    if match is None:
        return None
    steps, tool, latency_ms, text_bytes, window = match.groups()
    return StepsScenario(
        name=name,
        steps=min(int(steps), MAX_STEPS),
        tool=tool or "list_files",
        latency_ms=int(latency_ms) if latency_ms else None,
        text_bytes=min(int(text_bytes or 0), MAX_STEP_TEXT_BYTES),
        window_tokens=int(window) if window else None,
    )


def model_of(path: Path) -> str:
    """The model whose answers a scenario file has. Raises ScenarioError for a file whose name cannot be a model's."""
    if not _NAME.fullmatch(path.stem):
        raise ScenarioError(
            f"{path}: the file's name names the model, sim-<name>; use 1 to 100 lowercase letters, digits, - and _"
        )
    return PREFIX + path.stem


def load_scenario(path: Path) -> WrittenScenario:
    """Read and check one file. Raises ScenarioError naming the file, the turn (from 0) and what is wrong with it."""
    model_of(path)
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    is_model = isinstance(value, dict)
    problems = (_MODEL if is_model else _TURNS).iter_errors(value)
    for problem in sorted(problems, key=lambda problem: list(problem.absolute_path)):
        raise ScenarioError(f"{path}, {_place(list(problem.absolute_path))}: {problem.message}")
    model: Mapping[str, Any] = value if is_model else {"turns": value}
    summary = _turn(model["summary"]) if "summary" in model else SUMMARY
    return WrittenScenario(path.stem, tuple(_turns(path, model["turns"])), model.get("window_tokens"), summary)


def _turns(path: Path, entries: Sequence[Mapping[str, Any]]) -> list[Turn]:
    turns: list[Turn] = []
    for index, entry in enumerate(entries):
        _check_meaning(path, index, entry)
        turns += [_turn(entry)] * entry.get("repeat", 1)
    if len(turns) > MAX_TURNS:
        raise ScenarioError(f"{path}: {len(turns)} turns, at most {MAX_TURNS}; use the model sim-steps-<N>")
    if turns[-1].calls:
        # It goes on with its last turn: that must not call tools for ever.
        raise ScenarioError(f"{path}, turn {len(entries) - 1}: the last turn must not call tools")
    return turns


def _check_meaning(path: Path, index: int, entry: Mapping[str, Any]) -> None:
    texts = [entry.get("text", ""), *(call["arguments"] for call in entry.get("calls", ()))]
    unknown = [name for text in texts for name in unknown_references(text)]
    if unknown:
        raise ScenarioError(f"{path}, turn {index}: unknown reference {{{{{unknown[0]}}}}}")
    stop_reason = entry.get("stop_reason")
    if (stop_reason == "tool_use") > ("calls" in entry):
        raise ScenarioError(f"{path}, turn {index}: stop_reason tool_use needs calls")


def _place(path: list[Any]) -> str:
    if not path:
        return "the file as a whole"
    if path[0] == "turns" and len(path) > 1:
        path = path[1:]
    if isinstance(path[0], str):
        return ".".join(str(part) for part in path)
    rest = ".".join(str(part) for part in path[1:])
    return f"turn {path[0]}" + (f", {rest}" if rest else "")


def _turn(entry: Mapping[str, Any]) -> Turn:
    usage = entry.get("usage", {})
    return Turn(
        text=entry.get("text", ""),
        calls=tuple(ToolCall(call["name"], call["arguments"]) for call in entry.get("calls", ())),
        latency_ms=entry.get("latency_ms"),
        deltas=entry.get("deltas"),
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        stop_reason=entry.get("stop_reason"),
        fault=fault_from(entry["fault"], entry["fault"].get("times")) if "fault" in entry else None,
    )


def fault_from(value: Mapping[str, Any], times: int | None) -> Fault:
    """A fault from a mapping that FAULT_SCHEMA or FAULT_REQUEST_SCHEMA has accepted."""
    kind = next(kind for kind in FaultKind if kind in value)
    return Fault(kind, value[kind], times, value.get("retry_after_seconds"), value.get("message"))
