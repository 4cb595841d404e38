"""Decides how a task leaves this worker before its last answer, and writes the close-out.

Causes: an interruption, a failed model call, a call in doubt, a phase timeout.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.worker.claim_ledger import TRIES, ClaimLedger, CommitRefused, StepEntry
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.interrupts import Interrupted, Interruption
from services.worker.tool_step import ToolStepProblems
from tenure.domain import entries
from tenure.domain.close_out import outcomes_after_refusal, outcomes_of_ended_calls, resolved_calls
from tenure.domain.entries import ModelFailure, ToolIntent, Transition
from tenure.domain.errors import TryLater
from tenure.domain.fold import ResumePoint
from tenure.domain.in_doubt import RUNNER_NOT_GONE, CallInDoubt
from tenure.domain.outputs import MAX_OUTPUTS, TaskOutput, check_outputs, output_of
from tenure.domain.retry import (
    ACCOUNT_FAULTS,
    MAX_UNUSABLE_ANSWERS,
    MODEL_CALL_RETRY,
    UNUSABLE,
    FailureClass,
    RetryPolicy,
    reason_of_retry,
    unusable_text,
    wait_for_provider,
)
from tenure.domain.states import Reason, TaskState, is_terminal
from tenure.domain.stops import RETRY_SECONDS
from tenure.domain.task import TaskPolicy
from tenure.domain.timeouts import Phase, after_timeout
from tenure.domain.tools import Outcome
from tenure.runtime.failpoints import failpoint
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed

# The decision after a failed model call: a pure rule.

LONGEST_WAIT_SECONDS: Final = 60.0
"""A longer wait asked for by the provider is granted, but no worker holds the task meanwhile."""


@dataclass(frozen=True, slots=True)
class RetryModelCall:
    """Another model attempt of the same step, after a wait."""

    wait_seconds: float


def wait_before_attempt(point: ResumePoint, newest: ModelFailure, random_fraction: float) -> float | None:
    """Returns the seconds until the next attempt after a failed one, the newest of its step.

    None: no worker should hold the task for it, or the step has bought enough answers that cannot be used. After
    an interruption the next attempt comes at once: the provider has not failed.
    """
    failures = [*point.failures, newest]
    is_interrupted = newest.error_class == FailureClass.INTERRUPTED
    count = 0 if is_interrupted else sum(1 for each in failures if each.error_class != FailureClass.INTERRUPTED)
    wait = MODEL_CALL_RETRY.wait_seconds(count, random_fraction, newest.retry_after_seconds) if count else 0.0
    may_repeat = newest.retryable and not has_enough_unusable(point, newest)
    has_attempt = may_repeat and not MODEL_CALL_RETRY.exhausted(count) and wait <= LONGEST_WAIT_SECONDS
    return wait if has_attempt else None


def has_enough_unusable(point: ResumePoint, newest: ModelFailure) -> bool:
    """Whether a failure is the last answer that cannot be used: the same prompt buys the same answer."""
    return newest.error_class in UNUSABLE and point.progress.unusable + 1 >= MAX_UNUSABLE_ANSWERS


def after_failure(
    point: ResumePoint, newest: ModelFailure, policy: RetryPolicy, random_fraction: float
) -> RetryModelCall | Transition:
    """Decides after a failed attempt, the newest: retry the call, retry the task later, or fail the task.

    A failure of the request ends the task with the provider's message, and so do a few answers that were complete and
    cannot be used: the same prompt buys the same answer. A provider that is away, and an account that it refuses, are
    not faults of the task: it is retried with the policy's backoff until its deadline passes, whatever their count.
    """
    result = point.last_text
    message = f"{newest.error_class}: {newest.message}"
    is_refused_account = newest.error_class in ACCOUNT_FAULTS
    if not newest.retryable and not is_refused_account:
        return Transition(TaskState.FAILED, Reason.MODEL_REJECTED, message, result, error_class=newest.error_class)
    if has_enough_unusable(point, newest):
        reason, message = Reason.MODEL_ANSWER_UNUSABLE, unusable_text(point.progress.unusable + 1, message)
        return Transition(TaskState.FAILED, reason, message, result, error_class=newest.error_class)
    wait = None if is_refused_account else wait_before_attempt(point, newest, random_fraction)
    if wait is not None:
        return RetryModelCall(wait)
    return Transition(
        TaskState.RETRY_SCHEDULED,
        reason_of_retry(newest.error_class),
        message,
        retry_delay_seconds=wait_for_provider(policy, point.retries + 1, random_fraction, newest.retry_after_seconds),
        error_class=newest.error_class,
    )


def is_late(failure: ModelFailure) -> bool:
    """Whether the call exceeded the timeout of its phase.

    A timeout that the provider reports has a status code, and a silence of the provider has a class of its own.
    """
    return failure.error_class == FailureClass.TIMEOUT and not failure.status_code


def late_transition(
    point: ResumePoint, policy: TaskPolicy, phase: Phase, detail: str, error_class: str = ""
) -> Transition | None:
    """Returns the transition after a phase timeout. None: the task goes on."""
    action = policy.timeouts.action(phase)
    move = after_timeout(
        phase, action, policy.retry, point.timeout_retries, detail=detail, random_fraction=random.random()
    )
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
    """Returns the transition after the timeout of a model call.

    None: the call failed otherwise, or the task goes on.
    """
    if not is_late(failure):
        return None
    detail = f"{failure.error_class}: {failure.message}"
    return late_transition(point, policy, Phase.MODEL_CALL, detail, failure.error_class)


def after_calls(point: ResumePoint, policy: TaskPolicy, problems: ToolStepProblems) -> Transition | None:
    """Returns the transition after the calls of a step. None: the model reads their outcomes."""
    if problems.in_doubt:
        return _wait_for_resolution(problems.in_doubt)
    if problems.late:
        detail = f"these calls took too long and were stopped: {_names(problems.late)}"
        return late_transition(point, policy, Phase.TOOL_CALL, detail)
    return None


def after_interruption(point: ResumePoint, policy: TaskPolicy, interrupted: Interrupted) -> Transition:
    """Returns the transition after an interruption. The ledger knows a pending ending best, and writes its state."""
    match interrupted.kind:
        case Interruption.DRAIN:
            detail = interrupted.message or "its worker shuts down"
            return Transition(TaskState.QUEUED, Reason.WORKER_DRAINED, detail)
        case Interruption.STOP:
            return Transition(
                TaskState.RETRY_SCHEDULED, Reason.STOPPED, interrupted.message, retry_delay_seconds=RETRY_SECONDS
            )
        case Interruption.LATE:
            late = late_transition(point, policy, Phase.STEP, interrupted.message)
            assert late is not None, "a policy with a step timeout has an action for it"
            return late
        case Interruption.END:
            detail = point.cancel_reason or "its end was requested"
            return Transition(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, detail, point.last_text)


def _wait_for_resolution(in_doubt: Sequence[tuple[ToolIntent, Outcome]]) -> Transition:
    """Returns the transition to a wait for a person's resolution. The wait names each call with its attempt."""
    detail = f"it is not known whether these calls happened: {_names([intent for intent, _ in in_doubt])}"
    running = [intent for intent, outcome in in_doubt if outcome.detail == RUNNER_NOT_GONE]
    if running:
        detail += f"; before these run again, the runner of these must be gone: {_names(running)}"
    calls = tuple(CallInDoubt(intent.call_id, outcome.call_attempt) for intent, outcome in in_doubt)
    return Transition(TaskState.WAITING_USER, Reason.TOOL_IN_DOUBT, detail, calls_in_doubt=calls)


def _names(intents: Sequence[ToolIntent]) -> str:
    return ", ".join(f"{intent.call_id} ({intent.tool})" for intent in intents)


# The close-out: the one commit with which a task leaves this worker.


async def close_out(
    dependencies: Dependencies,
    held_task: HeldTask,
    ledger: ClaimLedger,
    pending: Sequence[StepEntry],
    transition: entries.Transition,
) -> None:
    """Commits the pending entries and the transition.

    A terminal transition also writes an outcome for every open call. It closes the tool service's fence first:
    otherwise a delayed call could begin its effect after the end of the task.
    """
    own = list(pending)
    if transition.to_state is TaskState.SUCCEEDED:
        transition = replace(transition, outputs=await _checked_outputs(dependencies, held_task, ledger, own))
    ends = is_terminal(transition.to_state)
    if ends:
        own += await _outcomes_of_open_calls(dependencies, held_task, ledger, own)
    if ends or transition.reason == Reason.BUDGET_REQUESTED:  # it asks at its cap instead of ending there
        await failpoint("worker.before_close_out")
    await ledger.close_out(own, transition)
    if ends or transition.reason == Reason.BUDGET_REQUESTED:
        await failpoint("worker.after_close_out")


async def end_after_refusal(
    dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, refused: CommitRefused
) -> None:
    """Ends a task whose commit the ledger refuses for good. Its pending entries are left out; the tool service has the
    outcomes of its calls.

    If one of these outcomes is what the ledger refuses, all are replaced: a task must be able to end.
    """
    message = f"the ledger refused a commit of its worker: {refused.refusal.message}"
    transition = Transition(TaskState.FAILED, Reason.COMMIT_REFUSED, message)
    try:
        await ledger.close_out(await _outcomes_of_open_calls(dependencies, held_task, ledger, ()), transition)
    except CommitRefused:
        own = await _outcomes_of_open_calls(dependencies, held_task, ledger, ())
        outcomes = [body for _, body in own if isinstance(body, entries.ToolOutcome)]
        replaced = [(ledger.point.step, outcome) for outcome in outcomes_after_refusal(outcomes)]
        await ledger.close_out(replaced, transition)


async def _checked_outputs(
    dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, pending: Sequence[StepEntry]
) -> tuple[TaskOutput, ...]:
    """Returns the task's outputs; the tool service reads the files among them again."""
    late = [output_of(body.call_id, body.outcome) for _, body in pending if isinstance(body, entries.ToolOutcome)]
    recorded = [*ledger.point.outputs.values(), *(output for output in late if output is not None)]
    outputs = tuple(recorded[-MAX_OUTPUTS:])  # a fork's own come after those that it copied
    paths = sorted({output.path for output in outputs} - {""})
    if not paths:
        return outputs
    files = await retrying(
        lambda: dependencies.tools.digest_files(held_task.token, paths), TRIES, on=(TryLater, PeerFailed)
    )
    return check_outputs(outputs, files)


async def _outcomes_of_open_calls(
    dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, pending: Sequence[StepEntry]
) -> list[StepEntry]:
    settled = {body.call_id for _, body in pending if isinstance(body, entries.ToolOutcome)}
    still_open = [intent for intent in ledger.point.open_intents if intent.call_id not in settled]
    if not still_open:
        return []
    point = ledger.point
    resolved = resolved_calls(still_open, point.resolutions, point.tools or ())
    statuses = await retrying(
        lambda: dependencies.tools.fence(held_task.token, close=True, resolved=resolved),
        TRIES,
        on=(TryLater, PeerFailed),
    )
    await failpoint("worker.after_fence")
    outcomes = outcomes_of_ended_calls(still_open, statuses, point.resolutions, point.tools or ())
    return [(point.step, outcome) for outcome in outcomes]
