"""Decides about calls in doubt: calls whose effect may or may not have happened, and a person's resolution of them.

The ledger records the resolution while the task waits for it. The task's next owner sends it to the tool service, under
that owner's claim. The tool service decides under the locks of the fence and of the call record. Its decision gives the
call the next attempt number, so whatever the old runner still does (begin, withdraw or record) belongs to an attempt
that is over. A resolution is about one attempt: a call that is in doubt again needs a new resolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tenure.domain.errors import WrongState
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.tools import IN_DOUBT, CallState, Outcome, OutcomeStatus

NOT_IN_DOUBT: Final = "NOT_IN_DOUBT"
OTHER_ATTEMPT: Final = "OTHER_ATTEMPT"
RUNNER_NOT_GONE: Final = "RUNNER_NOT_GONE"
HAPPENED: Final = "HAPPENED"
ABANDONED: Final = "ABANDONED"
"""Details of outcomes, and reasons of refusals."""

MAY_HAVE_HAPPENED: Final = "MAY_HAVE_HAPPENED"
"""Detail of a failed call whose tool does not know whether it had its effect."""

RESOLVE_COMMANDS: Final = "tenure tools in-doubt, then tenure tools resolve"
"""The commands that list and resolve calls in doubt, for messages to operators."""


class CallInDoubt(NamedTuple):
    """A call of unknown outcome. `call_attempt` 0: the worker did not name the attempt."""

    call_id: str
    call_attempt: int


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect happened. `result` "": the person knows no result."""

    result: str = ""


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The effect did not happen: the call may run again.

    `runner_is_gone`: the person says, without proof, that the runner is gone. `runner_proven_gone`: the proof existed
    when the person decided. A later proof says nothing about what the runner did between the person's check and its
    end.
    """

    runner_is_gone: bool = False
    runner_proven_gone: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """The effect stays unknown for ever, and the agent goes on."""


Decision = Happened | DidNotHappen | Abandon


@dataclass(frozen=True, slots=True)
class ResolveCall:
    """An operator's resolution of a call, as the ledger records it."""

    call_id: str
    call_attempt: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolution as the next owner sends it to the tool service, with its actor and reason."""

    call_attempt: int
    decision: Decision
    reason: str
    actor: str


def decide_resolution(
    state: TaskState,
    reason: str,
    open_calls: Sequence[str],
    waited_for: Sequence[CallInDoubt],
    resolution: ResolveCall,
) -> tuple[CallInDoubt, ...] | WrongState:
    """Returns the calls that the task still waits for once the resolution is recorded, or the refusal.

    `waited_for`: the calls of this wait that have no resolution yet. Empty if the worker did not name them: then the
    resolution may be about any open call, and the wait ends, because the next owner names the calls still in doubt.
    """
    if state in TERMINAL:
        return WrongState(f"the task has ended as {state}", metadata={"state": state.value})
    if state is not TaskState.WAITING_USER or reason != Reason.TOOL_IN_DOUBT:
        return WrongState(
            f"the task does not wait for the resolution of a call in doubt; it is {state}",
            reason=NOT_IN_DOUBT,
            metadata={"state": state.value},
        )
    candidates = waited_for or [CallInDoubt(call_id, 0) for call_id in open_calls]
    match = next((call for call in candidates if call.call_id == resolution.call_id), None)
    if match is None:
        return WrongState(
            f"the task does not wait for a resolution of call {resolution.call_id}, or already has it",
            reason=NOT_IN_DOUBT,
            metadata={"state": state.value, "call_id": resolution.call_id},
        )
    if match.call_attempt not in {0, resolution.call_attempt}:
        return WrongState(
            f"attempt {match.call_attempt} of call {resolution.call_id} is in doubt, not {resolution.call_attempt}",
            reason=OTHER_ATTEMPT,
            metadata={"call_attempt": str(match.call_attempt)},
        )
    return tuple(call for call in waited_for if call != match)


@dataclass(frozen=True, slots=True)
class SettledByResolution:
    """The call ended with this outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RunAgain:
    """The call runs again, as this attempt."""

    call_attempt: int


def apply_resolution(
    resolution: Resolution, doubted_attempt: int, *, runner_gone: bool
) -> SettledByResolution | RunAgain | None:
    """Applies a resolution to a call of which `doubted_attempt` is in doubt. None: the call stays in doubt.

    `runner_gone`: it is proven by now that the attempt's runner can neither begin nor continue anything.
    """
    if resolution.call_attempt != doubted_attempt:
        return None
    match resolution.decision:
        case Happened(result):
            message = result or f"{resolution.actor} found that this call happened: {resolution.reason}"
            outcome = Outcome(OutcomeStatus.SUCCEEDED, message, detail=HAPPENED, call_attempt=doubted_attempt + 1)
            return SettledByResolution(outcome)
        case Abandon():
            message = f"{IN_DOUBT.content} {resolution.actor} gave it up: {resolution.reason}"
            outcome = Outcome(OutcomeStatus.IN_DOUBT, message, detail=ABANDONED, call_attempt=doubted_attempt + 1)
            return SettledByResolution(outcome)
        case DidNotHappen(by_word, by_proof):
            return RunAgain(doubted_attempt + 1) if by_word or (by_proof and runner_gone) else None


def outcome_in_doubt(call_attempt: int, note: str = "", resolution: Resolution | None = None) -> Outcome:
    """Returns the outcome of a call in doubt. `note`: the tool's own text; `resolution`: one that was not applied."""
    known = f"It is not known whether this call happened: {note} {_CARE}" if note else IN_DOUBT.content
    waits = resolution is not None and resolution.call_attempt == call_attempt
    return Outcome(OutcomeStatus.IN_DOUBT, known, detail=RUNNER_NOT_GONE if waits else "", call_attempt=call_attempt)


def is_unsettled(outcome: Outcome) -> bool:
    """Whether a person may still resolve the call."""
    return outcome.status is OutcomeStatus.IN_DOUBT and outcome.detail != ABANDONED


_CARE: Final = "It must not simply be repeated; find out first whether its effect is there."


# Whether a task that waits for resolutions still has to wait.


class AttemptStatus(NamedTuple):
    """The state of a call at the tool service."""

    state: CallState
    call_attempt: int


def nothing_in_doubt(waited_for: Sequence[CallInDoubt], statuses: Mapping[str, AttemptStatus]) -> bool:
    """Whether the tool service settled every one of these calls meanwhile.

    The outcome came late, the effect never began, or another attempt is in doubt. A call that the tool service does not
    know stays in doubt.
    """
    return bool(waited_for) and all(_is_known(call, statuses.get(call.call_id)) for call in waited_for)


def _is_known(call: CallInDoubt, status: AttemptStatus | None) -> bool:
    if status is None:
        return False
    if status.state is CallState.IN_DOUBT:
        return status.call_attempt > call.call_attempt > 0
    return status.state in {CallState.FINISHED, CallState.NOT_RUN}
