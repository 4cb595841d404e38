"""Whether a call is let in, and what is done with it: pure, decided under the locks of its fence and its record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from services.tools.calls.records import Asked, CallRow, unpack_outcome
from tenure.domain.admission import stale
from tenure.domain.epochs import Fence
from tenure.domain.errors import AlreadyExists, StaleEpoch
from tenure.domain.in_doubt import RunAgain, Settled, outcome_in_doubt, take_word
from tenure.domain.shown import bounded
from tenure.domain.tools import NOT_RUN, CallState, EffectClass, Outcome

_HAD_BEGUN: Final = " An earlier attempt of this very call had begun: its effect may be there."


@dataclass(frozen=True, slots=True)
class FenceRow:
    """A task's fence at the tools. `closed`: everything of this claim is ended."""

    current: Fence
    closed: bool


@dataclass(frozen=True, slots=True)
class Run:
    """It is handed to this runner, as this attempt."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class Join:
    """It runs already, as this attempt."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """The runner of this attempt died, and it must not be run again."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome is known."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Conclude:
    """It was let in before and is to be run no more: this is its outcome, as an attempt of its own."""

    outcome: Outcome


Verdict = Run | Join | Doubt | Answer | Conclude


def admit(row: FenceRow, presented: Fence) -> FenceRow | StaleEpoch:
    """The fence after an Execute; refuses a lower epoch, another claim of the same one, and a closed fence.

    A higher epoch opens a closed fence: an ending that was not carried out must not stop the task for ever.
    """
    if presented.epoch > row.current.epoch:
        return FenceRow(presented, closed=False)
    if presented != row.current or row.closed:
        return stale(presented, row.current)
    return row


def admit_fence(row: FenceRow, presented: Fence, *, close: bool) -> FenceRow | StaleEpoch:
    """The fence after a Fence. Closing what is closed is a repeat; asking to open it again is refused."""
    if presented == row.current and close:
        return FenceRow(presented, closed=True)
    admitted = admit(row, presented)
    return replace(admitted, closed=close) if isinstance(admitted, FenceRow) else admitted


@dataclass(frozen=True, slots=True)
class Here:
    """What this process knows by itself: who it is, and which attempt of the call it is running, if any."""

    runner_id: UUID
    running_attempt: int | None


def decide(row: CallRow | None, asked: Asked, here: Here) -> Verdict | AlreadyExists:
    """What becomes of an admitted call."""
    if row is None:
        return _decide_unknown(asked)
    if row.arguments_hash != asked.arguments_hash:
        return AlreadyExists(
            f"call {asked.key.call_id} of this task was made with another tool or other arguments",
            reason="CALL_ID_REUSED",
            metadata={"call_id": asked.key.call_id},
        )
    if row.state is CallState.ACCEPTED:
        return _concluded(_decide_accepted(row, asked, here), asked, row)
    if row.state is CallState.STARTED:
        return _concluded(_decide_started(row, asked, here), asked, row)
    if row.state is CallState.IN_DOUBT:
        return _concluded(_decide_in_doubt(row, asked, here), asked, row)
    return Answer(known_outcome(row))


def _concluded(verdict: Verdict, asked: Asked, row: CallRow) -> Verdict:
    """A call cannot be run again when its tool is not there any more, or takes its arguments no more."""
    if isinstance(verdict, Run) and asked.clear is not None:
        told = asked.clear.content + (_HAD_BEGUN if _may_have_begun(row) else "")
        return Conclude(replace(asked.clear, content=told, call_attempt=verdict.call_attempt))
    return verdict


def _decide_unknown(asked: Asked) -> Verdict:
    """Nothing is known of it. One that a person's word comes for was here before: its record was lost with a database
    that was put back, and it is still in doubt.
    """
    word = asked.resolution
    if word is None:
        return Answer(asked.clear) if asked.clear is not None else Run(1)
    match take_word(word, word.call_attempt, runner_gone=False):
        case Settled(outcome):
            return Conclude(_bounded(outcome, asked))
        case RunAgain(call_attempt) if asked.clear is not None:
            return Conclude(replace(asked.clear, call_attempt=call_attempt))
        case RunAgain(call_attempt):
            return Run(call_attempt)
        case None:
            return Doubt(word.call_attempt)


def _bounded(outcome: Outcome, asked: Asked) -> Outcome:
    return bounded(outcome, asked.output_limit_bytes) if asked.output_limit_bytes else outcome


def _may_have_begun(row: CallRow) -> bool:
    """Whether an attempt before may have had its effect. An UNSAFE call that could be run again had none."""
    handed_on = row.state is CallState.ACCEPTED and row.call_attempt > 1
    has_effects = row.effect_class in {EffectClass.IDEMPOTENT, EffectClass.KEYED}
    return has_effects and (row.state is CallState.STARTED or handed_on)


def known_outcome(row: CallRow) -> Outcome:
    """The answer of a call that is neither to be run nor running."""
    if row.outcome is not None:
        return unpack_outcome(row.outcome)
    if row.state is CallState.IN_DOUBT:
        return outcome_in_doubt(row.call_attempt, row.doubt_note)
    return replace(NOT_RUN, call_attempt=row.call_attempt)


def _decide_in_doubt(row: CallRow, asked: Asked, here: Here) -> Verdict:
    """A person's word on this very attempt decides. Its next number makes void whatever the old runner still does.

    One that says that the runner is gone is mistaken where the attempt runs in this very process.
    """
    resolution = asked.resolution
    if resolution is not None:
        match take_word(resolution, row.call_attempt, runner_gone=row.runner_gone):
            case Settled(outcome):
                return Conclude(_bounded(outcome, asked))
            case RunAgain(call_attempt):
                runs_here = here.running_attempt == row.call_attempt
                return Join(row.call_attempt) if runs_here else Run(call_attempt)
    return Answer(outcome_in_doubt(row.call_attempt, row.doubt_note, resolution))


def _decide_accepted(row: CallRow, asked: Asked, here: Here) -> Verdict:
    """Not begun. Whoever starts first runs it: a next attempt makes an older runner's start fail, wherever it is."""
    if here.running_attempt == row.call_attempt and asked.fence == row.fence:
        return Join(row.call_attempt)
    return Run(row.call_attempt + 1)


def _decide_started(row: CallRow, asked: Asked, here: Here) -> Verdict:
    if here.running_attempt == row.call_attempt:
        return Join(row.call_attempt)
    # A call of this very life that does not run in it is nobody's, as if its runner were dead.
    if row.runner_alive and row.runner_id != here.runner_id:
        return Join(row.call_attempt)
    # A tool that is UNSAFE by now may have become so because of what a repeat did. One that is gone is not run.
    may_be_repeated = asked.clear is not None or asked.effect_class.may_run_again
    if row.effect_class.may_run_again and may_be_repeated:
        return Run(row.call_attempt + 1)
    return Doubt(row.call_attempt)
