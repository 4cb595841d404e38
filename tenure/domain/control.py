"""Decides how a control function continues from its recorded steps, and what follows when the function fails.

Every owner runs the function from its beginning. The function's steps and tool calls are numbered, and the ledger has
the recorded result under the same number. A function that asks for something else than the ledger has under a number
has diverged: it is no longer the function that began the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tenure.domain.entries import ControlFailure, ControlStep, ToolIntent, Transition, UserMessage
from tenure.domain.fold import ResumePoint
from tenure.domain.retry import (
    ACCOUNT_FAULTS,
    MAX_UNUSABLE_ANSWERS,
    PROVIDER_AWAY,
    UNUSABLE,
    RetryPolicy,
    reason_of_retry,
    unusable_text,
    wait_for_provider,
)
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import call_id

MAX_RETRY_SECONDS: Final = 24 * 3600.0
MESSAGES: Final = "messages of users"
"""The name of the step that reads messages. Its result is the number of messages that are read then, from the first."""
INTERRUPTED: Final = ControlFailure("InterruptedByMessage", "a message interrupted the model call", retryable=True)
"""The failure of the step of a model call that a message interrupted."""


class Diverged(Exception):  # noqa: N818  a finding; `divergence` returns the transition
    """The function asks for something else than the ledger has under the same number."""


@dataclass(frozen=True, slots=True)
class FunctionToolCall:
    """A tool call that a control function asks for."""

    tool: str
    arguments_json: str


def recorded_step(point: ResumePoint, step: int, name: str, *, is_model_call: bool = False) -> ControlStep | None:
    """Returns the recorded step, or None if the function must run the step now. Raises Diverged.

    `is_model_call`: the step is a model call. Its attempts may be in the ledger before its result.
    """
    recorded = point.control_steps.get(step)
    if recorded is not None and recorded.name == name:
        return recorded
    if step <= point.step and not (is_model_call and _is_unanswered_call(point, step)):
        raise Diverged(f"the ledger has {_describe_step(point, step)} as step {step}, but the function asks for {name}")
    return None


def messages_at(point: ResumePoint, step: int) -> list[UserMessage]:
    """Returns the messages of users that the function reads as this step. If there are none, the step does not exist.

    A look after the newest step reads all messages that came since the last one. Each later execution reads the same.
    """
    recorded = point.control_steps.get(step)
    if recorded is not None and recorded.name == MESSAGES:
        return point.said[_read_before(point, step) : int(recorded.result_json)]
    return [] if step <= point.step else point.said[_read_before(point, step) :]


def has_interruption(point: ResumePoint) -> bool:
    """Whether there is an interrupting message that an agent in Python has not read.

    It stops the model call that runs, whose step fails; the agent reads the message as the next step, and makes the
    call again as the step after that. So each later execution takes the same steps.
    """
    return any(message.interrupt for message in point.said[_read_before(point, point.step + 1) :])


def _read_before(point: ResumePoint, step: int) -> int:
    read = (
        int(each.result_json) for number, each in point.control_steps.items() if number < step and each.name == MESSAGES
    )
    return max(read, default=0)


def next_attempt(point: ResumePoint, step: int) -> int:
    """Returns the number of the next attempt of a model call, 1 or more."""
    return point.attempts_in_step + 1 if step == point.step else 1


def _is_unanswered_call(point: ResumePoint, step: int) -> bool:
    """Whether the ledger has only failed and lost attempts of a model call as this step."""
    return step == point.step and step not in point.control_steps and point.attempts_in_step > 0


def missing_calls(point: ResumePoint, step: int, calls: Sequence[FunctionToolCall]) -> list[ToolIntent]:
    """Returns the intents that are not in the ledger yet. Raises Diverged.

    These are all intents, none, or the remaining ones if the step's intents were split over two commits and only the
    first commit was made.
    """
    requested = [
        ToolIntent(call_id(step, index), "", call.tool, call.arguments_json) for index, call in enumerate(calls)
    ]
    recorded = list(recorded_intents(point, step))
    is_same = all(_is_same(point, *intents) for intents in zip(recorded, requested, strict=False))
    may_add = step > point.step or (step == point.step and bool(recorded))
    if not is_same or len(recorded) > len(requested) or (len(recorded) < len(requested) and not may_add):
        tools = ", ".join(call.tool for call in calls)
        raise Diverged(f"the ledger has {_describe_step(point, step)} as step {step}, but the function calls {tools}")
    return requested[len(recorded) :]


def _is_same(point: ResumePoint, recorded: ToolIntent, requested: ToolIntent) -> bool:
    """Whether the function asks for the recorded call. A person may have edited the arguments at the approval."""
    return recorded.tool == requested.tool and (
        recorded.arguments_json == requested.arguments_json or recorded.call_id in point.edited_calls
    )


def recorded_intents(point: ResumePoint, step: int) -> Iterator[ToolIntent]:
    """Yields the intents of a step, in order."""
    for index in count():
        intent = point.intents.get(call_id(step, index))
        if intent is None:
            return
        yield intent


def check_end(point: ResumePoint, step: int) -> None:
    """Raises Diverged when the function returned after `step` steps, but the ledger has more steps."""
    if step < point.step:
        raise Diverged(f"the ledger has {point.step} steps, but the function returned after step {step}")


def steps_allowed(point: ResumePoint) -> int:
    """Returns the task's step limit, including the steps that a fork copied and the steps that operators added."""
    assert point.spec is not None, "the first entry of every ledger is the spec"
    return point.spec.limits.max_steps + point.extra_steps


def step_limit(point: ResumePoint, step: int) -> Transition | None:
    """Returns the transition that ends the task if `step` exceeds the task's step limit, or None."""
    limit = steps_allowed(point)
    if step <= limit:
        return None
    message = f"the limit of {limit} steps is reached"
    return Transition(TaskState.COST_EXCEEDED, Reason.STEP_LIMIT, message, point.last_text)


def divergence(error: Diverged) -> Transition:
    """Returns the transition to FAILED.

    No retry can help: only a worker with the former function, or a fork, can continue the work.
    """
    return Transition(
        TaskState.FAILED,
        Reason.FUNCTION_DIVERGED,
        f"{error}: its code has changed, or is not deterministic; requeue the task for a worker with the former code, "
        "or fork the task",
    )


def after_function_failure(
    failure: ControlFailure, retries: int, policy: RetryPolicy, *, random_fraction: float, unusable: int = 0
) -> Transition:
    """Returns the transition after a failure of the function.

    `retries`: how often the task was retried since its newest step. `random_fraction`: in [0, 1), for the jitter.
    `unusable`: the newest answers of the model in a row that could not be used.
    """
    message, error_class = f"{failure.error_class}: {failure.message}", failure.error_class
    if error_class in UNUSABLE and unusable >= MAX_UNUSABLE_ANSWERS:
        text = unusable_text(unusable, message)
        return Transition(TaskState.FAILED, Reason.MODEL_ANSWER_UNUSABLE, text, error_class=error_class)
    # of a model call that it did not handle: no fault of the task
    if error_class in ACCOUNT_FAULTS or (error_class in PROVIDER_AWAY and failure.retryable):
        delay_seconds = wait_for_provider(policy, retries + 1, random_fraction, failure.retry_after_seconds)
        return Transition(
            TaskState.RETRY_SCHEDULED,
            reason_of_retry(error_class),
            message,
            retry_delay_seconds=min(delay_seconds, MAX_RETRY_SECONDS),
            error_class=error_class,
        )
    if not failure.retryable:
        return Transition(TaskState.FAILED, Reason.FUNCTION_FAILED, message)
    if policy.exhausted(retries + 1):
        return Transition(TaskState.FAILED, Reason.FUNCTION_FAILED, f"{message} (after {retries} retries of the task)")
    delay_seconds = policy.wait_seconds(retries + 1, random_fraction, failure.retry_after_seconds)
    delay_seconds = min(delay_seconds, MAX_RETRY_SECONDS)
    return Transition(TaskState.RETRY_SCHEDULED, Reason.FUNCTION_FAILED, message, retry_delay_seconds=delay_seconds)


def _describe_step(point: ResumePoint, step: int) -> str:
    """Returns the recorded step as text for an error message."""
    recorded = point.control_steps.get(step)
    if recorded is not None:
        return recorded.name
    if _is_unanswered_call(point, step):
        return "a model call"
    tools = [intent.tool for intent in recorded_intents(point, step)]
    return f"a call of {', '.join(tools)}" if tools else "nothing"
