"""Calls in doubt: an effect that may or may not have happened, and a person's word on it.

The word is recorded by the ledger while the task waits for it, and carried to the tools by the task's next owner, under
that owner's claim. The tools decide, under the locks of fence and record. What they decide gives the call its next
attempt number: so whatever the old runner still does, begin, withdraw or record, is of an attempt that is over. A word
is about one attempt; a doubt that comes anew needs a new word.
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
    """A call of unknown outcome. `call_attempt` 0: its worker did not say which attempt."""

    call_id: str
    call_attempt: int


@dataclass(frozen=True, slots=True)
class Happened:
    """Its effect is there. `result` "": nothing more is known."""

    result: str = ""


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """Its effect is not there: run it again. `runner_is_gone`: by the word of whoever says so, where there was no
    proof; `runner_proven_gone`: by proof that was there when it was said. A proof that came later says nothing of what
    the runner did between the look and its end.
    """

    runner_is_gone: bool = False
    runner_proven_gone: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody will ever know: the agent goes on."""


Decision = Happened | DidNotHappen | Abandon


@dataclass(frozen=True, slots=True)
class ResolveCall:
    """An operator's word on a call, as it stands in the ledger."""

    call_id: str
    call_attempt: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Resolution:
    """The same on its way to the tools, with who said it and why."""

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
    """The calls that the task still waits for once the word is recorded, or the refusal.

    `waited_for`: what the wait was begun over and has no word yet. Empty where the worker did not say: any open call
    will do then, and none is waited for after it, because the next owner says which are still in doubt.
    """
    if state in TERMINAL:
        return WrongState(f"the task has ended as {state}", metadata={"state": state.value})
    if state is not TaskState.WAITING_USER or reason != Reason.TOOL_IN_DOUBT:
        return WrongState(
            f"the task waits for no word on a call in doubt; it is {state}",
            reason=NOT_IN_DOUBT,
            metadata={"state": state.value},
        )
    candidates = waited_for or [CallInDoubt(call_id, 0) for call_id in open_calls]
    match = next((call for call in candidates if call.call_id == resolution.call_id), None)
    if match is None:
        return WrongState(
            f"the task waits for no word on call {resolution.call_id}, or has it already",
            reason=NOT_IN_DOUBT,
            metadata={"state": state.value, "call_id": resolution.call_id},
        )
    if match.call_attempt not in {0, resolution.call_attempt}:
        return WrongState(
            f"it is attempt {match.call_attempt} of call {resolution.call_id} that is in doubt",
            reason=OTHER_ATTEMPT,
            metadata={"call_attempt": str(match.call_attempt)},
        )
    return tuple(call for call in waited_for if call != match)


@dataclass(frozen=True, slots=True)
class SettledByResolution:
    """The call has ended with this."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RunAgain:
    """It is to be run, as this attempt."""

    call_attempt: int


def apply_resolution(
    resolution: Resolution, doubted_attempt: int, *, runner_gone: bool
) -> SettledByResolution | RunAgain | None:
    """What the word does to a call of which this attempt is in doubt; None: nothing, it stays in doubt.

    `runner_gone`: it is proven by now that nothing of the attempt's runner will ever begin or go on.
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
    """What is said of a call in doubt. `note`: the tool's own words; `resolution`: a word that was not taken."""
    known = f"It is not known whether this call happened: {note} {_CARE}" if note else IN_DOUBT.content
    waits = resolution is not None and resolution.call_attempt == call_attempt
    return Outcome(OutcomeStatus.IN_DOUBT, known, detail=RUNNER_NOT_GONE if waits else "", call_attempt=call_attempt)


def is_unsettled(outcome: Outcome) -> bool:
    """Whether a person may still say what became of the call."""
    return outcome.status is OutcomeStatus.IN_DOUBT and outcome.detail != ABANDONED


_CARE: Final = "It must not simply be repeated; find out first whether its effect is there."


# Whether a task that waits for a word on calls in doubt still has to: pure.


class AttemptStatus(NamedTuple):
    """A call as the tools have it."""

    state: CallState
    call_attempt: int


def nothing_in_doubt(waited_for: Sequence[CallInDoubt], statuses: Mapping[str, AttemptStatus]) -> bool:
    """Whether the tools know by now what became of each of these: its outcome came late, its effect turned out never to
    have begun, or another attempt of it is in doubt. A call that they know nothing of says nothing.
    """
    return bool(waited_for) and all(_is_known(call, statuses.get(call.call_id)) for call in waited_for)


def _is_known(call: CallInDoubt, status: AttemptStatus | None) -> bool:
    if status is None:
        return False
    if status.state is CallState.IN_DOUBT:
        return status.call_attempt > call.call_attempt > 0
    return status.state in {CallState.FINISHED, CallState.NOT_RUN}
