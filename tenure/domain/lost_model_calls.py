"""Decides whether a model call is lost with its owner, its bill, and whether a later usage report corrects the bill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest, NotFound, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.states import TaskState

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

    @property
    def input_tokens(self) -> int:
        """The tokens of the whole input, cached or not."""
        return self.usage.total - self.usage.output_tokens


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
    if reported is None:
        return TokenUsage(input_tokens)
    output = _within(reported.usage.output_tokens, max_output_tokens)
    if reported.input_tokens <= 0:
        return TokenUsage(input_tokens, output)
    cache_read = _within(reported.usage.cache_read_input_tokens, input_tokens)
    cache_creation = _within(reported.usage.cache_creation_input_tokens, input_tokens - cache_read)
    uncached = _within(reported.usage.input_tokens, input_tokens - cache_read - cache_creation)
    return TokenUsage(uncached, output, cache_creation, cache_read)


def with_input(usage: TokenUsage, input_tokens: int, reserved_tokens: int) -> TokenUsage:
    """Returns a reported usage with the reserved input, as far as it fits, if the provider stated no input.

    Some providers state the input at the end of the answer only, and a stopped call has no end.
    """
    if usage.total > usage.output_tokens:
        return usage
    return replace(usage, input_tokens=_within(input_tokens, reserved_tokens - usage.output_tokens))


def _within(tokens: int, most: int) -> int:
    return max(0, min(tokens, most))


@dataclass(frozen=True, slots=True)
class RecordedModelCall:
    """A model attempt in the ledger: its reservation, the claim that made it, and its settlement.

    `is_lost`: the attempt was settled as lost. `is_reported`: a usage report has corrected its bill.
    `outlives_worker`: a model runner made the call, which may have begun under a later claim.
    """

    made_under: Fence
    reserved_tokens: int
    reserved_nano_usd: int
    is_settled: bool = False
    is_lost: bool = False
    is_reported: bool = False
    outlives_worker: bool = False

    def may_have_begun_under(self, claim: Fence) -> bool:
        """Whether the call may have been made under the claim.

        An owner may die between the record of the attempt and the call; then the next owner's request begins the call.
        """
        return self.made_under == claim or (self.outlives_worker and self.made_under.epoch < claim.epoch)


def decide_report(call: RecordedModelCall | None, claim: Fence, usage: TokenUsage, nano_usd: int) -> bool:
    """Whether a usage report corrects the bill of a lost call; False: an earlier report already did.

    Raises NotFound, WrongState or InvalidRequest. The claim need not hold the task any longer: the report changes only
    the bill of the call.
    """
    if call is None or not call.may_have_begun_under(claim):
        raise NotFound("this claim has no such model attempt: check step and attempt_number")
    if not call.is_settled:
        raise WrongState("the model attempt is not settled yet: report its usage again later", reason=ATTEMPT_OPEN)
    if not call.is_lost:
        raise WrongState("the model attempt was settled by its own answer, not as lost", reason=ATTEMPT_SETTLED)
    if usage.total > call.reserved_tokens:
        message = f"must be at most the call's reservation of {call.reserved_tokens} tokens, not {usage.total}"
        raise InvalidRequest(violations=[("usage", message)])
    if nano_usd > call.reserved_nano_usd:
        raise InvalidRequest(violations=[("usage", "must not cost more than the call's reservation")])
    return not call.is_reported
