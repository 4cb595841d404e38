"""Timeouts by phase: how long each phase of a task may take, and what becomes of the task when one takes longer.

Each is judged by who can see it: the ledger by database time (queued, wait, the whole task), coordinators by what
workers tell with their renewals (start, progress), the worker by its own clock (step, model call), the tools by theirs
(tool call). What follows is the task's own policy, and decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import MAX_WAIT_SECONDS, WaitDeadlinePolicy, WaitKind, default_timeout_seconds

MIN_TIMEOUT_SECONDS: Final = 1.0
MAX_PHASE_SECONDS: Final = 24 * 3600.0
MAX_MODEL_CALL_SECONDS: Final = 600.0
"""A worker that waits longer than this without a sign counts as stuck, whatever it announced."""


class Phase(StrEnum):
    """The phases that are timed. The names in lower case are the fields of Timeouts, here and on the wire."""

    QUEUED = "QUEUED"
    START = "START"
    STEP = "STEP"
    MODEL_CALL = "MODEL_CALL"
    TOOL_CALL = "TOOL_CALL"
    WAIT = "WAIT"
    PROGRESS = "PROGRESS"
    TASK = "TASK"

    @property
    def field(self) -> str:
        return self.value.lower()


class TimeoutAction(StrEnum):
    """What becomes of the task."""

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
}
TIMEOUT_REASONS: Final = frozenset(REASONS.values())

_ENDS_OR_RETRIES: Final = frozenset({TimeoutAction.FAIL, TimeoutAction.RETRY, TimeoutAction.TIME_OUT})
ACTIONS: Final = {
    **dict.fromkeys(Phase, frozenset(TimeoutAction)),
    Phase.QUEUED: _ENDS_OR_RETRIES,
    Phase.STEP: _ENDS_OR_RETRIES,
    Phase.TASK: frozenset({TimeoutAction.FAIL, TimeoutAction.TIME_OUT}),
}
"""What makes sense for a phase. A task whose whole time is over has none left to be retried in."""

NEED_DURATION: Final = frozenset({Phase.QUEUED, Phase.START, Phase.STEP})
"""Phases that nothing bounds by default: an action alone would be without effect."""

_GOES_ON: Final = frozenset({Phase.START, Phase.MODEL_CALL, Phase.TOOL_CALL, Phase.PROGRESS})


@dataclass(frozen=True, slots=True)
class PhaseTimeout:
    """None: the phase's default."""

    after_seconds: float | None = None
    action: TimeoutAction | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each phase may take. How long the whole task may, its limits say."""

    queued: PhaseTimeout = PhaseTimeout()
    start: PhaseTimeout = PhaseTimeout()
    step: PhaseTimeout = PhaseTimeout()
    model_call: PhaseTimeout = PhaseTimeout()
    tool_call: PhaseTimeout = PhaseTimeout()
    wait: PhaseTimeout = PhaseTimeout()
    progress: PhaseTimeout = PhaseTimeout()
    task: PhaseTimeout = PhaseTimeout()

    def of(self, phase: Phase) -> PhaseTimeout:
        timeout: PhaseTimeout = getattr(self, phase.field)
        return timeout

    def action(self, phase: Phase) -> TimeoutAction:
        """What happens when this phase takes too long. Of a wait see `action_of_wait`."""
        default = TimeoutAction.GO_ON if phase in _GOES_ON else TimeoutAction.TIME_OUT
        return self.of(phase).action or default

    def action_of_wait(self, at_deadline: WaitDeadlinePolicy) -> TimeoutAction:
        """The task's policy, and without one the word of whoever began the wait."""
        wait_action = TimeoutAction.GO_ON if at_deadline is WaitDeadlinePolicy.GO_ON else TimeoutAction.TIME_OUT
        return self.wait.action or wait_action

    def wait_seconds(self, kind: WaitKind, asked_seconds: float) -> float:
        """How long a wait lasts for which `asked_seconds` were asked; 0: nothing was said."""
        most = self.wait.after_seconds
        if not asked_seconds:
            return default_timeout_seconds(kind) if most is None else most
        return asked_seconds if most is None else min(asked_seconds, most)


@dataclass(frozen=True, slots=True)
class TimeoutTransition:
    """How the task leaves the phase; `retry_delay_seconds` only for RETRY_SCHEDULED."""

    to_state: TaskState
    reason: str
    message: str
    retry_delay_seconds: float | None = None


def longest_seconds(phase: Phase) -> float:
    """The upper bound of a phase's timeout."""
    return {Phase.WAIT: MAX_WAIT_SECONDS, Phase.MODEL_CALL: MAX_MODEL_CALL_SECONDS}.get(phase, MAX_PHASE_SECONDS)


def after_timeout(
    phase: Phase, action: TimeoutAction, retry: RetryPolicy, retries: int, *, detail: str, random_fraction: float
) -> TimeoutTransition | None:
    """What follows; None: the task goes on as it does. `retries`: how often timeouts led to one in this attempt.

    They are counted over the whole attempt, unlike those of the model: one quick step does not make the next one quick.
    """
    reason = REASONS[phase]
    match action:
        case TimeoutAction.GO_ON:
            return None
        case TimeoutAction.FAIL:
            return TimeoutTransition(TaskState.FAILED, reason, detail)
        case TimeoutAction.TIME_OUT:
            return TimeoutTransition(TaskState.TIMED_OUT, reason, detail)
        case TimeoutAction.RETRY if retry.exhausted(retries):
            return TimeoutTransition(TaskState.FAILED, reason, f"{detail} (after {retries} retries of the task)")
        case TimeoutAction.RETRY:
            return TimeoutTransition(
                TaskState.RETRY_SCHEDULED, reason, detail, retry.wait_seconds(retries + 1, random_fraction)
            )
