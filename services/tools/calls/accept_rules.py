"""Whether a call is let in, and what is done with it: pure, decided under the locks of its fence and its record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from services.tools.calls.records import CallRequest, CallRow, unpack_outcome
from tenure.domain.admission import stale
from tenure.domain.errors import AlreadyExists, StaleEpoch
from tenure.domain.fencing import Fence
from tenure.domain.in_doubt import RunAgain, SettledByResolution, apply_resolution, outcome_in_doubt
from tenure.domain.tools import NOT_RUN, CallState, EffectClass, Outcome
from tenure.domain.truncation import bounded

_HAD_BEGUN: Final = " An earlier attempt of this very call had begun: its effect may be there."


@dataclass(frozen=True, slots=True)
class ToolFenceRow:
    """A task's fence at the tools. `closed`: everything of this claim is ended."""

    current: Fence
    closed: bool


@dataclass(frozen=True, slots=True)
class RunCall:
    """It is handed to this runner, as this attempt."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class JoinCall:
    """It runs already, as this attempt."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class MarkInDoubt:
    """The runner of this attempt died, and it must not be run again."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class AnswerFromRecord:
    """The outcome is known."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ConcludeCall:
    """It was let in before and is to be run no more: this is its outcome, as an attempt of its own."""

    outcome: Outcome


Verdict = RunCall | JoinCall | MarkInDoubt | AnswerFromRecord | ConcludeCall


def admit(row: ToolFenceRow, presented: Fence) -> ToolFenceRow | StaleEpoch:
    """The fence after an Execute; refuses a lower epoch, another claim of the same one, and a closed fence.

    A higher epoch opens a closed fence: an ending that was not carried out must not stop the task for ever.
    """
    if presented.epoch > row.current.epoch:
        return ToolFenceRow(presented, closed=False)
    if presented != row.current or row.closed:
        return stale(presented, row.current)
    return row


def admit_fence(row: ToolFenceRow, presented: Fence, *, close: bool) -> ToolFenceRow | StaleEpoch:
    """The fence after a Fence. Closing what is closed is a repeat; asking to open it again is refused."""
    if presented == row.current and close:
        return ToolFenceRow(presented, closed=True)
    admitted = admit(row, presented)
    return replace(admitted, closed=close) if isinstance(admitted, ToolFenceRow) else admitted


@dataclass(frozen=True, slots=True)
class RunnerIdentity:
    """What this process knows by itself: who it is, and which attempt of the call it is running, if any."""

    runner_id: UUID
    running_attempt: int | None


def decide(row: CallRow | None, request: CallRequest, here: RunnerIdentity) -> Verdict | AlreadyExists:
    """What becomes of an admitted call."""
    if row is None:
        return _decide_unknown(request)
    if row.arguments_hash != request.arguments_hash:
        return AlreadyExists(
            f"call {request.key.call_id} of this task was made with another tool or other arguments",
            reason="CALL_ID_REUSED",
            metadata={"call_id": request.key.call_id},
        )
    if row.state is CallState.ACCEPTED:
        return _concluded(_decide_accepted(row, request, here), request, row)
    if row.state is CallState.STARTED:
        return _concluded(_decide_started(row, request, here), request, row)
    if row.state is CallState.IN_DOUBT:
        return _concluded(_decide_in_doubt(row, request, here), request, row)
    return AnswerFromRecord(known_outcome(row))


def _concluded(verdict: Verdict, request: CallRequest, row: CallRow) -> Verdict:
    """A call cannot be run again when its tool is not there any more, or takes its arguments no more."""
    if isinstance(verdict, RunCall) and request.clear is not None:
        content = request.clear.content + (_HAD_BEGUN if _may_have_begun(row) else "")
        return ConcludeCall(replace(request.clear, content=content, call_attempt=verdict.call_attempt))
    return verdict


def _decide_unknown(request: CallRequest) -> Verdict:
    """Nothing is known of it. One that a person's word comes for was here before: its record was lost with a database
    that was put back, and it is still in doubt.
    """
    word = request.resolution
    if word is None:
        return AnswerFromRecord(request.clear) if request.clear is not None else RunCall(1)
    match apply_resolution(word, word.call_attempt, runner_gone=False):
        case SettledByResolution(outcome):
            return ConcludeCall(_bounded(outcome, request))
        case RunAgain(call_attempt) if request.clear is not None:
            return ConcludeCall(replace(request.clear, call_attempt=call_attempt))
        case RunAgain(call_attempt):
            return RunCall(call_attempt)
        case None:
            return MarkInDoubt(word.call_attempt)


def _bounded(outcome: Outcome, request: CallRequest) -> Outcome:
    return bounded(outcome, request.output_limit_bytes) if request.output_limit_bytes else outcome


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


def _decide_in_doubt(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    """A person's word on this very attempt decides. Its next number makes void whatever the old runner still does.

    One that says that the runner is gone is mistaken where the attempt runs in this very process.
    """
    resolution = request.resolution
    if resolution is not None:
        match apply_resolution(resolution, row.call_attempt, runner_gone=row.runner_gone):
            case SettledByResolution(outcome):
                return ConcludeCall(_bounded(outcome, request))
            case RunAgain(call_attempt):
                runs_here = here.running_attempt == row.call_attempt
                return JoinCall(row.call_attempt) if runs_here else RunCall(call_attempt)
    return AnswerFromRecord(outcome_in_doubt(row.call_attempt, row.doubt_note, resolution))


def _decide_accepted(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    """Not begun. Whoever starts first runs it: a next attempt makes an older runner's start fail, wherever it is."""
    if here.running_attempt == row.call_attempt and request.fence == row.fence:
        return JoinCall(row.call_attempt)
    return RunCall(row.call_attempt + 1)


def _decide_started(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    if here.running_attempt == row.call_attempt:
        return JoinCall(row.call_attempt)
    # A call of this very life that does not run in it is nobody's, as if its runner were dead.
    if row.runner_alive and row.runner_id != here.runner_id:
        return JoinCall(row.call_attempt)
    # A tool that is UNSAFE by now may have become so because of what a repeat did. One that is gone is not run.
    may_be_repeated = request.clear is not None or request.effect_class.may_run_again
    if row.effect_class.may_run_again and may_be_repeated:
        return RunCall(row.call_attempt + 1)
    return MarkInDoubt(row.call_attempt)
