"""Defines the timeouts of a task's phases, and decides what follows a timeout.

The process that sees a phase measures it: the ledger by database time (queued, wait, the whole task), coordinators by
the workers' renewals (start, progress), the worker by its own clock (step, model call), the tool service by its own
(tool call). The task's policy decides what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import MAX_WAIT_SECONDS, WaitDeadlinePolicy, WaitKind, default_timeout_seconds, is_for_person

MIN_TIMEOUT_SECONDS: Final = 1.0
MAX_PHASE_SECONDS: Final = 24 * 3600.0
MAX_MODEL_CALL_SECONDS: Final = 600.0
"""A worker without progress for longer than this is stuck, whatever timeout it announced."""


class Phase(StrEnum):
    """A phase with a timeout. Its name in lower case is a field of Timeouts, in Python and in the protos."""

    QUEUED = "QUEUED"
    START = "START"
    STEP = "STEP"
    MODEL_CALL = "MODEL_CALL"
    TOOL_CALL = "TOOL_CALL"
    WAIT = "WAIT"
    PROGRESS = "PROGRESS"
    TASK = "TASK"
    WAIT_PERSON = "WAIT_PERSON"
    WAIT_EVENT = "WAIT_EVENT"

    @property
    def field(self) -> str:
        return self.value.lower()


class TimeoutAction(StrEnum):
    """The consequence of a timeout for the task."""

    GO_ON = "GO_ON"
    FAIL = "FAIL"
    RETRY = "RETRY"
    TIME_OUT = "TIME_OUT"


REASONS: Final = {
    Phase.QUEUED: Reason.QUEUED_TOO_LONG,
    Phase.START: Reason.START_TIMEOUT,
    Phase.STEP: Reason.STEP_TIMEOUT,
    Phase.MODEL_CALL: Reason.MODEL_TIMEOUT,
    Phase.TOOL_CALL: Reason.TOOL_TIMEOUT,
    Phase.WAIT: Reason.WAIT_EXPIRED,
    Phase.PROGRESS: Reason.WORKER_STUCK,
    Phase.TASK: Reason.DEADLINE_PASSED,
    Phase.WAIT_PERSON: Reason.WAIT_EXPIRED,
    Phase.WAIT_EVENT: Reason.WAIT_EXPIRED,
}
TIMEOUT_REASONS: Final = frozenset(REASONS.values())

_ENDS_OR_RETRIES: Final = frozenset({TimeoutAction.FAIL, TimeoutAction.RETRY, TimeoutAction.TIME_OUT})
ACTIONS: Final = {
    **dict.fromkeys(Phase, frozenset(TimeoutAction)),
    Phase.QUEUED: _ENDS_OR_RETRIES,
    Phase.STEP: _ENDS_OR_RETRIES,
    Phase.TASK: frozenset({TimeoutAction.FAIL, TimeoutAction.TIME_OUT}),
}
"""The allowed actions of each phase. A task whose own deadline has passed has no time left for a retry."""

NEED_DURATION: Final = frozenset({Phase.QUEUED, Phase.START, Phase.STEP})
"""Phases without a default timeout: an action alone would have no effect."""

_GOES_ON: Final = frozenset({Phase.START, Phase.MODEL_CALL, Phase.TOOL_CALL, Phase.PROGRESS})


@dataclass(frozen=True, slots=True)
class PhaseTimeout:
    """The timeout of a phase and its action. None: the phase's default."""

    after_seconds: float | None = None
    action: TimeoutAction | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The timeouts of all phases. `Limits.timeout_seconds` is the timeout of the whole task."""

    queued: PhaseTimeout = PhaseTimeout()
    start: PhaseTimeout = PhaseTimeout()
    step: PhaseTimeout = PhaseTimeout()
    model_call: PhaseTimeout = PhaseTimeout()
    tool_call: PhaseTimeout = PhaseTimeout()
    wait: PhaseTimeout = PhaseTimeout()
    progress: PhaseTimeout = PhaseTimeout()
    task: PhaseTimeout = PhaseTimeout()
    wait_person: PhaseTimeout = PhaseTimeout()
    wait_event: PhaseTimeout = PhaseTimeout()

    def of(self, phase: Phase) -> PhaseTimeout:
        timeout: PhaseTimeout = getattr(self, phase.field)
        return timeout

    def action(self, phase: Phase) -> TimeoutAction:
        """Returns the action after a timeout of the phase. For waits use `action_of_wait`."""
        default = TimeoutAction.GO_ON if phase in _GOES_ON else TimeoutAction.TIME_OUT
        return self.of(phase).action or default

    def of_wait(self, kind: WaitKind) -> PhaseTimeout:
        """Returns the timeout of waits of a kind: that of waits for a person or for an event goes before `wait`."""
        own = self.of(phase_of_wait(kind))
        after_seconds = self.wait.after_seconds if own.after_seconds is None else own.after_seconds
        return PhaseTimeout(after_seconds, own.action or self.wait.action)

    def action_of_wait(self, kind: WaitKind, at_deadline: WaitDeadlinePolicy) -> TimeoutAction:
        """Returns the action of the task's policy, or else the one that the wait itself has.

        GO_ON records the missing answer, which ends a task that waits for budget at its cap, whatever the policy. The
        operator sets deadline and action of an operator's wait.
        """
        if kind is WaitKind.BUDGET:
            return TimeoutAction.GO_ON
        wait_action = TimeoutAction.GO_ON if at_deadline is WaitDeadlinePolicy.GO_ON else TimeoutAction.TIME_OUT
        return wait_action if kind is WaitKind.OPERATOR else self.of_wait(kind).action or wait_action

    def wait_seconds(self, kind: WaitKind, asked_seconds: float) -> float:
        """Returns the timeout of a wait. `asked_seconds`: the wait's own; 0: none was given."""
        most = None if kind is WaitKind.OPERATOR else self.of_wait(kind).after_seconds
        if not asked_seconds:
            return default_timeout_seconds(kind) if most is None else most
        return asked_seconds if most is None else min(asked_seconds, most)


@dataclass(frozen=True, slots=True)
class TimeoutTransition:
    """The transition after a timeout. `retry_delay_seconds`: only for RETRY_SCHEDULED."""

    to_state: TaskState
    reason: str
    message: str
    retry_delay_seconds: float | None = None


WAITS: Final = frozenset({Phase.WAIT, Phase.WAIT_PERSON, Phase.WAIT_EVENT})


def phase_of_wait(kind: WaitKind) -> Phase:
    """Returns the phase of a wait. A wait for sub-agents is neither for a person nor for an event."""
    if is_for_person(kind):
        return Phase.WAIT_PERSON
    return Phase.WAIT_EVENT if kind is WaitKind.EVENT else Phase.WAIT


def longest_seconds(phase: Phase) -> float:
    """Returns the upper bound of a phase's timeout."""
    if phase in WAITS:
        return MAX_WAIT_SECONDS
    return MAX_MODEL_CALL_SECONDS if phase is Phase.MODEL_CALL else MAX_PHASE_SECONDS


def after_timeout(
    phase: Phase, action: TimeoutAction, retry: RetryPolicy, retries: int, *, detail: str, random_fraction: float
) -> TimeoutTransition | None:
    """Returns the transition after a timeout. None: the task goes on.

    `retries`: the number of retries after timeouts in this attempt of the task. A successful step does not reset it,
    unlike that of model failures, because one fast step does not make the next one fast.
    """
    reason = REASONS[phase]
    match action:
        case TimeoutAction.GO_ON:
            return None
        case TimeoutAction.FAIL:
            return TimeoutTransition(TaskState.FAILED, reason, detail)
        case TimeoutAction.TIME_OUT:
            return TimeoutTransition(TaskState.TIMED_OUT, reason, detail)
        case TimeoutAction.RETRY if retry.exhausted(retries + 1):
            return TimeoutTransition(TaskState.FAILED, reason, f"{detail} (after {retries} retries of the task)")
        case TimeoutAction.RETRY:
            return TimeoutTransition(
                TaskState.RETRY_SCHEDULED, reason, detail, retry.wait_seconds(retries + 1, random_fraction)
            )
