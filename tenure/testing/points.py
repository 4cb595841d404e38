"""The named points of a worker's loop at which a test kills, freezes or drains the worker.

A point is a failpoint of the worker, and what the task's ledger has at that moment: the worker stands still there, so
the ledger says which step it is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tenure.sdk.events import ControlStepEvent, Event, ModelAttemptEvent, ToolIntentEvent, ToolOutcomeEvent


class UnknownPoint(ValueError):  # noqa: N818  the name says what happened
    """No point of the loop has this name. The message lists the points."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a task: its entries so far, and the step that its worker reports, 0 if it reports none."""

    entries: Sequence[Event]
    step: int = 0

    @property
    def model_step(self) -> int:
        """The step of the newest model call."""
        return max((entry.step for entry in self.entries if isinstance(entry, ModelAttemptEvent)), default=0)

    @property
    def outcomes(self) -> set[str]:
        """The calls with an outcome."""
        return {entry.call_id for entry in self.entries if isinstance(entry, ToolOutcomeEvent)}

    @property
    def open_calls(self) -> set[str]:
        """All calls of the newest step with calls, if one of them has no outcome yet."""
        intents = [entry for entry in self.entries if isinstance(entry, ToolIntentEvent)]
        newest = {entry.call_id for entry in intents if entry.step == intents[-1].step}
        return newest if newest - self.outcomes else set()

    @property
    def recorded_steps(self) -> set[int]:
        """The recorded steps of a function."""
        return {entry.step for entry in self.entries if isinstance(entry, ControlStepEvent)}

    @property
    def made_step(self) -> int:
        """The step that a function has made and that is not recorded; 0: it has called tools."""
        calls = {entry.step for entry in self.entries if isinstance(entry, ToolIntentEvent)}
        return 0 if self.step in calls else self.step


@dataclass(frozen=True, slots=True)
class NamedPoint:
    """A kind of point. `number`: what its number counts; "": it has none. `failpoint` "": any, the first that fits."""

    failpoint: str
    number: str
    says: str
    is_at: Callable[[Position, str], bool]


def _is_any(_position: Position, _number: str) -> bool:
    return True


def _is_model_call(position: Position, number: str) -> bool:
    return number in {"", str(position.model_step)}


def _has_call(calls: set[str], number: str) -> bool:
    return any(number in {"", call_id, call_id.partition(".")[0]} for call_id in calls)


def _is_open_call(position: Position, number: str) -> bool:
    return _has_call(position.open_calls, number)


def _has_outcome(position: Position, number: str) -> bool:
    return _has_call(position.outcomes, number)


def _is_step(position: Position, number: str) -> bool:
    return position.made_step > 0 and number in {"", str(position.made_step)}


def _is_recorded(position: Position, number: str) -> bool:
    return any(number in {"", str(step)} for step in position.recorded_steps)


_MODEL_CALL: Final = "the step of a model call"
_TOOL_CALL: Final = "a tool call, such as 1.0: step 1, call 0"
_FUNCTION_STEP: Final = "the step of a function"
_EXECUTED: Final = "only the worker has the outcome of the call"
_STEPPED: Final = "the function's step ran, and only the worker has its result"

POINTS: Final[dict[str, NamedPoint]] = {
    "after grant": NamedPoint("worker.after_grant", "", "the worker has the claim and has read nothing", _is_any),
    "after open": NamedPoint("worker.after_open", "", "the worker has read the ledger and done nothing", _is_any),
    "before model": NamedPoint("worker.before_model", _MODEL_CALL, "the request is not sent", _is_model_call),
    "after model": NamedPoint(
        "worker.after_model", _MODEL_CALL, "the provider billed the answer, the ledger does not have it", _is_model_call
    ),
    "before failure": NamedPoint(
        "worker.before_failure", _MODEL_CALL, "the call failed, the ledger does not know", _is_model_call
    ),
    "after failure": NamedPoint(
        "worker.after_failure", _MODEL_CALL, "the failure is recorded, the retry not begun", _is_model_call
    ),
    "after intent": NamedPoint(
        "worker.after_intent", _TOOL_CALL, "the intent is recorded, the call not made", _is_open_call
    ),
    "after execute": NamedPoint("worker.after_execute", _TOOL_CALL, _EXECUTED, _is_open_call),
    "before outcome": NamedPoint("worker.after_execute", _TOOL_CALL, _EXECUTED, _is_open_call),
    "before own-tool": NamedPoint(
        "worker.before_own_tool", _TOOL_CALL, "the worker's own tool is about to run", _is_open_call
    ),
    "after own-tool": NamedPoint(
        "worker.after_own_tool", _TOOL_CALL, "the worker's own tool has ended, and only the worker knows", _is_open_call
    ),
    "after keep": NamedPoint(
        "worker.after_keep", "", "a large result is in the workspace, the ledger does not refer to it", _is_any
    ),
    "after outcome": NamedPoint("", _TOOL_CALL, "the outcome is recorded", _has_outcome),
    "after step": NamedPoint("worker.after_execute", _FUNCTION_STEP, _STEPPED, _is_step),
    "before record": NamedPoint("worker.after_execute", _FUNCTION_STEP, _STEPPED, _is_step),
    "after record": NamedPoint("", _FUNCTION_STEP, "the function's step is recorded", _is_recorded),
    "before close-out": NamedPoint("worker.before_close_out", "", "the work is done, the task not ended", _is_any),
    "after close-out": NamedPoint("worker.after_close_out", "", "the task has ended, the claim is held", _is_any),
}

WATCHED_FAILPOINTS: Final = (
    *dict.fromkeys(point.failpoint for point in POINTS.values() if point.failpoint),
    "worker.after_reserve",
    "worker.after_outcome",
)
"""The failpoints at which a worker of a test asks whether it may continue."""

_NAME: Final = re.compile(r"((?:before|after) [a-z-]+)(?: (\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class StopPoint:
    """A point that a test named, such as `after intent 1.0`. An absent number is that of the first one reached."""

    text: str
    point: NamedPoint
    number: str

    def is_at(self, failpoint: str, position: Position) -> bool:
        """Whether a task that has reached this failpoint is at the point."""
        return self.may_be_at(failpoint) and self.point.is_at(position, self.number)

    def may_be_at(self, failpoint: str) -> bool:
        """Whether the point can be at this failpoint."""
        return self.point.failpoint in {"", failpoint}


def stop_point(text: str) -> StopPoint:
    """Returns the point with this name. Raises UnknownPoint."""
    match = _NAME.fullmatch(text.strip())
    point = POINTS.get(match[1]) if match else None
    if match is None or point is None:
        known = "\n".join(f"  {_example(name, each)}: {each.says}" for name, each in POINTS.items())
        raise UnknownPoint(f"{text!r} is not a point of a worker's loop. The points are:\n{known}")
    number = match[2] or ""
    if number and not point.number:
        raise UnknownPoint(f"{text!r}: {match[1]!r} has no number")
    if "." in number and point.number != _TOOL_CALL:
        raise UnknownPoint(f"{text!r}: the number is {point.number}")
    return StopPoint(text, point, number)


def _example(name: str, point: NamedPoint) -> str:
    return f"{name} 1.0" if point.number == _TOOL_CALL else f"{name} 1" if point.number else name
