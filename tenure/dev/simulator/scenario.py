"""What the simulator plays: turns, the tool calls and the faults in them. Values and rules only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class FaultKind(StrEnum):
    STATUS = "status"  # an error instead of an answer; value: the HTTP status
    BROKEN_STREAM = "broken_stream"  # the connection is cut; value: after so many deltas
    OVERLOADED = "overloaded"  # an `error` event in the stream; value: after so many deltas
    DRIP = "drip_ms"  # every delta comes late; value: the pause before each
    LATENCY = "latency_ms"  # the whole answer takes so long


@dataclass(frozen=True)
class Fault:
    """One way to fail. `times` None: always; else so often for one conversation, then the turn is answered."""

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
    """One answer of the model. What is None is derived: tokens from the output, stop_reason from the calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    latency_ms: int | None = None
    deltas: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    stop_reason: str | None = None
    fault: Fault | None = None


SUMMARY = Turn(text="This is what happened.")


class Scenario(Protocol):
    """Answers for the n-th turn: the one after n assistant messages, counted from 0.

    `window_tokens`: a longer prompt is refused; None: none is. `summary`: the answer to who asks for one.
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
    """The turns of a file, repeats unrolled. Past its end it goes on with its last turn."""

    name: str
    turns: tuple[Turn, ...]
    window_tokens: int | None = None
    summary: Turn = SUMMARY

    def turn(self, index: int) -> Turn:
        return self.turns[min(index, len(self.turns) - 1)]


@dataclass(frozen=True)
class StepsScenario:
    """`steps` turns that call one tool each, then a text: long conversations without a long file."""

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
    """Arguments the tool accepts, different for every step where it matters."""
    known: dict[str, dict[str, Any]] = {
        "list_files": {"path": "."},
        "read_file": {"path": "steps.txt"},
        "write_file": {"path": "steps.txt", "content": f"step {index}\n"},
        "web_search": {"query": f"step {index}", "num_results": 1},
        "execute_python": {"code": f"print({index})"},
        "append_record": {"file": "steps", "line": f"step {index}"},
        "append_record_unsafe": {"file": "steps", "line": f"step {index}"},
    }
    return known.get(tool, {"step": index})
