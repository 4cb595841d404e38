"""The rules of Generate and CancelGeneration: they decide a request of a claim by the newest call of its task.

The functions are pure. The caller holds the lock of the task's row, and writes the row that they return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from services.models.ends import stopped_end
from tenure.domain.admission import stale
from tenure.domain.errors import TenureError, Unavailable, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.retry import FailureClass

ATTEMPT_SUPERSEDED = "ATTEMPT_SUPERSEDED"


class Attempt(NamedTuple):
    """One model attempt of a task. Later attempts are greater."""

    step: int
    number: int


class ModelCallState(StrEnum):
    """The state of a model call."""

    ACCEPTED = "ACCEPTED"  # nothing was sent to the provider
    SENT = "SENT"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A task's row: its fence and its newest call. `attempt` (0, 0): there was none.

    `runner_alive`, `runner_address`: of the runner that makes the call. `begun_epoch` 0: it never began.
    """

    fence: Fence
    attempt: Attempt
    state: ModelCallState
    runner_id: UUID | None = None
    runner_address: str = ""
    runner_alive: bool = False
    begun_epoch: int = 0
    sent_at: datetime | None = None
    ended: bytes | None = None


class Kind(StrEnum):
    """The kind of a request."""

    GENERATE = "Generate"
    CANCEL = "CancelGeneration"


@dataclass(frozen=True, slots=True)
class CallIntent:
    """A request under a claim. `sends_at`: when the call is sent, if it need not wait.

    `may_be_own`: an earlier try of this very request may have been written, and then its call has not begun.
    `was_relayed`: another replica sent it here, and it is not sent on. `reserved_epoch`: the epoch under which the
    ledger recorded the attempt; 0: unknown.
    """

    kind: Kind
    fence: Fence
    attempt: Attempt
    sends_at: datetime | None = None
    may_be_own: bool = False
    was_relayed: bool = False
    reserved_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Here:
    """The process that decides. `runs`: whether the call runs or has ended here. `refuse_new`: why it begins none."""

    runner_id: UUID
    runs: Callable[[], bool]
    refuse_new: Callable[[], TenureError | None] = lambda: None


@dataclass(frozen=True, slots=True)
class BeginCall:
    """The call begins at this runner. `joined`: an earlier request began it, and nothing was sent."""

    row: GenerationRow
    joined: bool


@dataclass(frozen=True, slots=True)
class JoinRun:
    """The call is in this process."""


@dataclass(frozen=True, slots=True)
class RelayCall:
    """Another living replica makes the call."""

    runner_id: UUID
    address: str


@dataclass(frozen=True, slots=True)
class EndedCall:
    """The call has ended; its end is in the row. `lost_now`: this request found that its runner is dead."""

    row: GenerationRow
    lost_now: bool = False


Verdict = BeginCall | JoinRun | RelayCall | EndedCall


class RowDecision(NamedTuple):
    """The verdict or the refusal, and the row to write; None: it stays as it is. A refusal may raise the fence, too."""

    verdict: Verdict | TenureError
    written: GenerationRow | None


def decide(row: GenerationRow, request: CallIntent, here: Here) -> RowDecision:
    """Decides a request.

    Refuses a lower epoch and another claim of the same epoch (StaleEpoch), an attempt below the newest one (WrongState
    ATTEMPT_SUPERSEDED), and a new call that this process cannot begin (TryLater).
    """
    if request.fence.epoch < row.fence.epoch or (
        request.fence.epoch == row.fence.epoch and request.fence.claim_id != row.fence.claim_id
    ):
        return RowDecision(stale(request.fence, row.fence), None)
    admitted = replace(row, fence=request.fence)
    if request.attempt > row.attempt or request.reserved_epoch > row.begun_epoch > 0:
        # A call begins after its reservation. If the recorded one began before the reservation of this attempt, the
        # ledger was restored to a moment before the recorded call, and another call has got its number.
        verdict: Verdict | TenureError = _decide_new(request, here)
    elif request.attempt < row.attempt and request.fence.epoch > row.fence.epoch:
        # A later owner has the recorded call in its ledger, unless that was restored: the end of this one is lost.
        before = GenerationRow(request.fence, request.attempt, ModelCallState.SENT, begun_epoch=request.reserved_epoch)
        verdict = _lost(before)
    elif request.attempt < row.attempt:
        verdict = _superseded(request.attempt, row.attempt)
    elif row.state is ModelCallState.FINISHED:
        verdict = EndedCall(admitted)
    elif row.state is ModelCallState.ACCEPTED:
        verdict = _decide_accepted(admitted, request, here)
    else:
        verdict = _decide_sent(admitted, request, here)
    return RowDecision(verdict, _written(row, admitted, verdict))


def _written(row: GenerationRow, admitted: GenerationRow, verdict: Verdict | TenureError) -> GenerationRow | None:
    if isinstance(verdict, BeginCall | EndedCall):
        admitted = verdict.row
    return None if admitted == row else admitted


def _superseded(attempt: Attempt, newest: Attempt) -> WrongState:
    return WrongState(
        f"attempt {attempt.number} of step {attempt.step} is over: attempt {newest.number} of step {newest.step} of "
        "this task has begun",
        reason=ATTEMPT_SUPERSEDED,
    )


def _decide_new(request: CallIntent, here: Here) -> Verdict | TenureError:
    """Decides the first request of an attempt. A cancelled attempt has an end from now on, so it never begins."""
    if request.kind is Kind.CANCEL:
        end = stopped_end(request.attempt.number, FailureClass.INTERRUPTED)
        return EndedCall(GenerationRow(request.fence, request.attempt, ModelCallState.FINISHED, ended=end))
    return _begin(request, here, request.fence.epoch, joined=False)


def _begin(request: CallIntent, here: Here, begun_epoch: int, *, joined: bool) -> Verdict | TenureError:
    return here.refuse_new() or begun(request, here.runner_id, begun_epoch, joined=joined)


def begun(request: CallIntent, runner_id: UUID, begun_epoch: int, *, joined: bool) -> BeginCall:
    """Returns the beginning of the call at a runner."""
    row = GenerationRow(
        request.fence,
        request.attempt,
        ModelCallState.ACCEPTED if request.sends_at is None else ModelCallState.SENT,
        runner_id=runner_id,
        begun_epoch=begun_epoch,
        sent_at=request.sends_at,
    )
    return BeginCall(row, joined)


def _decide_accepted(row: GenerationRow, request: CallIntent, here: Here) -> Verdict | TenureError:
    """Decides a call that was not sent: any replica may cancel it, and take it over from a runner that is gone."""
    if request.kind is Kind.CANCEL:
        end = stopped_end(row.attempt.number, FailureClass.INTERRUPTED)
        return EndedCall(replace(row, state=ModelCallState.FINISHED, runner_id=None, ended=end))
    if row.runner_id == here.runner_id:
        return JoinRun() if here.runs() else _begin(request, here, row.begun_epoch, joined=True)
    if row.runner_id is not None and row.runner_alive:
        return _relay(row, row.runner_id, request)
    return _begin(request, here, row.begun_epoch, joined=True)


def _decide_sent(row: GenerationRow, request: CallIntent, here: Here) -> Verdict | TenureError:
    """Decides a call that was sent, or that may have been."""
    assert row.runner_id is not None, "the schema requires it"
    if row.runner_id == here.runner_id and here.runs():
        return JoinRun()
    if row.runner_id == here.runner_id and request.may_be_own and request.kind is Kind.GENERATE:
        return _begin(request, here, row.begun_epoch, joined=False)
    if row.runner_id != here.runner_id and row.runner_alive:
        return _relay(row, row.runner_id, request)
    # The runner is dead; or it is this process, which did not learn that its write had succeeded, and sent nothing.
    return _lost(row)


def _lost(row: GenerationRow) -> EndedCall:
    end = stopped_end(row.attempt.number, FailureClass.LOST)
    return EndedCall(replace(row, state=ModelCallState.FINISHED, ended=end), lost_now=True)


def _relay(row: GenerationRow, runner_id: UUID, request: CallIntent) -> Verdict | TenureError:
    if request.was_relayed:
        return runs_elsewhere()
    return RelayCall(runner_id, row.runner_address)


def runs_elsewhere() -> Unavailable:
    """Returns the error of a request that must find the call at another runner."""
    return Unavailable(
        "the call is at another model runner, which was expected here; repeat the request",
        reason="RUNNER_ELSEWHERE",
        retry_after_seconds=0.5,
    )
