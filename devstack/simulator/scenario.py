"""Scenarios: their turns, tool calls and faults, their files, and the model names that select them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import yaml

from devstack.simulator.templates import unknown_references
from tenure.domain.budget import SIMULATED_MODEL_PREFIX


class FaultKind(StrEnum):
    STATUS = "status"  # an error instead of an answer; value: the HTTP status
    BROKEN_STREAM = "broken_stream"  # the connection is cut; value: the number of deltas before
    OVERLOADED = "overloaded"  # an `error` event in the stream; value: the number of deltas before
    DRIP = "drip_ms"  # every delta is delayed; value: the pause before each
    LATENCY = "latency_ms"  # the answer is slow; value: its duration


@dataclass(frozen=True)
class Fault:
    """A fault. `times`: how often the same request meets it before it is answered; None: always."""

    kind: FaultKind
    value: int
    times: int | None = None
    retry_after_seconds: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One answer of the model. None is derived: the tokens from the texts, `stop_reason` from the calls.

    `first_token_ms`: the part of `latency_ms` before the first delta of a stream; None: the pause between two deltas.
    `is_literal`: the texts have no references.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    latency_ms: int | None = None
    first_token_ms: int | None = None
    deltas: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    stop_reason: str | None = None
    is_literal: bool = False
    fault: Fault | None = None


SUMMARY = Turn(text="This is what happened.")


class Scenario(Protocol):
    """The answers of a simulated model. `turn(n)`: the answer after n assistant messages.

    `window_tokens`: the context window, beyond which a prompt is refused; None: no limit. `summary`: the answer to a
    request for a summary.
    """

    @property
    def name(self) -> str: ...

    @property
    def window_tokens(self) -> int | None: ...

    @property
    def summary(self) -> Turn: ...

    def turn(self, index: int) -> Turn: ...


@dataclass(frozen=True)
class WrittenScenario:
    """The scenario of a file, with repeats unrolled. The last turn answers all further requests."""

    name: str
    turns: tuple[Turn, ...]
    window_tokens: int | None = None
    summary: Turn = SUMMARY

    def turn(self, index: int) -> Turn:
        return self.turns[min(index, len(self.turns) - 1)]

    @property
    def tools(self) -> frozenset[str]:
        """The names of the tools that it calls."""
        return frozenset(call.name for turn in self.turns for call in turn.calls)


@dataclass(frozen=True)
class StepsScenario:
    """A scenario of `steps` turns with one tool call each, then a text: a long conversation without a long file."""

    name: str
    steps: int
    tool: str = "list_files"
    latency_ms: int | None = None
    text_bytes: int = 0
    window_tokens: int | None = None
    summary: Turn = SUMMARY
    final: Turn = field(default_factory=lambda: Turn(text="All steps are done."))

    def turn(self, index: int) -> Turn:
        if index >= self.steps:
            return Turn(text=self.final.text, latency_ms=self.latency_ms)
        text = f"Step {index + 1} of {self.steps}. [turn {index}]".ljust(self.text_bytes, ".")
        return Turn(
            text=text, calls=(ToolCall(self.tool, step_arguments(self.tool, index)),), latency_ms=self.latency_ms
        )


def step_arguments(tool: str, index: int) -> dict[str, Any]:
    """Returns valid arguments of the tool: no two near steps make an equal call, which Tenure would end."""
    here = "/".join(["."] * (index % 5 + 1))
    known: dict[str, dict[str, Any]] = {
        "list_files": {"path": here},
        "read_file": {"path": f"{here}/steps.txt"},
        "write_file": {"path": "steps.txt", "content": f"step {index}\n"},
        "web_search": {"query": f"step {index}", "num_results": 1},
        "execute_python": {"code": f"print({index})"},
        "append_record": {"file": "steps", "line": f"step {index}"},
        "append_record_unsafe": {"file": "steps", "line": f"step {index}"},
    }
    return known.get(tool, {"step": index})


# JSON Schemas of a scenario file and of a fault.

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

# A fault has exactly one of the first five, which is its kind.
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

# The body of POST /_sim/faults: a fault for the next `count` requests that match.
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
        "first_token_ms": _COUNT,
        "deltas": _POSITIVE,
        "usage": {
            "type": "object",
            "properties": {"input_tokens": _COUNT, "output_tokens": _POSITIVE},
            "additionalProperties": False,
        },
        "stop_reason": {"enum": STOP_REASONS},
        "literal": {"type": "boolean"},
        "fault": FAULT_SCHEMA,
        "repeat": {"type": "integer", "minimum": 1, "maximum": MAX_TURNS},
    },
    "additionalProperties": False,
    "minProperties": 1,
}

TURNS_SCHEMA: dict[str, Any] = {"type": "array", "items": _TURN_SCHEMA, "minItems": 1, "maxItems": MAX_TURNS}

# The other form of a scenario file: turns, with a context window and the answer to a request for a summary.
MODEL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"window_tokens": _POSITIVE, "summary": _TURN_SCHEMA, "turns": TURNS_SCHEMA},
    "required": ["turns"],
    "additionalProperties": False,
}


# The library: files that are checked at the start, and scenarios that a model name describes (sim-steps-…).

SHIPPED = Path(__file__).parent / "scenarios"
DEFAULT_SCENARIO = "research"
PREFIX = SIMULATED_MODEL_PREFIX
BY_GOAL = "sim-by-goal"
MAX_STEPS = 1_000_000
MAX_SCENARIOS = 1000
MAX_STEP_TEXT_BYTES = 1_000_000
# steps-<N>, then optionally a tool, a latency, the size of the texts, a window: steps-1000-write_file-50ms-2400b-8000w
_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only PyYAML of a wheel has it
_STEPS = re.compile(r"steps-(\d{1,7})(?:-([a-z][a-z0-9_]*))?(?:-(\d{1,6})ms)?(?:-(\d{1,7})b)?(?:-(\d{1,8})w)?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_TURNS = jsonschema.Draft202012Validator(TURNS_SCHEMA)
_MODEL = jsonschema.Draft202012Validator(MODEL_SCHEMA)


class ScenarioError(Exception):
    """A scenario file is invalid. The message names the file and the turn."""


class TooManyScenarios(Exception):  # noqa: N818  the name says what happened
    """More scenarios were added than the simulator stores."""


class ScenarioLibrary:
    """All scenarios by name. A file replaces an earlier file with the same name."""

    def __init__(self, directories: Sequence[Path] = (), files: Sequence[Path] = ()) -> None:
        """Reads all `*.yaml` of the shipped scenarios and of `directories`, then `files`. Raises ScenarioError."""
        self._scenarios: dict[str, Scenario] = {**shipped_scenarios()}
        self._added: dict[str, Scenario] = {}
        self._by_instructions: dict[str, Scenario] = {}
        for directory in directories:
            if not directory.is_dir():
                raise ScenarioError(f"{directory} is not a directory")
            self._scenarios.update(_scenarios_in(directory))
        for path in files:
            self._scenarios[path.stem] = load_scenario(path)

    @property
    def names(self) -> list[str]:
        return sorted({*self._scenarios, *self._added})

    def put(self, scenario: WrittenScenario) -> None:
        """Adds a scenario, before one with the same name in a file, until `forget_added`. Raises TooManyScenarios."""
        if scenario.name not in self.names and len(self.names) >= MAX_SCENARIOS:
            raise TooManyScenarios(f"the simulator has {MAX_SCENARIOS} scenarios: replace one of them")
        self._added[scenario.name] = scenario

    def put_for_instructions(self, text: str, scenario: WrittenScenario) -> None:
        """Adds the scenario of the agents whose instructions contain a text, whatever their model; or replaces it.

        Raises TooManyScenarios.
        """
        if text not in self._by_instructions and len(self._by_instructions) >= MAX_SCENARIOS:
            raise TooManyScenarios(f"the simulator has {MAX_SCENARIOS} scenarios for instructions: reset it")
        self._by_instructions[text] = scenario

    def forget_added(self) -> None:
        """Deletes the scenarios that were added after the start: those of the files are there again."""
        self._added.clear()
        self._by_instructions.clear()

    def find(self, model: str, goal: str = "", instructions: str = "", tools: Sequence[str] = ()) -> Scenario | None:
        """Returns the scenario of a model, or None.

        That is `<name>` for `sim-<name>`. A real model's name plays `research`, and has no scenario if the request
        offers other `tools` than the one of the file calls: a test that adds its own names the tools that it wants.

        A scenario for the instructions comes before that of the model. `sim-by-goal` plays the scenario that the first
        word of the goal names, or else `echo`. It exists because sub-agents have the model of their parent.
        """
        for text, scenario in self._by_instructions.items():
            if text in instructions:
                return scenario
        if model == BY_GOAL:
            return self.find(PREFIX + next(iter(goal.split()), "")) or self._named("echo")
        if model.startswith(PREFIX):
            name = model.removeprefix(PREFIX)
            return self._named(name) or steps_scenario(name)
        if added := self._added.get(DEFAULT_SCENARIO):
            return added
        usual = self._scenarios.get(DEFAULT_SCENARIO)
        return usual if isinstance(usual, WrittenScenario) and usual.tools <= set(tools) else None

    def _named(self, name: str) -> Scenario | None:
        return self._added.get(name) or self._scenarios.get(name)


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
    """Returns the model name of a scenario file. Raises ScenarioError if the file's name cannot be part of one."""
    if not _NAME.fullmatch(path.stem):
        raise ScenarioError(
            f"{path}: its name becomes the model name sim-<name>; use 1 to 100 lowercase letters, digits, - and _"
        )
    return PREFIX + path.stem


@cache
def shipped_scenarios() -> Mapping[str, WrittenScenario]:
    """Returns the scenarios of the package by name, which a process reads once. Raises ScenarioError."""
    return _scenarios_in(SHIPPED)


def _scenarios_in(directory: Path) -> dict[str, WrittenScenario]:
    return {path.stem: load_scenario(path) for path in sorted(directory.glob("*.yaml"))}


def load_scenario(path: Path) -> WrittenScenario:
    """Reads and checks one file. Raises ScenarioError that names the file, the turn (from 0) and the problem."""
    model_of(path)
    try:
        value = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    return scenario_of(path, value)


def _parse(text: str) -> Any:
    """Parses YAML in C, a tenth of the time. Raises YAMLError of the parser in Python, which shows the line."""
    try:
        return yaml.load(text, _FAST_LOADER)  # noqa: S506  a safe loader
    except yaml.YAMLError:
        return yaml.safe_load(text)


def scenario_of(path: Path, value: Any) -> WrittenScenario:
    """Checks the content of a file, or of a request that names one. Raises ScenarioError as `load_scenario`."""
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
        # The last turn answers all further requests, so it must not call tools, or the conversation would never end.
        raise ScenarioError(f"{path}, turn {len(entries) - 1}: the last turn must not call tools")
    return turns


def _check_meaning(path: Path, index: int, entry: Mapping[str, Any]) -> None:
    texts = [entry.get("text", ""), *(call["arguments"] for call in entry.get("calls", ()))]
    unknown = [] if entry.get("literal") else [name for text in texts for name in unknown_references(text)]
    if unknown:
        raise ScenarioError(f"{path}, turn {index}: unknown reference {{{{{unknown[0]}}}}}")
    first_token_ms = entry.get("first_token_ms", 0)
    if first_token_ms and first_token_ms > entry.get("latency_ms", 0):
        raise ScenarioError(
            f"{path}, turn {index}: first_token_ms {first_token_ms} is part of latency_ms, so it needs "
            "a latency_ms that is at least as long"
        )
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
        first_token_ms=entry.get("first_token_ms"),
        deltas=entry.get("deltas"),
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        stop_reason=entry.get("stop_reason"),
        is_literal=entry.get("literal", False),
        fault=fault_from(entry["fault"], entry["fault"].get("times")) if "fault" in entry else None,
    )


def fault_from(value: Mapping[str, Any], times: int | None) -> Fault:
    """Returns the fault of a mapping that is valid by FAULT_SCHEMA or FAULT_REQUEST_SCHEMA."""
    kind = next(kind for kind in FaultKind if kind in value)
    return Fault(kind, value[kind], times, value.get("retry_after_seconds"), value.get("message"))


# The fault of the next request: first the faults ordered at run time, then the scenario's own.

MAX_ORDERED = 1000
MAX_CONVERSATIONS = 10_000


class TooManyFaults(Exception):  # noqa: N818  the name says what happened
    """More faults were ordered than the simulator stores."""


@dataclass
class _Ordered:
    fault: Fault
    endpoint: str
    model: str | None
    left: int


class Faults:
    """Ordered faults are used in their order, each `count` times. A scenario's fault is counted per request body."""

    def __init__(self) -> None:
        self._ordered: list[_Ordered] = []
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def clear(self) -> None:
        self._ordered.clear()
        self._seen.clear()

    def order(self, fault: Fault, *, endpoint: str = "messages", model: str | None = None, count: int = 1) -> None:
        """Orders a fault. Raises TooManyFaults beyond 1,000 unused orders."""
        if len(self._ordered) >= MAX_ORDERED:
            raise TooManyFaults(f"{MAX_ORDERED} ordered faults are unused; reset the simulator first")
        self._ordered.append(_Ordered(fault, endpoint, model, count))

    def next_ordered(self, endpoint: str, model: str) -> Fault | None:
        for order in self._ordered:
            if order.endpoint == endpoint and order.model in {None, model}:
                order.left -= 1
                if order.left == 0:
                    self._ordered.remove(order)
                return order.fault
        return None

    def next_written(self, fault: Fault | None, body: Mapping[str, Any]) -> Fault | None:
        """Returns the scenario's fault, or None if the same request (model, messages, user) met it `times` times."""
        if fault is None or fault.times is None:
            return fault
        identity = json.dumps([body["model"], body["messages"], body.get("metadata")]).encode()
        key = hashlib.blake2b(identity, digest_size=16).digest()
        met = self._seen.get(key, 0)
        if met >= fault.times:
            return None
        self._seen[key] = met + 1
        while len(self._seen) > MAX_CONVERSATIONS:
            self._seen.popitem(last=False)
        return fault
