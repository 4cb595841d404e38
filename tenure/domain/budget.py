"""Budget arithmetic: what a model call may set aside.

Money and tokens are never overshot because a reservation is granted only out of what neither settled use nor other
reservations have taken, under the lock of the budget's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tenure.domain.states import Reason, TaskState

# What model calls cost. Money is whole nano dollars (10^-9 US dollar) everywhere: sums are exact, there are no
# floats.

NANO_USD: Final = 10**9
"""In one dollar."""

RATE_TOKENS: Final = 10**6
"""What a rate is for."""

MOST_NANO_USD: Final = 10**15
"""$1,000,000: the highest cap, and the most that one call is ever charged. Sums of it stay inside an int64."""

MOST_TOKENS: Final = 10**12
"""The highest cap in tokens, the most that one grant adds, and the most that one call uses. Sums of it stay inside an
int64.
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """For a million tokens each, in nano dollars."""

    input: int
    output: int
    cache_creation_input: int
    cache_read_input: int


@dataclass(frozen=True, slots=True)
class Tier:
    """The rates of all tokens of a call whose input, cached or not, is more than so many tokens."""

    above_input_tokens: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one model, by the length of the input; the first tier is above 0 and holds for a call without input too."""

    tiers: tuple[Tier, ...]

    @classmethod
    def flat(cls, rates: Rates) -> Prices:
        """The same for every length."""
        return cls((Tier(0, rates),))

    def rates(self, input_tokens: int) -> Rates:
        """What holds for a call with so much input."""
        reached = [tier for tier in self.tiers if tier.above_input_tokens < input_tokens]
        return (reached[-1] if reached else self.tiers[0]).rates


def cost(prices: Prices | None, usage: TokenUsage) -> int:
    """What the provider charges, in nano dollars, rounded up; nothing without a price."""
    if prices is None:
        return 0
    rates = prices.rates(usage.total - usage.output_tokens)
    charged = _rounded_up(
        usage.input_tokens * rates.input
        + usage.output_tokens * rates.output
        + usage.cache_creation_input_tokens * rates.cache_creation_input
        + usage.cache_read_input_tokens * rates.cache_read_input
    )
    return min(charged, MOST_NANO_USD)


def most_cost(prices: Prices | None, input_tokens: int, output_tokens: int) -> int:
    """An upper bound of `cost` for a call of at most so many tokens, however its input comes to be cached."""
    if prices is None:
        return 0
    dearest = _dearest(prices, input_tokens)
    return _rounded_up(input_tokens * dearest.input + output_tokens * dearest.output)


def affordable_output(prices: Prices | None, input_tokens: int, nano_usd: int) -> int | None:
    """The most output for which `most_cost` stays within so much money; below 0: not even the input. None: any."""
    if prices is None:
        return None
    dearest = _dearest(prices, input_tokens)
    left = nano_usd * RATE_TOKENS - input_tokens * dearest.input
    if left < 0:
        return -1
    return left // dearest.output if dearest.output else None


def usd(nano_usd: int) -> str:
    """For people: "$0.0123", four decimals at least and no zeros after those; exact."""
    whole, fraction = divmod(abs(nano_usd), NANO_USD)
    digits = f"{fraction:09d}".rstrip("0").ljust(4, "0")
    return f"{'-' if nano_usd < 0 else ''}${whole:,}.{digits}"


def money_text(nano_usd: int) -> str:
    """`$12.35`, `$0.50`, `$0.019`: cents, and below a dollar two significant digits; `usd` is exact."""
    dollars = Decimal(nano_usd) / NANO_USD
    places = max(2, 1 - dollars.adjusted()) if nano_usd else 2
    dollars = round(dollars, places)
    places = max(2, 1 - dollars.adjusted()) if nano_usd else 2  # rounding may have added a digit: 0.0999 is 0.10
    return f"{'-' if dollars < 0 else ''}${abs(dollars):,.{places}f}"


def nano_usd_of(dollars: Decimal) -> int | None:
    """None: it is not a whole number of nano dollars, or beyond any use."""
    if not dollars.is_finite() or abs(dollars) > MOST_NANO_USD:
        return None
    nano = dollars * NANO_USD
    return int(nano) if nano == nano.to_integral_value() else None


def _dearest(prices: Prices, input_tokens: int) -> Rates:
    """The highest rates that a call of at most so much input can meet; every kind of input at the dearest one."""
    reached = [tier.rates for tier in prices.tiers if tier.above_input_tokens < input_tokens]
    some = reached or [prices.tiers[0].rates]
    dearest_input = max(max(rates.input, rates.cache_creation_input, rates.cache_read_input) for rates in some)
    return Rates(dearest_input, max(rates.output for rates in some), dearest_input, dearest_input)


def _rounded_up(rate_tokens: int) -> int:
    return -(-rate_tokens // RATE_TOKENS)


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
