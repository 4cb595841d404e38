"""Model calls whose worker was lost: what they are billed, and what their own worker may say of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest, NotFound, WrongState
from tenure.domain.fencing import Fence

ATTEMPT_OPEN: Final = "ATTEMPT_OPEN"
ATTEMPT_SETTLED: Final = "ATTEMPT_SETTLED"


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """A model call as far as its worker told of it. Input 0: the provider has not counted it yet."""

    step: int
    attempt_number: int
    usage: TokenUsage

    @property
    def input_tokens(self) -> int:
        """All input, cached or not."""
        return self.usage.total - self.usage.output_tokens


def settle_lost(input_tokens: int, max_output_tokens: int, reported: ReportedCall | None) -> TokenUsage:
    """What a model call of unknown fate is billed: what was heard of it, and unheard its whole input.

    `input_tokens` and `max_output_tokens` are what was set aside. What was heard is a worker's word: out of bounds, it
    must not be what keeps its task from being requeued.
    """
    if reported is None:
        return TokenUsage(input_tokens)
    output = _within(reported.usage.output_tokens, max_output_tokens)
    if reported.input_tokens <= 0:
        return TokenUsage(input_tokens, output)
    read = _within(reported.usage.cache_read_input_tokens, input_tokens)
    created = _within(reported.usage.cache_creation_input_tokens, input_tokens - read)
    plain = _within(reported.usage.input_tokens, input_tokens - read - created)
    return TokenUsage(plain, output, created, read)


def _within(tokens: int, most: int) -> int:
    return max(0, min(tokens, most))


@dataclass(frozen=True, slots=True)
class RecordedModelCall:
    """What the ledger knows of an attempt: the claim it was reserved under, and how it was settled, if it was."""

    made_under: Fence
    reserved_tokens: int
    reserved_nano_usd: int
    is_settled: bool = False
    is_lost: bool = False
    is_reported: bool = False


def decide_report(call: RecordedModelCall | None, claim: Fence, usage: TokenUsage, nano_usd: int) -> bool:
    """Whether a worker's report of a lost call is to be billed; False: it was before. Raises what it is refused with.

    Whether the claim still holds the task is not asked: the report changes what the call is billed, and nothing else.
    """
    if call is None or call.made_under != claim:
        raise NotFound("no such call was made under this claim")
    if not call.is_settled:
        raise WrongState("the call is not settled yet", reason=ATTEMPT_OPEN)
    if not call.is_lost:
        raise WrongState("the call was settled by its own answer", reason=ATTEMPT_SETTLED)
    if usage.total > call.reserved_tokens:
        message = f"{usage.total} tokens are more than the {call.reserved_tokens} that were set aside for the call"
        raise InvalidRequest(violations=[("usage", message)])
    if nano_usd > call.reserved_nano_usd:
        raise InvalidRequest(violations=[("usage", "costs more than was set aside for the call")])
    return not call.is_reported
