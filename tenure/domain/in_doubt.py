"""Decides about calls in doubt: calls whose effect may or may not have happened, and a person's resolution of them.

The ledger records the resolution while the task waits for it. The task's next owner sends it to the tool service, under
that owner's claim. The tool service decides under the locks of the fence and of the call record. Its decision gives the
call the next attempt number, so whatever the old runner still does (begin, withdraw or record) belongs to an attempt
that is over. A resolution is about one attempt: a call that is in doubt again needs a new resolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tenure.domain.budget import Prices, TokenUsage, cost, most_cost
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.repeated_effects import NOT_RUN
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.tools import IN_DOUBT, CallState, Outcome, OutcomeStatus

NOT_IN_DOUBT: Final = "NOT_IN_DOUBT"
OTHER_ATTEMPT: Final = "OTHER_ATTEMPT"
RUNNER_NOT_GONE: Final = "RUNNER_NOT_GONE"
HAPPENED: Final = "HAPPENED"
ABANDONED: Final = "ABANDONED"
"""Details of outcomes, and reasons of refusals."""

MAY_HAVE_HAPPENED: Final = "MAY_HAVE_HAPPENED"
"""Detail of a failed call whose tool does not know whether it had its effect, and that may be repeated without harm."""

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


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """A resolution as the end of the task sends it. `undoes`: of the call's intent. `output_limit_bytes` 0: none."""

    call_id: str
    resolution: Resolution
    undoes: str = ""
    output_limit_bytes: int = 0


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
    if was_not_made(note):
        known = note
    else:
        known = f"It is not known whether this call happened: {note} {_CARE}" if note else IN_DOUBT.content
    waits = resolution is not None and resolution.call_attempt == call_attempt
    detail = RUNNER_NOT_GONE if waits else ""
    return Outcome(
        OutcomeStatus.IN_DOUBT, known, detail=detail, call_attempt=call_attempt, no_effect=was_not_made(note)
    )


def was_not_made(note: str) -> bool:
    """Whether the doubt is about a repeat: the call was not made, because another one has its effect key."""
    return note.startswith(NOT_RUN)


def is_unsettled(outcome: Outcome) -> bool:
    """Whether a person may still resolve the call."""
    return outcome.status is OutcomeStatus.IN_DOUBT and outcome.detail != ABANDONED


_CARE: Final = "Tenure keeps the call in doubt until its end is known: do not make it again."


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


# Decides whether a model call is lost with its owner, its bill, and whether a later usage report corrects the bill.

ATTEMPT_OPEN: Final = "ATTEMPT_OPEN"
ATTEMPT_SETTLED: Final = "ATTEMPT_SETTLED"


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """The usage of a model call so far, as its worker reported it.

    Without input tokens in `usage`: the model provider has not reported its count of the input yet.
    """

    step: int
    attempt_number: int
    usage: TokenUsage


def stays_open(to_state: TaskState, *, outlives_worker: bool) -> bool:
    """Whether an open model attempt stays open when its task moves to another state.

    A task that is queued or running has a next owner, who can join a call that outlives its worker.
    """
    return outlives_worker and to_state in {TaskState.QUEUED, TaskState.RUNNING}


def settle_lost(input_tokens: int, max_output_tokens: int, reported: ReportedCall | None) -> TokenUsage:
    """Returns the usage to bill for a lost model call: the reported usage, and the whole input if none was reported.

    `input_tokens` and `max_output_tokens` are the reservation. Reported usage beyond the reservation is reduced to it:
    the report comes from a worker, and a wrong report must not prevent the requeue of the task.
    """
    usage = TokenUsage() if reported is None else reported.usage
    return _reduced(usage, input_tokens, max_output_tokens)


def _reduced(usage: TokenUsage, input_tokens: int, max_output_tokens: int) -> TokenUsage:
    """Returns a usage reduced to a reservation, with the reserved input if it has none."""
    output = _within(usage.output_tokens, max_output_tokens)
    if usage.total <= usage.output_tokens:
        return TokenUsage(input_tokens, output)
    cache_read = _within(usage.cache_read_input_tokens, input_tokens)
    cache_creation = _within(usage.cache_creation_input_tokens, input_tokens - cache_read)
    uncached = _within(usage.input_tokens, input_tokens - cache_read - cache_creation)
    return TokenUsage(uncached, output, cache_creation, cache_read)


def bill_of_report(usage: TokenUsage, input_tokens: int, max_output_tokens: int, prices: Prices | None) -> TokenUsage:
    """Returns the usage to bill for a report: as it states, and reduced to the reservation if it exceeds that.

    The report may come from a fenced worker, whose mistake must not use up the budget. Some providers state the input
    at the end of the answer only, and a stopped call has no end: then the reserved input is billed, as far as it fits.
    """
    reserved, stated = input_tokens + max_output_tokens, usage
    if usage.total <= usage.output_tokens:
        stated = replace(usage, input_tokens=_within(input_tokens, reserved - usage.total))
    most = most_cost(prices, input_tokens, max_output_tokens)
    fits = stated.total <= reserved and cost(prices, stated) <= most
    return stated if fits else _reduced(usage, input_tokens, max_output_tokens)


def _within(tokens: int, most: int) -> int:
    return max(0, min(tokens, most))


@dataclass(frozen=True, slots=True)
class RecordedModelCall:
    """A model attempt in the ledger: the claim that made it, and its settlement.

    `is_lost`: the attempt was settled as lost. `is_reported`: a usage report has corrected its bill.
    `outlives_worker`: a model runner made the call, which may have begun under a later claim.
    """

    made_under: Fence
    is_settled: bool = False
    is_lost: bool = False
    is_reported: bool = False
    outlives_worker: bool = False

    def may_have_begun_under(self, claim: Fence) -> bool:
        """Whether the call may have been made under the claim.

        An owner may die between the record of the attempt and the call; then the next owner's request begins the call.
        """
        return self.made_under == claim or (self.outlives_worker and self.made_under.epoch < claim.epoch)


def decide_report(call: RecordedModelCall | None, claim: Fence) -> bool:
    """Whether a usage report corrects the bill of a lost call; False: an earlier report already did.

    Raises NotFound or WrongState. The claim need not hold the task any longer: the report changes only
    the bill of the call.
    """
    if call is None or not call.may_have_begun_under(claim):
        raise NotFound("this claim has no such model attempt: check step and attempt_number")
    if not call.is_settled:
        raise WrongState("the model attempt is not settled yet: report its usage again later", reason=ATTEMPT_OPEN)
    if not call.is_lost:
        raise WrongState("the model attempt was settled by its own answer, not as lost", reason=ATTEMPT_SETTLED)
    return not call.is_reported
