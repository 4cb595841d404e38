"""The rules of the first write: whether the fence admits a call, and what happens to an admitted call.

The functions are pure. The caller holds the locks of the fence and of the call record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from services.tools.calls.records import CallKey, CallRequest, CallRow, unpack_outcome
from tenure.domain.admission import stale
from tenure.domain.errors import AlreadyExists, StaleEpoch
from tenure.domain.fencing import Fence
from tenure.domain.in_doubt import (
    MAY_HAVE_HAPPENED,
    RunAgain,
    SettledByResolution,
    apply_resolution,
    outcome_in_doubt,
    was_not_made,
)
from tenure.domain.settlement import HARMLESS
from tenure.domain.tools import NOT_RUN, CallState, EffectClass, Outcome, OutcomeStatus, bounded

_UNKNOWN: Final = "It is not known whether it had its effect: do not make this call again, under another key."
_LEAVES_EFFECT_OPEN: Final = frozenset({OutcomeStatus.TIMED_OUT, OutcomeStatus.IN_DOUBT})
_HAD_BEGUN: Final = " It is not known whether an earlier attempt of this call had its effect."
_NOT_REPEATED: Final = "an earlier attempt began, its end was lost, and the call was not repeated: "


@dataclass(frozen=True, slots=True)
class ToolFenceRow:
    """A task's fence at the tool service. `closed`: the calls of this claim were ended, and no new one may begin."""

    current: Fence
    closed: bool


@dataclass(frozen=True, slots=True)
class RunCall:
    """The call runs on this runner, as this attempt.

    `idempotency_key`: of its effect key; "": the call's own. `sent_before`: an earlier attempt may have had its effect.
    """

    call_attempt: int
    idempotency_key: str = ""
    sent_before: bool = False


@dataclass(frozen=True, slots=True)
class SettleCall:
    """The call is settled by this runner, as this attempt, without its effect: the runner of an UNSAFE one was lost.

    `idempotency_key`: of its effect key; "": the call's own.
    """

    call_attempt: int
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class JoinCall:
    """The call runs already, as this attempt."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class MarkInDoubt:
    """The runner of this attempt died, or does not know the effect, and the call must not run again.

    `note`: what the runner said.
    """

    call_attempt: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class AnswerFromRecord:
    """The outcome is known without a run: from the record, or, for a new call, from the check of its request."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ConcludeCall:
    """The call was accepted before and must not run any more. This is its outcome, under an attempt of its own.

    Or its caller ran it: then the outcome is of the attempt that was started.
    """

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class WaitForEffect:
    """Another call makes the effect now. This one is decided, and recorded, when that call has ended."""

    holder: CallKey


@dataclass(frozen=True, slots=True)
class AskFirst:
    """A rule asks for a person's approval. Nothing is recorded: the approved call comes again, under a newer claim."""

    outcome: Outcome


Verdict = RunCall | SettleCall | JoinCall | MarkInDoubt | AnswerFromRecord | ConcludeCall | WaitForEffect | AskFirst


def admit(row: ToolFenceRow, presented: Fence) -> ToolFenceRow | StaleEpoch:
    """Returns the fence after an Execute, or the refusal.

    Refuses a lower epoch, another claim of the same epoch, and a closed fence. A higher epoch reopens a closed fence:
    a task's end that was not carried out must not stop the task for ever.
    """
    if presented.epoch > row.current.epoch:
        return ToolFenceRow(presented, closed=False)
    if presented != row.current or row.closed:
        return stale(presented, row.current)
    return row


def admit_fence(row: ToolFenceRow, presented: Fence, *, close: bool) -> ToolFenceRow | StaleEpoch:
    """Returns the fence after a Fence request, or the refusal.

    To close a closed fence is a repeat. Fence without `close` does not reopen a closed fence of the same claim.
    """
    if presented == row.current and close:
        return ToolFenceRow(presented, closed=True)
    admitted = admit(row, presented)
    return replace(admitted, closed=close) if isinstance(admitted, ToolFenceRow) else admitted


@dataclass(frozen=True, slots=True)
class RunnerIdentity:
    """The runner id of this process, and the attempt of the call that runs here, or None.

    `ordered`: the call's caller was ordered to run this attempt itself.
    """

    runner_id: UUID
    running_attempt: int | None
    ordered: bool = False


def decide(row: CallRow | None, request: CallRequest, here: RunnerIdentity) -> Verdict | AlreadyExists:
    """Returns the verdict on an admitted call.

    Returns AlreadyExists (CALL_ID_REUSED) when the record is of another tool or of other arguments.
    """
    if row is None:
        return decide_unknown(request)
    if row.arguments_hash != request.arguments_hash:
        return AlreadyExists(
            f"call {request.key.call_id} of this task exists already, with another tool or other arguments; "
            "use a new call_id for each call",
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
    """Replaces RunCall when the call cannot run: its tool no longer exists, or no longer accepts the arguments.

    A KEYED call that had begun is in doubt: the model would plan it again, under another idempotency key.
    """
    if isinstance(verdict, RunCall) and request.clear is not None:
        begun, attempt = _may_have_begun(row), verdict.call_attempt
        if begun and row.effect_class is EffectClass.KEYED:
            return MarkInDoubt(row.call_attempt, _NOT_REPEATED + request.clear.content)
        content = request.clear.content + (_HAD_BEGUN if begun else "")
        return ConcludeCall(replace(request.clear, content=content, call_attempt=attempt, no_effect=not begun))
    return verdict


def decide_unknown(request: CallRequest) -> Verdict:
    """Decides a call without a record.

    A call with a resolution had a record: the record was lost when an older database was restored, and the call is
    still in doubt.
    """
    resolution = request.resolution
    if resolution is None:
        return AnswerFromRecord(request.clear) if request.clear is not None else RunCall(1)
    match apply_resolution(resolution, resolution.call_attempt, runner_gone=False):
        case SettledByResolution(outcome):
            return ConcludeCall(_bounded(outcome, request))
        case RunAgain(call_attempt) if request.clear is not None:
            return ConcludeCall(replace(request.clear, call_attempt=call_attempt, no_effect=True))
        case RunAgain(call_attempt):
            return RunCall(call_attempt)
        case None:
            return MarkInDoubt(resolution.call_attempt)


def _bounded(outcome: Outcome, request: CallRequest) -> Outcome:
    return bounded(outcome, request.output_limit_bytes) if request.output_limit_bytes else outcome


def _may_have_begun(row: CallRow) -> bool:
    """Whether an earlier attempt may have had its effect. An UNSAFE call that may run again had no effect."""
    was_handed_over = row.state is CallState.ACCEPTED and row.begun_before
    has_effects = row.effect_class in {EffectClass.IDEMPOTENT, EffectClass.KEYED}
    return has_effects and (row.state is CallState.STARTED or was_handed_over)


def known_outcome(row: CallRow) -> Outcome:
    """Returns the outcome of a call that neither runs nor will run."""
    if row.outcome is not None:
        return unpack_outcome(row.outcome)
    if row.state is CallState.IN_DOUBT:
        return outcome_in_doubt(row.call_attempt, row.doubt_note)
    return replace(NOT_RUN, call_attempt=row.call_attempt)


def _decide_in_doubt(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    """Applies a resolution of exactly this attempt; without one the call stays in doubt.

    The resolution begins the next attempt, so later writes of the old runner are void. A resolution that says that the
    runner is gone is wrong when the attempt runs in this process: then the call is joined.
    """
    resolution = request.resolution
    late = _decide_own_outcome(row, request) if request.clear is None else None
    if isinstance(late, ConcludeCall):  # a repeat of the doubt changes nothing
        return late
    if resolution is not None:
        match apply_resolution(resolution, row.call_attempt, runner_gone=row.runner_gone):
            case SettledByResolution(outcome):
                outcome = replace(outcome, no_effect=was_not_made(row.doubt_note))
                return ConcludeCall(_bounded(outcome, request))
            case RunAgain(call_attempt):
                runs_here = here.running_attempt == row.call_attempt and not request.runs_at_caller
                return JoinCall(row.call_attempt) if runs_here else RunCall(call_attempt)
    return AnswerFromRecord(outcome_in_doubt(row.call_attempt, row.doubt_note, resolution))


def _decide_accepted(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    """Decides a call whose effect has not begun.

    A request under the same claim joins an attempt of this process. Otherwise the call runs here as the next attempt,
    which makes the start of the older attempt fail, on whatever runner that attempt is.
    """
    if here.running_attempt == row.call_attempt and request.fence == row.fence:
        return JoinCall(row.call_attempt)
    return RunCall(row.call_attempt + 1, sent_before=_may_have_begun(row))


def _decide_started(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    if _is_run_by_caller(row, request, here):
        return _decide_own_run(row, request, here) if request.fence == row.fence else _after_lost_runner(row, request)
    if here.running_attempt == row.call_attempt:
        return JoinCall(row.call_attempt)
    # A call whose record names this runner, but that does not run here, is treated like the call of a dead runner.
    if row.runner_alive and row.runner_id != here.runner_id:
        return JoinCall(row.call_attempt)
    return _after_lost_runner(row, request)


def _is_run_by_caller(row: CallRow, request: CallRequest, here: RunnerIdentity) -> bool:
    """Whether a started call is run by its caller: it may run it, or this process ordered it to.

    A caller that only says so, with the name of a tool of this service, must not decide about that tool's call.
    """
    was_ordered = here.ordered and here.running_attempt == row.call_attempt
    return request.runs_at_caller and (request.clear is None or was_ordered)


def _decide_own_run(row: CallRow, request: CallRequest, here: RunnerIdentity) -> Verdict:
    """Decides a started call that the caller itself runs, under the claim that started it.

    One process holds the claim. It answers for a newer attempt with the run that it has, so that a newer attempt is
    safe even for an UNSAFE call: after a broken stream, the replica that the caller reaches now takes the call over.
    """
    own_outcome = _decide_own_outcome(row, request)
    if own_outcome is not None:
        return own_outcome
    if here.running_attempt == row.call_attempt:
        return JoinCall(row.call_attempt)
    return RunCall(row.call_attempt + 1)


def _decide_own_outcome(row: CallRow, request: CallRequest) -> Verdict | None:
    """Returns the verdict on what the caller's run came to, or None if there is none of this attempt and claim."""
    outcome = request.own_outcome
    if outcome is None or request.fence != row.fence or outcome.call_attempt != row.call_attempt:
        return None
    if outcome.status is OutcomeStatus.NOT_RUN:  # the order came too late, or for the second time
        return RunCall(row.call_attempt + 1)
    if outcome.status in _LEAVES_EFFECT_OPEN and not row.effect_class.may_run_again:
        return MarkInDoubt(row.call_attempt, outcome.content)
    if outcome.status is OutcomeStatus.IN_DOUBT:
        content = f"{outcome.content} {_UNKNOWN if row.effect_class is EffectClass.KEYED else HARMLESS}"
        outcome = replace(outcome, status=OutcomeStatus.FAILED, content=content, detail=MAY_HAVE_HAPPENED)
    return ConcludeCall(outcome)


def _after_lost_runner(row: CallRow, request: CallRequest) -> Verdict:
    """Decides a started call whose runner brings no outcome any more: it is dead, or a worker that lost the task."""
    # The operator may have made a tool UNSAFE because a repeat did harm. A tool that no longer exists does not run.
    may_be_repeated = request.clear is not None or request.effect_class.may_run_again
    if row.effect_class.may_run_again and may_be_repeated:
        return RunCall(row.call_attempt + 1, sent_before=_may_have_begun(row))
    if request.has_check and request.clear is None:
        return SettleCall(row.call_attempt + 1)
    return MarkInDoubt(row.call_attempt)
