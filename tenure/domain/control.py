"""Control work: what the record answers to a function that goes through its steps again, and what follows its failure.

A function is run from its beginning by every owner. Its steps and calls are counted; under the same number the record
has what came of them. A function that asks for something else there than is recorded is another function by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tenure.domain.entries import ControlFailure, ControlStep, ToolIntent, Transition
from tenure.domain.fold import ResumePoint
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import call_id

MOST_RETRY_SECONDS: Final = 24 * 3600.0


class Diverged(Exception):  # noqa: N818  what was found out; `divergence` says what follows
    """The function does not do what the record says it did."""


@dataclass(frozen=True, slots=True)
class FunctionToolCall:
    """A call of a tool that a function asks for."""

    tool: str
    arguments_json: str


def recorded_step(point: ResumePoint, step: int, name: str) -> ControlStep | None:
    """What the step came to; None: it is to be made now. Diverged."""
    recorded = point.control_steps.get(step)
    if recorded is not None and recorded.name == name:
        return recorded
    if step <= point.step:
        raise Diverged(f"step {step} is {_recorded(point, step)} by the record, the function asks for {name}")
    return None


def missing_calls(point: ResumePoint, step: int, calls: Sequence[FunctionToolCall]) -> list[ToolIntent]:
    """The intents that are still to be written: all, none, or the rest where a commit was cut in between. Diverged."""
    wanted = [ToolIntent(call_id(step, index), "", call.tool, call.arguments_json) for index, call in enumerate(calls)]
    known = list(_recorded_calls(point, step))
    same = all(_is_same(point, had, requested) for had, requested in zip(known, wanted, strict=False))
    may_add = step > point.step or (step == point.step and bool(known))
    if not same or len(known) > len(wanted) or (len(known) < len(wanted) and not may_add):
        requested = ", ".join(call.tool for call in calls)
        raise Diverged(f"step {step} is {_recorded(point, step)} by the record, the function calls {requested}")
    return wanted[len(known) :]


def _is_same(point: ResumePoint, had: ToolIntent, wanted_intent: ToolIntent) -> bool:
    """A person may have changed the arguments of a call that needed leave."""
    return had.tool == wanted_intent.tool and (
        had.arguments_json == wanted_intent.arguments_json or had.call_id in point.edited_calls
    )


def _recorded_calls(point: ResumePoint, step: int) -> Iterator[ToolIntent]:
    for index in count():
        intent = point.intents.get(call_id(step, index))
        if intent is None:
            return
        yield intent


def check_end(point: ResumePoint, step: int) -> None:
    """After `step` steps the function returned. Diverged: the record has more of them."""
    if step < point.step:
        raise Diverged(f"the function returned after step {step}, the record has {point.step}")


def steps_allowed(point: ResumePoint) -> int:
    """How many steps the task may have made, those copied from another task and given by operators included."""
    assert point.spec is not None, "the first entry of every ledger is the spec"
    return point.spec.limits.max_steps + point.extra_steps


def step_limit(point: ResumePoint, step: int) -> Transition | None:
    """The end of a task that may make no further step."""
    most = steps_allowed(point)
    if step <= most:
        return None
    return Transition(TaskState.COST_EXCEEDED, Reason.STEP_LIMIT, f"the limit of {most} steps is reached")


def divergence(why: Diverged) -> Transition:
    """No attempt can mend it; a worker with the former function, or a fork, goes on."""
    return Transition(
        TaskState.FAILED, Reason.FUNCTION_DIVERGED, f"{why}: its code has changed, or is not deterministic"
    )


def after_function_failure(failure: ControlFailure, retries: int, policy: RetryPolicy, *, luck: float) -> Transition:
    """`retries`: how often the task was scheduled again since its last new step; `luck` in [0, 1)."""
    message = f"{failure.error_class}: {failure.message}"
    if not failure.retryable:
        return Transition(TaskState.FAILED, Reason.FUNCTION_FAILED, message)
    if policy.exhausted(retries):
        return Transition(TaskState.FAILED, Reason.FUNCTION_FAILED, f"{message} (after {retries} retries of the task)")
    delay = policy.wait_seconds(retries + 1, luck, failure.retry_after_seconds)
    delay = min(delay, MOST_RETRY_SECONDS)
    return Transition(TaskState.RETRY_SCHEDULED, Reason.FUNCTION_FAILED, message, retry_delay_seconds=delay)


def _recorded(point: ResumePoint, step: int) -> str:
    """What the record has under this number."""
    made = point.control_steps.get(step)
    if made is not None:
        return made.name
    called = [intent.tool for intent in _recorded_calls(point, step)]
    return f"a call of {', '.join(called)}" if called else "nothing"
