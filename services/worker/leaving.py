"""How a task is left before its last answer: interrupted, with a call in doubt, or as a phase took too long."""

from __future__ import annotations

import random
from collections.abc import Sequence

from services.worker.after_failure import is_late
from services.worker.interrupts import Interrupted, Interruption
from services.worker.tool_step import Unusual
from tenure.domain.entries import ModelFailure, ToolIntent, Transition
from tenure.domain.fold import ResumePoint
from tenure.domain.in_doubt import RUNNER_NOT_GONE, CallInDoubt
from tenure.domain.states import Reason, TaskState, is_terminal
from tenure.domain.task import TaskPolicy
from tenure.domain.timeouts import Phase, after_timeout
from tenure.domain.tools import Outcome


def late_transition(
    point: ResumePoint, policy: TaskPolicy, phase: Phase, told: str, error_class: str = ""
) -> Transition | None:
    """How the task is left because a phase took too long; None: it goes on."""
    action = policy.timeouts.action(phase)
    move = after_timeout(phase, action, policy.retry, point.timeout_retries, told=told, luck=random.random())
    if move is None:
        return None
    result = point.last_text if is_terminal(move.to_state) else ""
    return Transition(
        move.to_state,
        move.reason,
        move.message,
        result,
        retry_delay_seconds=move.retry_delay_seconds,
        error_class=error_class,
    )


def late_call(point: ResumePoint, policy: TaskPolicy, failure: ModelFailure) -> Transition | None:
    """The same for a model call, if that is what it failed of."""
    if not is_late(failure):
        return None
    told = f"{failure.error_class}: {failure.message}"
    return late_transition(point, policy, Phase.MODEL_CALL, told, failure.error_class)


def after_calls(point: ResumePoint, policy: TaskPolicy, unusual: Unusual) -> Transition | None:
    """How the task is left after the calls of a step; None: the model reads what they came to."""
    if unusual.in_doubt:
        return _wait_for_word(unusual.in_doubt)
    if unusual.late:
        told = f"these calls took too long and were stopped: {_names(unusual.late)}"
        return late_transition(point, policy, Phase.TOOL_CALL, told)
    return None


def after_interruption(point: ResumePoint, policy: TaskPolicy, interrupted: Interrupted) -> Transition:
    """Given back, left by its policy for steps, or ended: the ledger knows best as what, and writes that."""
    match interrupted.kind:
        case Interruption.DRAIN:
            told = interrupted.message or "its worker shuts down"
            return Transition(TaskState.QUEUED, Reason.WORKER_DRAINED, told)
        case Interruption.LATE:
            late = late_transition(point, policy, Phase.STEP, interrupted.message)
            assert late is not None, "a step that is timed does not just go on"
            return late
        case Interruption.END:
            told = point.cancel_reason or "its end was asked for"
            return Transition(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, told, point.last_text)


def _wait_for_word(in_doubt: Sequence[tuple[ToolIntent, Outcome]]) -> Transition:
    """A person is to say what became of them; the wait names each with its attempt."""
    told = f"it is not known whether these calls happened: {_names([intent for intent, _ in in_doubt])}"
    running = [intent for intent, outcome in in_doubt if outcome.detail == RUNNER_NOT_GONE]
    if running:
        told += f"; to be run again, the runner of these must be gone: {_names(running)}"
    calls = tuple(CallInDoubt(intent.call_id, outcome.call_attempt) for intent, outcome in in_doubt)
    return Transition(TaskState.WAITING_USER, Reason.TOOL_IN_DOUBT, told, calls_in_doubt=calls)


def _names(intents: Sequence[ToolIntent]) -> str:
    return ", ".join(f"{intent.call_id} ({intent.tool})" for intent in intents)
