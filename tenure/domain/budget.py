"""Budget arithmetic: what a model call may set aside.

Money and tokens are never overshot because a reservation is granted only out of what neither settled use nor other
reservations have taken, under the lock of the budget's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tenure.domain.money import Prices, affordable_output, most_cost, usd
from tenure.domain.states import Reason, TaskState

WARNING_PERCENT: Final = 80


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
    """What may be used, is used and is set aside, in tokens and in nano dollars: of a root, or of one task by itself.

    A cap of 0 is none. `unpriced_calls` cost nothing here only because nobody knows their price.
    """

    max_tokens: int
    used_tokens: int
    reserved_tokens: int
    max_nano_usd: int = 0
    used_nano_usd: int = 0
    reserved_nano_usd: int = 0
    unpriced_calls: int = 0

    @property
    def is_capped_in_money(self) -> bool:
        return bool(self.max_nano_usd)

    @property
    def free_tokens(self) -> int | None:
        """None: without a cap."""
        return self.max_tokens - self.used_tokens - self.reserved_tokens if self.max_tokens else None

    @property
    def free_nano_usd(self) -> int | None:
        """None: without a cap."""
        return self.max_nano_usd - self.used_nano_usd - self.reserved_nano_usd if self.max_nano_usd else None


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
    """Set aside, in tokens and in nano dollars. `prices`: those that the call is settled by; None: unknown."""

    max_output_tokens: int
    reserved_tokens: int
    reserved_nano_usd: int = 0
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """`retry_after_seconds`: when to ask again, where that is known."""

    reason: str
    message: str
    retry_after_seconds: float | None = None

    @property
    def ends_as(self) -> TaskState:
        """What becomes of the task, unless others are in the way. A missing price is no limit that was reached."""
        return TaskState.FAILED if self.reason == Reason.MODEL_UNPRICED else TaskState.COST_EXCEEDED


def decide_reserve(
    budgets: Sequence[Budget], request: ReserveRequest, prices: Prices | None, max_steps: int
) -> Granted | Denied:
    """Grants as much output as all the budgets leave, refuses when even the least does not fit into one of them.

    Denied is final but for BUDGET_BUSY, which means that others' open reservations are in the way. `prices` None: what
    the model costs is not known, and where money is capped nobody can say that a call fits.
    """
    if request.step > max_steps:
        return Denied(Reason.STEP_LIMIT, f"the limit of {max_steps} steps is reached")
    if prices is None and any(budget.is_capped_in_money for budget in budgets):
        return Denied(Reason.MODEL_UNPRICED, _unpriced(request.model))
    least = _Amount.of(request, prices, request.min_output_tokens)
    refusals = [refusal for budget in budgets for refusal in _refusals(budget, least)]
    if refusals:
        return min(refusals, key=lambda refusal: refusal.reason == Reason.BUDGET_BUSY)
    rooms = [room for budget in budgets for room in _rooms(budget, request, prices)]
    granted = _Amount.of(request, prices, min([request.max_output_tokens, *rooms]))
    return Granted(granted.tokens - request.input_tokens, granted.tokens, granted.nano_usd, prices)


@dataclass(frozen=True, slots=True)
class _Amount:
    """What a call may come to."""

    tokens: int
    nano_usd: int

    @classmethod
    def of(cls, request: ReserveRequest, prices: Prices | None, output_tokens: int) -> _Amount:
        nano_usd = most_cost(prices, request.input_tokens, output_tokens)
        return cls(request.input_tokens + output_tokens, nano_usd)


def _refusals(budget: Budget, least: _Amount) -> Iterator[Denied]:
    """Why not even the least fits: for good, or until what is set aside is settled."""
    if budget.free_tokens is not None and least.tokens > budget.free_tokens:
        if budget.used_tokens + least.tokens > budget.max_tokens:
            used = f"{budget.used_tokens} of {budget.max_tokens} tokens are used"
            yield Denied(Reason.TOKEN_LIMIT, f"{used} and the next call needs at least {least.tokens}")
        else:
            yield Denied(Reason.BUDGET_BUSY, f"{budget.reserved_tokens} tokens are set aside for calls in flight")
    if budget.free_nano_usd is not None and least.nano_usd > budget.free_nano_usd:
        if budget.used_nano_usd + least.nano_usd > budget.max_nano_usd:
            used = f"{usd(budget.used_nano_usd)} of {usd(budget.max_nano_usd)} are used"
            yield Denied(Reason.MONEY_LIMIT, f"{used} and the next call may cost {usd(least.nano_usd)} at least")
        else:
            yield Denied(Reason.BUDGET_BUSY, f"{usd(budget.reserved_nano_usd)} are set aside for calls in flight")


def _rooms(budget: Budget, request: ReserveRequest, prices: Prices | None) -> Iterator[int]:
    """The most output that each cap leaves, in tokens."""
    if budget.free_tokens is not None:
        yield budget.free_tokens - request.input_tokens
    if budget.free_nano_usd is not None:
        output = affordable_output(prices, request.input_tokens, budget.free_nano_usd)
        if output is not None:
            yield output


def _unpriced(model: str) -> str:
    return (
        f"the price of {model} is not known here, and a task with a cap in money makes no call of unknown price: "
        "add the model to the ledger's file of prices, then requeue the task"
    )


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """So much of a cap is used that it should be known. `limit`: the reason tasks end with when it is reached."""

    limit: str
    budget: Budget


def due_warnings(budget: Budget, warned_tokens: int, warned_nano_usd: int) -> list[str]:
    """The caps that are used so far that it should be known, by the reasons tasks end with when they are reached.

    `warned_*`: the caps that were warned of last. One that was raised since is another cap.
    """
    caps = (
        (Reason.TOKEN_LIMIT, budget.max_tokens, budget.used_tokens, warned_tokens),
        (Reason.MONEY_LIMIT, budget.max_nano_usd, budget.used_nano_usd, warned_nano_usd),
    )
    return [
        reason for reason, cap, used, warned in caps if cap and cap != warned and 100 * used >= WARNING_PERCENT * cap
    ]
