"""Budget arithmetic: what a model call may set aside, and what a finished or lost one settles for.

Money and tokens are never overshot because a reservation is granted only out of what neither settled use nor other
reservations have taken, under the lock of the budget's row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.states import Reason


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as the provider bills them; `total` is what a budget counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            self.cache_read_input_tokens + other.cache_read_input_tokens,
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The row of a root, in tokens."""

    max_tokens: int
    used_tokens: int
    reserved_tokens: int

    @property
    def free_tokens(self) -> int:
        return self.max_tokens - self.used_tokens - self.reserved_tokens


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """One model call to come: its step and attempt, an upper bound of its input, and the output wanted, in tokens."""

    step: int
    attempt_number: int
    model: str
    input_tokens: int
    max_output_tokens: int
    min_output_tokens: int
    summary_through_step: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    max_output_tokens: int
    reserved_tokens: int


@dataclass(frozen=True, slots=True)
class Denied:
    reason: str
    message: str


def decide_reserve(budget: Budget, request: ReserveRequest, max_steps: int) -> Granted | Denied:
    """Grants as much output as is left, refuses when even the least does not fit.

    Denied TOKEN_LIMIT and STEP_LIMIT are final; BUDGET_BUSY means that others' open reservations are in the way.
    """
    if request.step > max_steps:
        return Denied(Reason.STEP_LIMIT, f"the limit of {max_steps} steps is reached")
    least = request.input_tokens + request.min_output_tokens
    if budget.used_tokens + least > budget.max_tokens:
        return Denied(
            Reason.TOKEN_LIMIT,
            f"{budget.used_tokens} of {budget.max_tokens} tokens are used and the next call needs at least {least}",
        )
    if least > budget.free_tokens:
        return Denied(Reason.BUDGET_BUSY, f"{budget.reserved_tokens} tokens are set aside for calls in flight")
    output = min(request.max_output_tokens, budget.free_tokens - request.input_tokens)
    return Granted(max_output_tokens=output, reserved_tokens=request.input_tokens + output)


def settle_lost(input_tokens: int, max_output_tokens: int, heard_output_tokens: int) -> TokenUsage:
    """What a model call of unknown fate is billed: its whole input, and the output that was heard of.

    What was heard is a worker's word: out of bounds, it must not be what keeps its task from being requeued.
    """
    return TokenUsage(input_tokens=input_tokens, output_tokens=max(0, min(heard_output_tokens, max_output_tokens)))
